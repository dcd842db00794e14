"""Settings for workers in tests: the database from the PG* variables, and what ORM_MORE adds to it."""

import json
import os

SECRET_KEY = "of a test"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
_PLACE = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": os.environ["PGDATABASE"],
    "OPTIONS": {"application_name": "orm"},
    **json.loads(os.environ.get("ORM_MORE", "{}")),
}
_OTHER = {"NAME": os.environ.get("ORM_OTHER", _PLACE["NAME"]), "OPTIONS": {"application_name": "other orm"}}
DATABASES = {"default": _PLACE, "other": {**_PLACE, **_OTHER}}
INSTALLED_APPS = ["orm", *json.loads(os.environ.get("ORM_APPS", '["pyworker.django"]'))]
TASKS = {"default": {"BACKEND": "pyworker.django.TasksBackend"}}
