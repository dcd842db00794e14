"""Loads the schedules of a crontab in Graphile Worker's format."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any, cast

from .._db import migrations
from .._db.connect import connect
from .._db.database import Database
from .._distribution import pip_install
from .._files import text_of
from ..errors import PyworkerError

log = logging.getLogger("pyworker.schedules")


def load_crontab(db: Database, file: str, dry_run: bool = False) -> list[dict[str, Any]]:
    path = Path(file)
    wanted = [
        {**row["schedule"], **({"payload": _json_of(row["payload"], row["line"])} if row["payload"] else {})}
        for row in db.parse_crontab(text_of(path))
    ]
    return db.declare_schedules([f"crontab:{path.name}"], wanted, dry_run)


def _json_of(payload: str, line: int) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        pass
    if importlib.util.find_spec("json5") is None:
        raise PyworkerError(
            f"the payload on line {line} of crontab is not plain JSON; for JSON5: {pip_install('crontab')}"
        )
    import json5

    try:
        return cast("Any", json5).loads(payload)
    except (ValueError, RecursionError) as error:
        raise PyworkerError(f"Failed to parse JSON5 payload on line {line} of crontab: {error}") from None


def load_for_run(dsn: str, schema: str, file: str) -> None:
    """Load a crontab when a worker starts."""
    with connect(dsn) as conn, conn.transaction():
        db = Database(conn, schema)
        db.check_version(migrations.newest())
        for row in load_crontab(db, file):
            log.info("schedule %s: %s", row["name"], row["action"])
