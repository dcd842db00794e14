"""Promises of pyworker.otel and pyworker.sentry: a real worker with the real SDKs, which write to
a file instead of a network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.workers import one_worker

both = pytest.mark.parametrize("task", ["traced", "traced_async"])


def traceparent(number: int) -> str:
    """One for each test: they share a file."""
    return f"00-{number:032x}-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def served(pg_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A database with one worker that is traced; `told` is the file in which it tells."""
    told = tmp_path_factory.mktemp("traces") / "told"
    with one_worker(pg_template, "traces", told.parent, modules="traced_tasks", TOLD=str(told)) as queue:
        queue.told = told  # type: ignore[attr-defined]
        yield queue


def ran(
    served: Any, task: str, payload: Any = None, *, last: str = "process", **options: Any
) -> tuple[Any, Any, Any]:
    """Run a job until the trace that it is in has a span of this name: its id, the spans by name,
    and Sentry's events of it."""
    job_id = served.add(task, payload, **options)
    found: tuple[dict[str, Any], list[Any]] = ({}, [])

    def told() -> bool:
        nonlocal found
        text = served.told.read_text() if served.told.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        spans = [line["span"] for line in lines if "span" in line]
        traces = {
            ids(span)[0] for span in spans if span["attributes"].get("messaging.message.id") == str(job_id)
        }
        events = [line["event"] for line in lines if "event" in line]
        found = (
            {span["name"]: span for span in spans if ids(span)[0] in traces},
            [event for event in events if event["contexts"]["pyworker"]["job_id"] == job_id],
        )
        return any(name.startswith(last) for name in found[0])

    served.until_so(f"there is a span {last}", told)
    return job_id, *found


def ids(span: Any) -> tuple[str, str]:
    return span["context"]["trace_id"].removeprefix("0x"), span["context"]["span_id"].removeprefix("0x")


@both
def test_a_traceparent_that_was_set_by_sql_is_the_parent_of_the_handlers_span(served: Any, task: str) -> None:
    job_id, spans, events = ran(served, task, meta=json.dumps({"traceparent": traceparent(len(task))}))
    span, inside = spans[f"process {task}"], spans["inside"]
    assert (ids(span)[0], span["parent_id"]) == (f"{len(task):032x}", "0xb7ad6b7169203331")
    assert span["kind"] == "SpanKind.CONSUMER"
    assert span["attributes"].items() >= {
        "messaging.system": "pyworker", "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": str(job_id), "pyworker.task": task, "pyworker.attempt": 1,
    }.items()  # fmt: skip
    assert span["status"]["status_code"] == "UNSET"
    assert inside["parent_id"] == f"0x{ids(span)[1]}"
    assert events == []


@pytest.mark.parametrize("meta", [None, {"traceparent": 7}, {"traceparent": "nonsense"}])
def test_without_a_good_traceparent_a_trace_begins_at_the_handler(served: Any, meta: Any) -> None:
    _, spans, _ = ran(served, "traced", meta=json.dumps(meta) if meta else None)
    assert spans["process traced"]["parent_id"] is None


def test_a_job_that_a_handler_adds_is_of_the_same_trace(served: Any) -> None:
    _, spans, _ = ran(
        served,
        "traced",
        {"then": 1},
        last="process traced_async",
        meta=json.dumps({"traceparent": traceparent(3)}),
    )
    chain = [spans[name] for name in ("process traced", "add traced_async", "process traced_async")]
    assert {ids(span)[0] for span in chain} == {f"{3:032x}"}
    assert [span["parent_id"] for span in chain] == [
        "0xb7ad6b7169203331",
        f"0x{ids(chain[0])[1]}",
        f"0x{ids(chain[1])[1]}",
    ]
    assert chain[1]["kind"] == "SpanKind.PRODUCER"


@both
def test_an_exception_is_an_error_without_its_words_in_the_span_and_an_event_of_sentry(
    served: Any, task: str
) -> None:
    job_id, spans, events = ran(served, task, {"fail": "canary"}, queue_name=task)
    assert spans[f"process {task}"]["status"] == {"status_code": "ERROR", "description": "ValueError"}
    assert "canary" not in json.dumps(spans)
    (event,) = events
    assert event["exception"]["values"][-1]["type"] == "ValueError"
    assert (event["transaction"], event["tags"]) == (task, {"pyworker.task": task, "pyworker.queue": task})
    assert event["contexts"]["pyworker"] == {
        "job_id": job_id, "run": served.job(job_id).run, "attempt": 1, "max_attempts": 25,
    }  # fmt: skip
    served.until_state("retryable", job_id)


@both
def test_an_outcome_is_neither_an_error_nor_an_event(served: Any, task: str) -> None:
    _, spans, events = ran(served, task, {"snooze": 1})
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
    assert f" install 'pyworker-pg[{module}]'" in done.stderr.splitlines()[-1]
