"""What `pyworker jobs ID` prints of one job."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from .._db.database import Database
from .._escape import shown
from .._output import say
from .._values import time_of
from .options import CliError

if TYPE_CHECKING:
    from rich.console import Console


def show_job(db: Database, job_id: int) -> Iterator[Any]:
    """Print the job with its steps, its log and the errors of its attempts; payloads where the role may."""
    whole = db.may_read_payloads()
    look, saved = (db.get_job, db.get_steps) if whole else (db.show_job, db.job_marks)
    job, errors, steps, lines = db.each(
        *(partial(ask, job_id) for ask in (look, db.job_errors, saved, db.job_log))
    )
    if job is None:
        raise CliError(f"there is no job {job_id} (finished jobs are kept for their retention)")
    fields = dataclasses.asdict(job)
    if not whole:  # not null: not shown
        del fields["payload"], fields["result"]
        steps = [
            {name: row[name] for name in ("name", "run", "at")} for row in steps if row["kind"] == "step"
        ]
        say(f"pyworker: payload and results are not shown: that needs {db.schema}_admin", err=True)
    yield {**fields, "errors": errors, "steps": steps, "log": lines}
    from rich.table import Table

    from .._tables import Screen, text_of
    from .._values import STYLES

    console = Screen(soft_wrap=True, highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in fields.items():
        if value is not None and name not in ("last_error", "deduplicated"):
            is_json = name in ("payload", "meta", "flags", "result")
            text = text_of(json.dumps(value, ensure_ascii=False) if is_json else value)
            table.add_row(name, text, style=STYLES.get(job.state) if name == "state" else None)
    for step in steps:
        result = f"{json.dumps(step['result'], ensure_ascii=False)}, " if whole else ""
        table.add_row(text_of(f"step {step['name']}"), text_of(f"{result}{time_of(step['at'])}"))
    console.print(table)
    _show_log(console, lines)
    for error in errors:
        console.print(f"\nattempt failed {time_of(error['at'])} on worker {error['worker']}:", style="yellow")
        console.print(shown(error["error"].rstrip()), markup=False)


def _show_log(console: Console, lines: list[dict[str, Any]]) -> None:
    """The job's log, with a heading for each attempt."""
    run = None
    for line in lines:
        if line["run"] != run:
            run = line["run"]
            console.print(f"\nlog of attempt {line['attempt']} (run {run}):", style="yellow")
        console.print(
            f"{time_of(line['at'])} {line['level']:7} {shown(line['message'])}", markup=False,
            style={"warning": "yellow", "error": "red", "debug": "dim"}.get(line["level"]),
        )  # fmt: skip
