"""add_job's arguments are written out in several places. These are the same everywhere, and each call
gets each argument to where it belongs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import pyworker
from pyworker import _checks, _flow, job, tasks, testing
from pyworker._arguments import AddOptions, FlowOptions, JobSpec
from pyworker._cli.jobs import add
from pyworker._db.queue import ADD_ARGUMENTS, OF_ONE_JOB, SCHEDULE_OPTIONS
from tests.support import ROOT

from .test_contract import ADD, SCHEDULE

NAMES = ADD.split()
TYPES = {"timestamptz": "timestamp with time zone"}
OPTIONS = {*NAMES, "delay"} - {"identifier", "payload"}
SIGNATURES = """
    select pg_get_function_arguments(p.oid), pg_get_function_sqlbody(p.oid) from pg_proc p
    where p.pronamespace = 'pyworker'::regnamespace and p.proname = %s
"""
MEMBERS = """
    select a.attname, format_type(a.atttypid, a.atttypmod) from pg_attribute a
    where a.attrelid = %s::regclass order by a.attnum
"""


def arguments(db: Any, function: str) -> list[dict[str, tuple[str, str]]]:
    """Of each function of this name: its arguments, each with its type and its default."""
    return [
        {
            name: (kind, default)
            for name, kind, default in re.findall(
                r"(\w+) ([^,]+?)(?: DEFAULT ([^,]+))?(?:, |$)", written.replace("\n", " ")
            )
        }
        for written, _ in db.execute(SIGNATURES, [function])
    ]


def test_the_overloads_of_add_job_differ_only_in_the_type_of_the_payload(db: Any) -> None:
    found = arguments(db, "add_job")
    payloads = {one.pop("payload") for one in found}
    assert payloads == {("json", "'{}'::json"), ("jsonb", ""), ("text", "")}
    assert found[0] == found[1] == found[2]
    assert list(found[0]) == [name for name in NAMES if name != "payload"]


def test_types_and_helpers_in_sql_have_the_arguments_of_add_job(db: Any) -> None:
    types = {name: TYPES.get(kind, kind) for name, kind in ADD_ARGUMENTS.items()}
    assert list(types) == NAMES
    (own,) = [one for one in arguments(db, "add_job") if one["payload"][0] == "json"]
    assert {name: kind for name, (kind, _) in own.items()} == types
    request = dict(db.execute(MEMBERS, ["pyworker._job_request"]).fetchall())
    assert list(request.items()) == [*types.items(), ("ref", "text")]
    assert db.execute("select pyworker._members_of_a_spec()").fetchone()[0] == list(request)
    spec = dict(db.execute(MEMBERS, ["pyworker.job_spec"]).fetchall())  # Graphile Worker's type
    assert list(spec.items()) == [(n, types[n].replace("integer", "smallint")) for n in NAMES[: len(spec)]]
    (refusal,) = arguments(db, "_job_refusal")
    assert [(name, kind) for name, (kind, _) in refusal.items()] == list(types.items())[: len(refusal)]


def test_the_types_of_python_have_the_arguments_of_add_job() -> None:
    assert AddOptions.__annotations__.keys() == OPTIONS
    assert FlowOptions.__annotations__.keys() == OPTIONS - {"depends_on"}
    assert JobSpec.__annotations__.keys() == {*NAMES, "delay", "ref"}
    assert {*NAMES, "delay", "ref"} <= _checks._CHECKS.keys()
    assert SCHEDULE_OPTIONS == {*NAMES, "name", "timezone", "backfill"} - OF_ONE_JOB
    assert {*SCHEDULE.split()} == SCHEDULE_OPTIONS | {
        *("identifier", "cron", "query", "query_role", "query_limit")
    }


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (pyworker.add_job, "AddOptions"),
        (tasks.Task.add, "AddOptions"),
        (job.Job.add_job, "AddOptions"),
        (job.AsyncJob.add_job, "AddOptions"),
        (testing.Queue.run_task, "AddOptions"),
        (_flow.Flow.add, "FlowOptions"),
    ],
)
def test_what_adds_a_job_takes_these_options(function: Any, options: str) -> None:
    assert inspect.signature(function).parameters["options"].annotation == f"Unpack[{options}]"


def test_the_command_line_and_the_readme_name_each_argument() -> None:
    short = {"task": "identifier", "parents": "depends_on"}
    known = {short.get(str(one.name), one.name) for one in add.params}
    assert {*NAMES, "delay"} <= known
    table = (
        (ROOT / "README.md").read_text("utf-8").partition("\n## Adding jobs\n")[2].partition("\n\nThe ")[0]
    )
    assert re.findall(r"(?m)^\| `(\w+)` \|", table) == NAMES
    assert pyworker.add_job.__doc__ is not None
    assert [name for name in OPTIONS if name not in pyworker.add_job.__doc__] == []


LATER, LATEST = datetime(2100, 1, 1, tzinfo=UTC), datetime(2100, 1, 2, tzinfo=UTC)
VALUES = {
    "identifier": "'t'", "payload": """'{"a": 1}'""", "queue_name": "'q'", "run_at": f"'{LATER}'",
    "max_attempts": "7", "job_key": "'k'", "priority": "3", "flags": "'{f}'",
    "job_key_mode": "'preserve_run_at'", "unique_policy": """'{"by_queue": true}'""",
    "sequence_policy": """'{"key": "s"}'""", "meta": """'{"m": 1}'""", "delivery": "'at_most_once'",
    "depends_on": "'[%s]'", "expires_at": f"'{LATEST}'", "max_wait": "'3 days'",
}  # fmt: skip
TYPED = {name: f"{value}::{ADD_ARGUMENTS[name]}" for name, value in VALUES.items()}


def in_order(given: dict[str, str], payload: str) -> str:
    return f"add_job({', '.join(given.values()).replace('::json,', f'::{payload},', 1)})"


def by_name(given: dict[str, str]) -> str:
    return f"add_job({', '.join(f'{name} := {value}' for name, value in given.items())})"


def in_bulk(given: dict[str, str]) -> str:
    members = ", ".join(f"'{name}', {value}" for name, value in given.items())
    return f"add_jobs(jsonb_build_array(jsonb_build_object({members})))"


CALLS: dict[str, Callable[[dict[str, str]], str]] = {
    "json": lambda given: in_order(given, "json"),
    "jsonb": lambda given: in_order(given, "jsonb"),
    "text": lambda given: in_order(given, "text"),
    "by name": by_name,
    "add_jobs": in_bulk,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("without", [{"unique_policy"}, {"job_key", "max_wait"}], ids=["keyed", "unique"])
def test_each_argument_gets_to_where_it_belongs(
    db: Any, without: set[str], call: Callable[[dict[str, str]], str]
) -> None:
    parent = db.execute("select (pyworker.add_job('parent')).id").fetchone()[0]
    given = {n: "null" if n in without else v.replace("%s", str(parent)) for n, v in TYPED.items()}
    made = db.execute(f"select j.* from pyworker.{call(given)} j").fetchone()
    job, payload, start_by, run_at, bound, of, is_unique = db.execute(
        "select to_jsonb(j), j.payload::text, j.start_by, j.run_at, j.created_at + '3 days',"
        " (select e.parent_id from pyworker.edges e where e.child_id = j.id),"
        " j.unique_key is not null from pyworker.live_jobs j where j.id = %s",
        [made[0]],
    ).fetchone()
    wanted = {
        "task_identifier": "t", "queue_name": "q", "max_attempts": 7, "priority": 3, "flags": {"f": True},
        "meta": {"m": 1}, "delivery": "at_most_once", "job_key": None if "job_key" in without else "k",
    }  # fmt: skip
    assert {name: job[name] for name in wanted} == wanted
    assert "s" in job["sequence_key"]
    assert (re.sub(r"\s", "", payload), start_by, of) == ('{"a":1}', LATEST, parent)
    assert run_at == (LATER if "max_wait" in without else bound)
    assert is_unique == ("unique_policy" not in without)
