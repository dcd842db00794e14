"""The SQL that functions offer people to run does what it says, whatever names are in it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pglast import parse_sql
from pglast.parser import parse_sql_json

# Names that mean something to a parser of SQL or to format().
NAMES = [
    "%s",
    "%I %L",
    "%2$s",
    "100%",
    "\\",
    "'",
    "'); drop table x; --",
    "'); drop table x; -- %2$s",
    "$q$; drop table x",
]
ON_NAMES = {
    "pause_queue", "resume_queue", "set_queue", "resume_sequence", "run_schedule", "pause_schedule",
    "resume_schedule"
}  # fmt: skip


def statements_of(text: str) -> list[Any]:
    return [raw.stmt for raw in parse_sql(text)]


def strings_in(text: str) -> set[str]:
    return {token_value for token_value in re.findall(r'"sval":\s*("(?:[^"\\]|\\.)*")', parse_sql_json(text))}


@pytest.mark.parametrize("name", NAMES)
def test_the_sql_of_an_action_has_the_name_as_one_literal(api: Any, name: str) -> None:
    """People copy it from the dashboard and run it, perhaps as the owner."""
    for action in ON_NAMES:
        told = api.value("select pyworker.action_sql(%s, %s, '{\"concurrency\": 4}')", [action, name])
        assert [type(s).__name__ for s in statements_of(told)] == ["SelectStmt"], told
        assert json.dumps(name) in strings_in(told), told


def test_the_sql_of_an_action_on_a_job_has_nothing_but_its_id(api: Any) -> None:
    for action in ("retry", "cancel", "force_cancel", "delete"):
        assert len(statements_of(api.value("select pyworker.action_sql(%s, '17')", [action]))) == 1
        for target in ("1); drop table x; --", "1, 2", "", None, "1e3", "-1", "x", "9" * 19):
            with api.refusal("PW001", f"target of {action} must be the id of a job"):
                api.action_sql(action, target)


@pytest.mark.parametrize("name", NAMES)
def test_what_doctor_and_explain_offer_to_run_quotes_names(api: Any, worker: int, name: str) -> None:
    api.add_job(name, queue_name=name)
    api.pause_queue(name)
    for _ in range(2):
        api.add_job("s", sequence_policy={"key": name}, max_attempts=1)
    api.fail(api.claim(worker, "s"))
    api.add_schedule(name, "* * * * *", name)
    api.rows("update pyworker.schedule_entries set last_error = %s", [name])
    waiting = api.add_job("w")
    run = api.claim(worker, "w").run
    api.wait_for_signal(waiting.id, run, name)
    offered = [row.fix for row in api.rows("select fix from pyworker.doctor() where fix ~ '^[a-z]+ .*;?$'")]
    offered += [row.fix for row in api.rows("select fix from pyworker.problems()")]
    for (job,) in api.rows("select id from pyworker.jobs"):
        remedies = api.rows("select remedy from pyworker.explain_job(%s) where remedy is not null", [job])
        offered += [row.remedy for row in remedies]
    calls = [text for text in offered if text and text.startswith("select ")]
    assert len(calls) > 3
    for text in calls:
        # A remedy is a statement and then words: what is before them must be one call of a function.
        first = re.match(r"select (\* from |)pyworker\.\w+\((?:[^'()]|E?'(?:[^'\\]|''|\\\\)*')*\)", text)
        assert first, text
        assert [type(s).__name__ for s in statements_of(first[0])] == ["SelectStmt"], text
        assert "drop table" not in re.sub(r"E?'(?:[^'\\]|''|\\\\)*'", "", text), text


@pytest.mark.parametrize("option", ["concurrency", "rate_limit", "fair"])
def test_an_option_that_is_no_number_is_refused(api: Any, option: str) -> None:
    for value in ("1e-9999", "1e40", "2147483648", '"x"', "[]"):
        with api.refusal("PW001", "must be whole numbers or null"):
            api.action_sql("set_queue", "q", f'{{"{option}": {value}}}')


@pytest.mark.parametrize("options", ["[]", "null", "1"])
def test_options_that_are_no_object_are_refused(api: Any, options: str) -> None:
    with api.refusal("PW001", "options must be a JSON object, got"):
        api.action_sql("set_queue", "q", options)
