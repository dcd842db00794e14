"""Two sessions, stepped inside pyworker's functions: docs/inside/interleavings.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import psycopg
import pytest

from tests.interleavings import mutants, plpgsql
from tests.interleavings.cases import cases
from tests.interleavings.explore import Case, explore, parse
from tests.interleavings.noticed import NOTICED, PUT_BACK
from tests.interleavings.oracle import Fault, Oracle, Outcomes
from tests.interleavings.stage import Stage
from tests.interleavings.story import story
from tests.interleavings.verbs import LEVELS, VERBS
from tests.mutants import MUTANTS
from tests.support.databases import copy_of

SEED = int(os.environ.get("PYWORKER_SEED", "1"))
PARTS, CASES = 8, 10  # so many tests, each of so many pairs
ENDS = ["commit-commit", "rollback-commit", "commit-rollback"]
# No step can stand before these; what they read is read by statements beside them, too.
UNSTEPPED = {"_tick", "await_job"}
BODY = """
<<outer>>
declare
    v_a integer := (select case when true then 1 else 2 end); v_b integer;
begin
    if v_a = 1 then v_b := 2; perform f(v_b);
    elsif v_a = 2 then null;
    else
        <<inner>>
        for v_b in select case 1 when 1 then 2 end loop
            begin
                update t set x = (select max(y) from u);
            exception when unique_violation then
                raise;
            end;
            exit inner when v_b > 1;
        end loop inner;
    end if;
    case v_a when 1 then v_b := case when true then 1 end; else return; end case;
    while v_b > 1 loop v_b := v_b - 1; end loop;
end
"""


@pytest.fixture(scope="module")
def stage(pg_template: Any) -> Iterator[Stage]:
    with copy_of(pg_template, "steps") as dsn:
        it = Stage(dsn)
        yield it
        it.close()


@contextmanager
def mutated(pg_template: Any, name: str) -> Iterator[Stage]:
    """A stage with this mutant in its SQL."""
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    with copy_of(pg_template, "mutant") as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            mutants.apply(conn, mutant)
        it = Stage(dsn)
        try:
            yield it
        finally:
            it.close()


def told(it: Stage, faults: dict[str, str]) -> str:
    """The faults, each with its story and the command that replays it."""
    lines = []
    for id, fault in faults.items():
        case, first, switches = parse(id)
        run = it.play(case.verbs, case.start, case.level, case.hows, first, switches)
        lines += [f"python -m tests.interleavings {id}", story(run), fault, ""]
    return "\n".join(lines)


def judge(here: Outcomes, id: str, right: Outcomes | None = None) -> None:
    """Raises Fault if this schedule is wrong."""
    case, first, switches = parse(id)
    run = here.stage.play(case.verbs, case.start, case.level, case.hows, first, switches)
    Oracle(here, case.verbs, case.start, right).judge(run, case.level, case.hows)


def test_statements_begin_where_postgresql_finds_them() -> None:
    found = plpgsql.statements(BODY)
    assert [s.kind for s in found] == [
        "declare", "declare", "block", "if", "v_b", "perform", "elsif", "for", "block", "update", "raise",
        "exit", "case", "v_b", "return", "while", "v_b",
    ]  # fmt: skip
    assert [BODY[s.start :].split()[0] for s in found if s.kind in ("for", "exit")] == ["<<inner>>", "exit"]
    assert [s.text for s in found if s.kind == "update"] == ["update t set x = (select max(y) from u)"]


def test_a_condition_that_no_step_precedes_is_known(stage: Stage) -> None:
    """A step stands before each other statement that touches what sessions share; their number was
    compared with PostgreSQL's own parser when the functions were rewritten."""
    assert {name.partition(":")[0] for name in stage.steps.unsteppable} == UNSTEPPED
    assert len(stage.steps.steps) > 300


def test_the_same_schedule_gives_the_same_steps(stage: Stage) -> None:
    case, first, switches = parse("claim+add-keyed-all/waiting/rc/commit-commit/A.A5.B7")
    runs = [
        [
            (e.session, e.name, e.blocked)
            for e in stage.play(case.verbs, case.start, case.level, case.hows, first, switches).trace
        ]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    turns = [session for session, _, _ in runs[0]]
    assert turns == [0] * 5 + [1] * 7 + [0] * turns[12:].count(0) + [1] * turns[12:].count(1)


def test_the_cases_that_notice_mutants_are_cases_of_mutants_that_there_are() -> None:
    assert {*NOTICED, *PUT_BACK} <= {mutant.name for mutant in MUTANTS}
    for id in [*(f"{name}/A" for name in NOTICED.values()), *PUT_BACK.values()]:
        case = parse(id)[0]
        assert all(case.start in VERBS[verb].starts for verb in case.verbs), id


@pytest.mark.parametrize("part", range(PARTS))
def test_of_two_sessions_stepped_inside_the_functions_the_outcome_is_that_of_one_after_the_other(
    stage: Stage, part: int
) -> None:
    """Some pairs and some of their schedules; `make interleavings` tries all."""
    print(f"PYWORKER_SEED={SEED}")
    random = Random(SEED * PARTS + part)
    faults: dict[str, str] = {}
    here = Outcomes(stage)
    for case in random.sample(cases([], list(LEVELS), ENDS), CASES):
        faults |= explore(here, case, chosen=random).faults
    assert not faults, told(stage, faults)


@pytest.mark.parametrize(
    "id",
    [
        "pause+resume/running/rc/commit-commit/A.A4.B2",  # a row of `queues` was left that paused nothing
        "force-cancel+cancel-queued/dead/rc/commit-rollback/B.B5",  # no worker was told
        "cancel-head+cancel-next/running/rc/commit-rollback/B.B4",  # nor here
        "idle+reconcile/dead/rc/commit-commit/B.B11.A27",  # nobody looked for a silent add
        "retry-unique+delete-unique/ended/rc/commit-commit/A.A6",  # the others: of the oracle
        "add-keyed+add-many/waiting/rr/commit-commit/A",
        "add-uniques+claim-one/rated/rr/commit-commit/B",
    ],
)
def test_a_schedule_that_was_wrong_once_is_right(stage: Stage, id: str) -> None:
    judge(Outcomes(stage), id)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        (
            "remove_job does not look again",
            Case(("add-keyed", "remove"), "running", "rc", ("commit", "commit")),
        ),
        (
            "a keyed add locks nothing",
            Case(("add-keyed", "add-keyed-all"), "waiting", "rc", ("commit", "commit")),
        ),
        (
            "a bulk add takes new keys in any order",
            Case(("add-two", "add-two-turned"), "waiting", "rc", ("commit", "commit")),
        ),
        (
            "a sequence whose next job is locked is not looked at again",
            Case(("finish-one", "cancel-waiter"), "running", "rc", ("commit", "rollback")),
        ),
        (
            "an end leaves no request for a queue whose next job is locked",
            Case(("finish-one", "cancel-queued"), "running", "rc", ("commit", "rollback")),
        ),
        (
            "an old snapshot judges which keys are free",
            Case(("add-unique-live", "delete-unique"), "ended", "rr", ("commit", "commit")),
        ),
    ],
)
def test_a_lock_a_second_look_or_a_notification_that_is_missing_is_noticed(
    pg_template: Any, name: str, case: Case
) -> None:
    with mutated(pg_template, name) as it:
        assert explore(Outcomes(it), case, stop=True).faults


@pytest.mark.parametrize(("name", "id"), PUT_BACK.items())
def test_a_fault_that_is_put_back_is_seen_in_its_schedule(
    pg_template: Any, stage: Stage, name: str, id: str
) -> None:
    right = Outcomes(stage)
    judge(right, id)
    with mutated(pg_template, name) as it, pytest.raises(Fault):
        judge(Outcomes(it), id, right)
