"""Loads a Django project's applications in a worker's process: `pyworker run` imports it before all others.

DJANGO_SETTINGS_MODULE must name the settings.
"""

# pyright: basic
import django

django.setup()

from ._connections import around_handlers  # noqa: E402 - they need the settings
from ._database import take_names  # noqa: E402

take_names()
around_handlers()  # also for a project that has not installed the application
