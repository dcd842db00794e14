"""The command line on the shared database."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyworker.cli import main

COMMANDS = sorted(main.commands)


@pytest.fixture
def call(db: Any, dsn: str, cli: Any) -> Any:
    """A command on the shared database that must succeed; returns what it printed, decoded if it
    is asked for JSON."""

    def run(*arguments: str, stdin: str = "") -> Any:
        done = cli(*arguments, stdin=stdin, DATABASE_URL=dsn)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    return run


@pytest.fixture
def add(db: Any) -> Any:
    def run(arguments: str) -> int:
        return db.execute(f"select (pyworker.add_job({arguments})).id").fetchone()[0]

    return run


def fail(db: Any, job_id: int, error: str = "boom") -> None:
    worker = db.execute("select pyworker.register_worker()").fetchone()[0]
    db.execute("select * from pyworker.claim_jobs(%s, 100)", [worker])
    run = db.execute("select run from pyworker.jobs where id = %s", [job_id]).fetchone()[0]
    failure = json.dumps([{"id": job_id, "run": run, "error": error}])
    assert db.execute("select pyworker.fail_jobs(%s)", [failure]).fetchone() == ([job_id],)


@pytest.fixture
def zoo(db: Any, add: Any) -> dict[str, int]:
    """A job in each of several states."""
    failing = add("'fails', queue_name => 'q', job_key => 'k'")
    fail(db, failing, 'Traceback\n  File "x"\nValueError: [red]bad[/b]\n')
    cancelled = add("'cancelled_runs'")
    db.execute("select pyworker.cancel_job(%s)", [cancelled])
    running = add("'runs'")
    worker = db.execute("select pyworker.register_worker()").fetchone()[0]
    db.execute("select * from pyworker.claim_jobs(%s, 100)", [worker])
    available = add("'waits', job_key => '[/k]'")
    return {"retryable": failing, "cancelled": cancelled, "running": running, "available": available}
