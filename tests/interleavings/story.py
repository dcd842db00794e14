"""A schedule as text: which session ran which statement, what it changed, where it waited."""

from __future__ import annotations

from typing import Any

from tests.interleavings.schedule import Answer, Entry, Run

WIDTH = 110
DULL = {"updated_at", "created_at", "expires_at", "ready_at"}


def changed(change: Any) -> str:
    """One row that a statement changed: the columns that are different now."""
    operation, table, old, new = change
    row = new or old
    key = " ".join(
        f"{name}={row[name]}" for name in ("id", "lane", "worker_id", "sequence_key") if row.get(name)
    )
    if operation != "UPDATE":
        more = {name: row[name] for name in ("state", "job_key") if row.get(name)}
    else:
        more = {n: f"{old[n]} → {new[n]}" for n in new if old[n] != new[n] and n not in DULL}
    return " ".join([f"{operation.lower()} {table}", key, *(f"{n}: {v}" for n, v in more.items())])[:WIDTH]


def lines_of(entry: Entry) -> list[str]:
    indent = "  " + "    " * entry.session
    place = f"{indent}{'ABC'[entry.session]}{entry.count:<3} {entry.name:<26} "
    lines = [(place + entry.text)[:WIDTH]]
    lines += [f"{indent}     → {changed(change)}" for change in entry.changes]
    if entry.blocked:
        lines.append(f"{indent}     … waits")
    return lines


def said(answer: Answer) -> str:
    if answer.sqlstate:
        return f"{answer.sqlstate}: {answer.message}"
    return ", ".join("(" + ", ".join(str(value) for value in row) + ")" for row in answer.rows) or "nothing"


def story(run: Run) -> str:
    lines = [line for entry in run.trace for line in lines_of(entry)]
    for n, answers in enumerate(run.answers):
        lines.append(f"{'ABC'[n]} answered {'; '.join(said(answer) for answer in answers)}")
    return "\n".join(lines)
