"""Promises of pyworker.otel and pyworker.sentry: a real worker with the real SDKs, which write to a file instead of a network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

both = pytest.mark.parametrize("task", ["traced", "traced_async"])
PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{PARENT[0]}-{PARENT[1]}-01"}


@pytest.fixture
def run(queue: Any, tmp_path: Path) -> Any:
    """Run all jobs; gives the spans by name, and Sentry's events."""

    def run() -> tuple[dict[str, Any], list[Any]]:
        told = tmp_path / "told"
        queue.run_once(modules="traced_tasks", TOLD=str(told))
        lines = [json.loads(line) for line in told.read_text().splitlines()]
        spans = [line["span"] for line in lines if "span" in line]
        return {span["name"]: span for span in spans}, [line["event"] for line in lines if "event" in line]

    return run


def ids(span: Any) -> tuple[str, str]:
    return span["context"]["trace_id"].removeprefix("0x"), span["context"]["span_id"].removeprefix("0x")


@both
def test_a_traceparent_that_was_set_by_sql_is_the_parent_of_the_handlers_span(queue: Any, run: Any, task: str) -> None:
    job_id = queue.add(task, meta=json.dumps(TRACEPARENT))
    spans, events = run()
    span, inside = spans[f"process {task}"], spans["inside"]
    assert (ids(span)[0], span["parent_id"]) == (PARENT[0], f"0x{PARENT[1]}")
    assert span["kind"] == "SpanKind.CONSUMER"
    assert span["attributes"].items() >= {
        "messaging.system": "pyworker", "messaging.operation.type": "process", "messaging.destination.name": "default",
        "messaging.message.id": str(job_id), "pyworker.task": task, "pyworker.attempt": 1,
    }.items()  # fmt: skip
    assert span["status"]["status_code"] == "UNSET"
    assert inside["parent_id"] == f"0x{ids(span)[1]}"
    assert events == []


@pytest.mark.parametrize("meta", [None, {"traceparent": 7}, {"traceparent": "nonsense"}])
def test_without_a_good_traceparent_a_trace_begins_at_the_handler(queue: Any, run: Any, meta: Any) -> None:
    queue.add("traced", meta=json.dumps(meta) if meta else None)
    spans, _ = run()
    assert spans["process traced"]["parent_id"] is None


def test_a_job_that_a_handler_adds_is_of_the_same_trace(queue: Any, run: Any) -> None:
    queue.add("traced", {"then": 1}, meta=json.dumps(TRACEPARENT))
    spans, _ = run()
    chain = [spans[name] for name in ("process traced", "add traced_async", "process traced_async")]
    assert {ids(span)[0] for span in chain} == {PARENT[0]}
    assert [span["parent_id"] for span in chain] == [f"0x{PARENT[1]}", f"0x{ids(chain[0])[1]}", f"0x{ids(chain[1])[1]}"]
    assert chain[1]["kind"] == "SpanKind.PRODUCER"


@both
def test_an_exception_is_an_error_without_its_words_in_the_span_and_an_event_of_sentry(
    queue: Any, run: Any, task: str
) -> None:
    job_id = queue.add(task, {"fail": "canary"}, queue_name="q")
    spans, events = run()
    assert spans[f"process {task}"]["status"] == {"status_code": "ERROR", "description": "ValueError"}
    assert "canary" not in json.dumps(spans)
    (event,) = events
    assert event["exception"]["values"][-1]["type"] == "ValueError"
    assert (event["transaction"], event["tags"]) == (task, {"pyworker.task": task, "pyworker.queue": "q"})
    assert event["contexts"]["pyworker"] == {"job_id": job_id, "run": 1, "attempt": 1, "max_attempts": 25}
    assert queue.states(job_id) == ["retryable"]


@both
def test_an_outcome_is_neither_an_error_nor_an_event(queue: Any, run: Any, task: str) -> None:
    queue.add(task, {"snooze": 1})
    spans, events = run()
    assert spans[f"process {task}"]["status"]["status_code"] == "UNSET"
    assert spans[f"process {task}"]["attributes"]["pyworker.outcome"] == "snooze"
    assert events == []


ADDING = """
import json, sys
import psycopg
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
import pyworker
from pyworker import otel
otel.instrument()
otel.instrument()
if sys.argv[2] == "collected":
    trace.set_tracer_provider(TracerProvider())
with psycopg.connect(sys.argv[1]) as conn, trace.get_tracer("x").start_as_current_span("request") as span:
    job = pyworker.add_job(conn, "a", {}, meta={"mine": 1})
    same = pyworker.add_job(conn, "a", {}, meta={"traceparent": "mine"})
    print(json.dumps([f"{span.get_span_context().trace_id:032x}", job.meta, same.meta]))
"""


@pytest.mark.parametrize("collected", ["collected", "not"])
def test_add_job_writes_the_trace_into_meta_if_one_is_collected(queue: Any, collected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADDING, queue.dsn, collected], capture_output=True, text=True, check=True
    )
    trace_id, meta, same = json.loads(done.stdout)
    assert same == {"traceparent": "mine"}  # what the caller says stays
    assert meta.pop("mine") == 1
    if collected == "collected":
        assert meta["traceparent"].startswith(f"00-{trace_id}-")
    else:
        assert meta == {}


@pytest.mark.parametrize(("module", "package"), [("otel", "opentelemetry"), ("sentry", "sentry_sdk")])
def test_without_its_library_the_error_names_the_extra(module: str, package: str) -> None:
    code = f"import sys; sys.modules['{package}'] = None; import pyworker.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"pip install 'pyworker[{module}]'" in done.stderr.splitlines()[-1]
