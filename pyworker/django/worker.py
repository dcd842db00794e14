"""All tasks of a Django project, for `pyworker run pyworker.django.worker`: the `tasks` modules of the installed applications.

DJANGO_SETTINGS_MODULE names the settings. `manage.py pyworker run` does it all.
"""

# pyright: basic
import django
from django.utils.module_loading import autodiscover_modules

django.setup()
autodiscover_modules("tasks")
