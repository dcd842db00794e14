"""The dashboard as an ASGI application, for `pyworker ui` or to mount in your application.

from pyworker.ui import create_app
app.mount("/jobs", create_app("postgresql://…"))   # FastAPI, Starlette
"""

from __future__ import annotations

from .._distribution import pip_install

try:
    from .app import create_app
except ImportError as error:
    if error.name and error.name.split(".")[0] in ("jinja2", "starlette", "markupsafe", "psycopg_pool"):
        raise ImportError(
            f"the dashboard needs {error.name}: {pip_install('web')}", name=error.name
        ) from error
    raise

__all__ = ["create_app"]
