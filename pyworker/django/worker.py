"""The `tasks` modules of all installed applications, for `pyworker run pyworker.django.worker`.

DJANGO_SETTINGS_MODULE must name the settings. `manage.py pyworker run` sets up all of this.
"""

# pyright: basic
from django.utils.module_loading import autodiscover_modules

from . import setup as setup

autodiscover_modules("tasks")
