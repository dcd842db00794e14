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
    RECORD_MIGRATION,
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


def migrations() -> list[Migration]:
    """All migrations of this package, oldest first."""
    paths = sorted((directory("sql") / "migrations").glob("*.sql"))
    return [Migration(int(path.name[:4]), path) for path in paths]


def code() -> list[Path]:
    """The current code, in the order of sql/install.sql."""
    listed = (directory("sql") / "install.sql").read_text("utf-8")
    names = re.findall(r"(?m)^\\ir ((?:heart|gate|features|console)/\S+)$", listed)
    return [directory("sql") / name for name in names]


def _finish(sql_dir: Path, *, movable_clock: bool, roles: bool) -> list[Path]:
    """The files that are loaded after the code."""
    setup = sql_dir / "setup"
    optional = [
        setup / f"{name}.sql"
        for name, wanted in (("movable_clock", movable_clock), ("roles", roles))
        if wanted
    ]
    return [*optional, sql_dir / "grants.sql", setup / "end.sql"]


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
        conn.execute(SET_SCHEMA.format(schema=sql.Literal(schema), newest=sql.Literal(newest())))
        conn.execute((directory("sql") / "setup" / "owner.sql").read_bytes())
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
    sql_dir = directory("sql")
    with translated(), conn.transaction():
        conn.execute(SET_SCHEMA.format(schema=sql.Literal(schema), newest=sql.Literal(newest())))
        for step in ("owner.sql", "begin.sql"):
            conn.execute((sql_dir / "setup" / step).read_bytes())
        applied = _applied(conn, schema)
        done: list[Migration] = []
        for migration in migrations():
            if migration.version not in applied:
                conn.execute(migration.path.read_bytes())
                conn.execute(
                    RECORD_MIGRATION,
                    [migration.version, migration.name, migration.breaking, migration.checksum],
                )
                done.append(migration)
            elif applied[migration.version][1] is None:  # installed by psql, which records no checksum
                conn.execute(FILL_CHECKSUM, [migration.checksum, migration.version])
            elif applied[migration.version][1] != migration.checksum:
                raise SchemaVersionError(
                    f"{migration.path.name} is not the file that was applied to this database"
                )
        if movable_clock:
            conn.execute(MAKE_CLOCK_MOVABLE)
        for path in code():
            conn.execute(path.read_bytes())
        row = conn.execute(CLOCK_IS_MOVABLE).fetchone()
        for path in _finish(sql_dir, movable_clock=bool(row and row[0]), roles=roles):
            conn.execute(path.read_bytes())
    return done


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
    sql_dir = directory("sql")
    named = SET_SCHEMA.format(schema=sql.Literal(schema), newest=sql.Literal(newest())).as_string(None)
    since = "any version" if from_version is None else f"version {from_version}"
    parts = [
        f"-- pyworker, from {since} to {newest()}\n",
        BEGIN if transaction else KEEP_SETTINGS,
        named + ";\n",
        *((sql_dir / "setup" / step).read_text("utf-8") for step in ("owner.sql", "begin.sql")),
    ]
    for migration in migrations():
        if migration.version > (from_version or 0):
            text = migration.path.read_text("utf-8") + record_migration_text(
                migration.version, migration.name, migration.breaking, migration.checksum
            )
            parts.append(text if from_version is not None else unless_applied(migration.version, text))
    if movable_clock:
        parts.append(MAKE_CLOCK_MOVABLE.decode())
    paths = [*code(), *_finish(sql_dir, movable_clock=movable_clock, roles=roles)]
    parts += [path.read_text("utf-8") for path in paths]
    parts.append("commit;\n" if transaction else RESTORE_SETTINGS)
    return "\n".join(parts)
