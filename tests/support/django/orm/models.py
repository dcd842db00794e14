"""A table of the application, which a test makes."""

from django.db import models


class Thing(models.Model):
    name = models.TextField()

    class Meta:
        managed = False
        db_table = "thing"
