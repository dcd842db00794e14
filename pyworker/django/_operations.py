"""The migration operation that installs or upgrades pyworker in Django's transaction."""

# pyright: basic
from __future__ import annotations

from typing import Any

from django.db.migrations.operations.base import Operation

from .._client import default_schema
from .._db import migrations
from .._db.scripts import drop_schema_text


class RunPyworker(Operation):
    """Upgrade the schema to the version of the installed pyworker.

    Backwards, drop it with all its jobs. After an upgrade of pyworker, put one into one of your
    migrations, or run `manage.py pyworker migrate`.

    schema: by default $PYWORKER_SCHEMA or "pyworker". roles: create the four group roles as well.
    """

    reversible = True
    reduces_to_sql = True

    def __init__(self, schema: str | None = None, roles: bool = False) -> None:
        self.schema, self.roles = schema, roles

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        given = {"schema": self.schema, "roles": self.roles}
        return self.__class__.__qualname__, [], {name: value for name, value in given.items() if value}

    def state_forwards(self, app_label: str, state: Any) -> None:
        """No model changes."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if self._is_ours(app_label, schema_editor):
            text = migrations.script(
                self.schema or default_schema(), from_version=None, roles=self.roles, transaction=False
            )
            schema_editor.execute(text, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if self._is_ours(app_label, schema_editor):
            schema_editor.execute(drop_schema_text(self.schema or default_schema()), params=None)

    def _is_ours(self, app_label: str, schema_editor: Any) -> bool:
        from django.db import router

        connection = schema_editor.connection
        return connection.vendor == "postgresql" and router.allow_migrate(connection.alias, app_label)

    def describe(self) -> str:
        return "Install or upgrade pyworker"
