"""What pyworker needs of a Django project is marked below."""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "not for production")
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "project.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ.get("PGHOST", ""),
        "PORT": os.environ.get("PGPORT", ""),
        "NAME": os.environ.get("PGDATABASE", "shop"),
        "USER": os.environ.get("PGUSER", ""),
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
    }
}

INSTALLED_APPS = [
    "pyworker.django",  # its migration installs pyworker
    "shop",
]

# Django's own tasks become pyworker's jobs.
TASKS = {
    "default": {
        "BACKEND": "pyworker.django.TasksBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"max_attempts": 5},
    }
}
