from django.db import models


class Order(models.Model):
    email = models.EmailField()
    charged = models.BooleanField(default=False)
