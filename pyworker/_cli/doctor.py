"""`pyworker doctor`: the findings, and their output.

Most are the database's; some only a client can measure.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from .._db.connect import is_pooled
from .._db.database import Database
from .._escape import shown
from .._output import say
from .offers import as_commands
from .options import Exits, verb

# Worst last. The exit codes are those of monitoring plugins: 0 ok, 1 warning, 2 critical, 3
# unknown (root.EXIT_UNKNOWN).
SEVERITIES = {"ok": 0, "info": 0, "warning": 1, "error": 2}
STYLES = {"ok": "green", "info": "cyan", "warning": "yellow", "error": "red"}

Finding = dict[str, Any]


def findings(db: Database) -> list[Finding]:
    return [*db.doctor(), _clock(db), _pooler(db)]


def _finding(check_name: str, severity: str, finding: str, fix: str | None = None) -> Finding:
    return {"check_name": check_name, "severity": severity, "finding": finding, "fix": fix}


def _clock(db: Database) -> Finding:
    """Compare this machine's clock with the database's, within half of the round trip."""
    before = time.time()
    theirs = db.database_clock()
    after = time.time()
    off = (before + after) / 2 - theirs
    certain = abs(off) - (after - before) / 2
    if certain <= 1:
        return _finding("clock", "ok", "this machine's clock agrees with the database's")
    return _finding(
        "clock",
        "warning" if certain > 10 else "info",
        f"this machine's clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the database's."
        " The queue goes by the database's alone and takes no harm,"
        " but a run_at that is computed here is off by as much",
        "set this machine's clock (NTP), or compute times in the database: now() + interval …",
    )


def _pooler(db: Database) -> Finding:
    if not is_pooled(db.conn):
        return _finding("pooler", "ok", "no transaction pooler is in between")
    return _finding(
        "pooler",
        "info",
        "a transaction pooler (PgBouncer) is in between. Producers are not affected; workers that connect"
        " through it find new jobs only by polling (every 1 to 5 s), and one that dies is noticed when its"
        " lease ends, not within seconds",
        "give `pyworker run` a direct connection, or a pool in session mode",
    )


def show(rows: Sequence[Finding], verbose: bool, schema: str) -> None:
    """Print the findings, worst first."""
    order = list(SEVERITIES)
    fine = [row["check_name"] for row in rows if row["severity"] == "ok"]
    for row in sorted(rows, key=lambda row: -order.index(row["severity"])):
        if row["severity"] == "ok" and not verbose:
            continue
        word = click.style(row["severity"], fg=STYLES[row["severity"]], bold=True)
        click.echo(f"{word} {row['check_name']}: {shown(row['finding'])}")
        for line in as_commands(row["fix"] or "", schema).splitlines():
            say(f"   → {line}")
    if fine and not verbose:
        click.echo(f"{click.style('ok', fg='green', bold=True)} {', '.join(fine)}")


def exit_code(rows: Sequence[Finding]) -> int:
    return max(SEVERITIES[row["severity"]] for row in rows)


@verb()
@click.option("--verbose", "-v", is_flag=True, help="Also show checks without findings.")
def doctor(db: Database, verbose: bool) -> Iterator[Exits]:
    """Check the health of the queue. Each problem comes with its fix.

    Changes nothing. Exit codes, as for monitoring plugins: 0 nothing worse than info, 1 warnings, 2
    errors (or wrong usage), 3 unknown (no database, no pyworker in it, or no permission).
    """
    rows = findings(db)
    yield Exits(rows, exit_code(rows))
    show(rows, verbose, db.schema)
