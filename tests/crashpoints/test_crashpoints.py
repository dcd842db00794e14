"""A crash of PostgreSQL after each record of its log: docs/inside/crash-points.md."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from tests.crashpoints.__main__ import some
from tests.crashpoints.crash import Wreck
from tests.crashpoints.judge import judge
from tests.crashpoints.recording import Point, Recorder, Recording, Spoil, recorded
from tests.crashpoints.runner import Runner, add
from tests.crashpoints.script import SIGNAL, at_most_once, last_claims, script, send
from tests.interleavings.mutants import apply
from tests.mutants import Mutant

pytestmark = pytest.mark.torture  # each records a script of its own, and crashes a server for each point

SEED = int(os.environ.get("PYWORKER_SEED", "1"))
# They change no job: they read, or write hints that a crash may lose.
NO_VERBS = {"await_job", "seconds_until_due", "seconds_until_tick", "was_finished"}
# Parts of others, and what reads although it is volatile.
NO_VERBS |= {
    "_add_schedule",
    "_lend_query_schema",
    "count_jobs",
    "doctor",
    "explain_job",
    "overview",
    "problems",
}


def faults(recording: Recording, points: list[Point], behind: int = 0) -> Iterator[str]:
    options = (
        f"--seed {SEED}{'' if recording.synchronous else ' --off'}{f' --behind {behind}' * (behind > 0)}"
    )
    with ExitStack() as stack:
        wreck = Wreck(stack, recording)
        for point in points:
            for fault in judge(wreck, point, SEED, True, behind).faults:
                yield f"{fault}\n    python -m tests.crashpoints {options} --at {point.name}"


@pytest.fixture(scope="module")
def recording() -> Iterator[Recording]:
    with recorded(script) as it:
        yield it


def test_after_a_crash_all_that_was_acknowledged_is_there_and_no_promise_is_broken(
    recording: Recording,
) -> None:
    """Some points; `make crashpoints` tries all."""
    found = list(faults(recording, some(recording, 12, SEED)))
    assert not found, "\n".join(found)


def test_with_synchronous_commit_off_no_crash_breaks_what_is_promised_for_any_setting() -> None:
    with recorded(script, synchronous=False) as recording:
        found = list(faults(recording, some(recording, 8, SEED)))
    assert not found, "\n".join(found)


def test_a_standby_that_was_behind_accepts_no_report_of_a_claim_that_it_never_received(
    recording: Recording,
) -> None:
    found = list(faults(recording, some(recording, 8, SEED), behind=8))
    assert not found, "\n".join(found)


def test_the_script_calls_each_verb_and_none_fails_or_commits_twice(
    db: psycopg.Connection[Any], recording: Recording
) -> None:
    verbs = {
        name
        for (name,) in db.execute(
            "select distinct p.proname from pyworker._granted() g, pg_proc p "
            "where p.proname = any (g.functions) and p.pronamespace = 'pyworker'::regnamespace "
            "and p.provolatile = 'v'"
        )
    }
    called = set(re.findall(r"pyworker\.(\w+)\(", " ".join(step.sql for step in recording.steps)))
    assert verbs - called == NO_VERBS
    assert [step.name for step in recording.steps if isinstance(step.answer, str)] == []
    assert {len(step.commits) for step in recording.steps} == {0, 1}


@dataclass(frozen=True)
class Scene:
    """A few statements, and a promise that crashes in one of them may break."""

    script: Callable[[Recorder], None]
    synchronous: bool
    at: str  # the statement
    spoil: Spoil  # breaks the promise
    why: str  # the fault that is found then

    def points(self, recording: Recording) -> list[Point]:
        """Crashes from its commit backwards: what a commit brings can be lost only just before it."""
        return [point for point in recording.points if point.step.name == self.at][:-6:-1]


def mutant(function: str, find: str, put: str) -> Spoil:
    return lambda conn: apply(conn, Mutant("", function, find, put, []))


def statement(sql: str) -> Spoil:
    return lambda conn: conn.execute(sql) and None  # type: ignore[arg-type, func-returns-value]


def opens(it: Recorder) -> None:
    Runner(it, "ada")


def signals(it: Recorder) -> None:
    send(it, "send", add(it, "add", SIGNAL))
    add(it, "add", "plain")


def claims(it: Recorder) -> None:
    add(it, "add", "plain")
    Runner(it, "ada").turn("claim", 1)


HURRY = """
    create function app.hurry() returns trigger language plpgsql as $$
    begin
        perform set_config('synchronous_commit', 'off', true);
        return null;
    end $$;
    create trigger hurry before insert on pyworker.live_jobs execute function app.hurry();
"""
TIME = "when last_run < new_run then new_run else last_run + 1 + (random() * 1000000000)::bigint end"
ENDED = "and not exists (select from live_jobs j where j.id = was_finished.job_id)"
SCENES = {
    "a queue with an unlogged table": Scene(
        signals, True, "add~2", statement("alter table pyworker.signals set unlogged"),
        "signals is not as send left it",
    ),
    "a queue that acknowledges adds too early": Scene(
        signals, True, "add", statement(HURRY), "add was answered, and its commit is lost",
    ),
    "a queue that counts runs": Scene(
        claims, True, "claim", mutant("_next_run", TIME, "when true then last_run + 1 end"),
        "which is not above those of before",
    ),
    "a queue that trusts the id of a transaction": Scene(
        lambda it: last_claims(it, Runner(it, "cy")), True, "claim-last", mutant("was_finished", ENDED, ""),
        "was_finished says True",
    ),
    "a queue that starts jobs without waiting for the disk": Scene(
        lambda it: at_most_once(it, Runner(it, "ada")), False, "start",
        mutant("_commit_durably", "not in ('on', 'remote_apply')", "is null"),
        "start was answered, and its commit is lost",
    ),
    "a queue that forgets workers": Scene(
        opens, False, "open-ada", mutant("register_worker", "perform _commit_durably();", ""),
        "open-ada was answered, and its commit is lost",
    ),
}  # fmt: skip
by_scene = pytest.mark.parametrize("scene", SCENES.values(), ids=[name.replace(" ", "-") for name in SCENES])


@by_scene
def test_a_crash_before_a_commit_breaks_no_promise(scene: Scene) -> None:
    with recorded(scene.script, scene.synchronous) as recording:
        assert list(faults(recording, scene.points(recording))) == []


@by_scene
def test_a_queue_that_breaks_the_promise_is_caught(scene: Scene) -> None:
    with recorded(scene.script, scene.synchronous, scene.spoil) as recording:
        assert any(scene.why in fault for fault in faults(recording, scene.points(recording)))


def test_a_point_has_a_name_that_the_next_recording_knows() -> None:
    names = []
    for _ in range(2):
        with recorded(signals) as recording:
            names.append([(point.name, point.record.told) for point in recording.points])
    assert names[0] == names[1]
    assert names[0][-1][1] == "COMMIT"
