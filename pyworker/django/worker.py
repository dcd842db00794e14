"""The `tasks` modules of all installed applications, for `pyworker run pyworker.django.worker`.

DJANGO_SETTINGS_MODULE must name the settings. `manage.py pyworker run` sets up all of this.
"""

# pyright: basic
import django
from django.utils.module_loading import autodiscover_modules

django.setup()

from ._connections import around_handlers  # noqa: E402 - it needs the settings

around_handlers()  # also for a project that has not installed the application
autodiscover_modules("tasks")
