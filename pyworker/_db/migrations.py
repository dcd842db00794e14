"""Install and upgrade the schema: the steps of sql/install.sql, from Python.

It takes one transaction: lock, pending migrations (each once), all functions (every time), grants,
and a notification to running workers.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from .._files import directory
from ..errors import InvalidArgument, SchemaVersionError, translated
from .scripts import (
    BEGIN,
    CLOCK_IS_MOVABLE,
    FILL_CHECKSUM,
    HAS_MIGRATIONS,
    KEEP_SETTINGS,
    MAKE_CLOCK_MOVABLE,
    MIGRATIONS,
    RESTORE_SETTINGS,
    SET_SCHEMA,
    record_migration_text,
    unless_applied,
)


@dataclass(frozen=True)
class Migration:
    version: int
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def breaking(self) -> bool:
        return bool(re.search(rb"(?m)^-- breaking: yes\b", self.path.read_bytes()))

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def script(self) -> str:
        """Its text, and that it was applied."""
        record = record_migration_text(self.version, self.name, self.breaking, self.checksum)
        return self.path.read_text("utf-8") + record


def migrations() -> list[Migration]:
    """All migrations of this package, oldest first."""
    paths = sorted((directory("sql") / "migrations").glob("*.sql"))
    return [Migration(int(path.name[:4]), path) for path in paths]


def code() -> list[Path]:
    """The current code, in the order of sql/install.sql."""
    listed = (directory("sql") / "install.sql").read_text("utf-8")
    names = re.findall(r"(?m)^\\ir ((?:heart|gate|features|console)/\S+)$", listed)
    return [directory("sql") / name for name in names]


def _begin(schema: str) -> list[str]:
    """What comes before the migrations."""
    setup = directory("sql") / "setup"
    named = SET_SCHEMA.format(schema=sql.Literal(schema), newest=sql.Literal(newest())).as_string(None)
    return [f"{named};\n", *((setup / step).read_text("utf-8") for step in ("owner.sql", "begin.sql"))]


def _end(*, movable_clock: bool, roles: bool) -> list[str]:
    """What comes after the migrations: the code, and the rights."""
    setup = directory("sql") / "setup"
    optional = {"movable_clock": movable_clock, "roles": roles}
    paths = [*code(), *(setup / f"{name}.sql" for name, wanted in optional.items() if wanted)]
    paths += [directory("sql") / "grants.sql", setup / "end.sql"]
    return [path.read_text("utf-8") for path in paths]


def newest() -> int:
    """The schema version that this package was made for."""
    return migrations()[-1].version


def _applied(conn: psycopg.Connection[Any], schema: str) -> dict[int, tuple[str, str | None]]:
    if not conn.execute(HAS_MIGRATIONS, [schema]).fetchone():
        return {}
    rows = conn.execute(MIGRATIONS.format(schema=sql.Identifier(schema))).fetchall()
    return {version: (name, checksum) for version, name, checksum in rows}


def pending(conn: psycopg.Connection[Any], schema: str = "pyworker") -> list[Migration]:
    """Migrations of this package that were not applied to the database. Changes nothing.

    It begins like `migrate`, and is refused to the same roles.
    """
    with conn.transaction(force_rollback=True):
        for text in _begin(schema)[:2]:
            _run(conn, text)
        applied = _applied(conn, schema)
    return [migration for migration in migrations() if migration.version not in applied]


def migrate(
    conn: psycopg.Connection[Any],
    schema: str = "pyworker",
    *,
    movable_clock: bool = False,
    roles: bool = False,
) -> list[Migration]:
    """Bring the schema to this package's version, and return the applied migrations.

    It is one transaction. You may repeat it, run it concurrently and interrupt it. `movable_clock`
    is for tests: it lets the setting pyworker.clock_offset move the queue's time. `roles` creates
    the four group roles. Raises SchemaVersionError if an applied migration was edited later, or if
    the database is newer and breaking.
    """
    with translated(), conn.transaction():
        for text in _begin(schema):
            _run(conn, text)
        applied = _applied(conn, schema)
        done: list[Migration] = []
        for migration in migrations():
            if migration.version not in applied:
                _run(conn, migration.script())
                done.append(migration)
            elif applied[migration.version][1] is None:  # installed by psql, which records no checksum
                conn.execute(FILL_CHECKSUM, [migration.checksum, migration.version])
            elif applied[migration.version][1] != migration.checksum:
                raise SchemaVersionError(
                    f"{migration.path.name} is not the file that was applied to this database"
                )
        if movable_clock:
            _run(conn, MAKE_CLOCK_MOVABLE)
        row = conn.execute(CLOCK_IS_MOVABLE).fetchone()
        for text in _end(movable_clock=bool(row and row[0]), roles=roles):
            _run(conn, text)
    return done


def _run(conn: psycopg.Connection[Any], text: str) -> None:
    conn.execute(text.encode())


def script(
    schema: str = "pyworker",
    from_version: int | None = 0,
    *,
    movable_clock: bool = False,
    roles: bool = False,
    transaction: bool = True,
) -> str:
    """`migrate` as one SQL script, for a database at schema version `from_version`.

    None: at any version; the script checks which migrations were applied.

    transaction=False: without BEGIN and COMMIT, for migration tools that open the transaction. The
    script restores their settings at its end.
    """
    if not 0 <= (from_version or 0) <= newest():
        raise InvalidArgument(
            f"there is no schema version {from_version} (this pyworker knows 0 to {newest()})"
        )
    since = "any version" if from_version is None else f"version {from_version}"
    parts = [
        f"-- pyworker, from {since} to {newest()}\n",
        BEGIN if transaction else KEEP_SETTINGS,
        *_begin(schema),
    ]
    for migration in migrations():
        if migration.version > (from_version or 0):
            text = migration.script()
            parts.append(text if from_version is not None else unless_applied(migration.version, text))
    if movable_clock:
        parts.append(MAKE_CLOCK_MOVABLE)
    parts += _end(movable_clock=movable_clock, roles=roles)
    parts.append("commit;\n" if transaction else RESTORE_SETTINGS)
    return "\n".join(parts)
