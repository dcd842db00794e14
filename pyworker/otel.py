"""OpenTelemetry traces from the producer of a job to its handler.

Call instrument() in producers and in a module of tasks.

    from pyworker import otel

    otel.instrument()

`pyworker.add_job` then makes a producer span and writes its `traceparent` into the job's meta; if
you add jobs by SQL, you may set it yourself. Each attempt of a job is a consumer span, a child of
that span, around the handler and the middlewares that were registered later. OpenTelemetry's SDK
configures exporters. Spans contain neither payloads nor messages of exceptions.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from . import _client
from ._distribution import pip_install
from ._middleware import middleware
from ._steps import Suspended
from .job import AsyncJob, Job, Outcome

try:
    from opentelemetry import trace
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(f"pyworker.otel needs OpenTelemetry's API: {pip_install('otel')}") from error

__all__ = ["instrument"]

_tracer = trace.get_tracer("pyworker")
_context = TraceContextTextMapPropagator()


def instrument() -> None:
    """Make add_job and the handlers of this process create spans.

    You may call it more than once.
    """
    middleware(_consume)
    if _produce not in _client.producers:
        _client.producers.append(_produce)


def _attributes(operation: str, task: str, queue: str | None) -> dict[str, str | int]:
    """Attributes by OpenTelemetry's semantic conventions for messaging."""
    return {
        "messaging.system": "pyworker",
        "messaging.operation.name": operation,
        "messaging.operation.type": "send" if operation == "add" else operation,
        "messaging.destination.name": queue or "default",
        "pyworker.task": task,
    }


def _produce(identifier: str, options: dict[str, Any]) -> None:
    attributes = _attributes("add", identifier, options.get("queue_name"))
    with _tracer.start_as_current_span(f"add {identifier}", kind=SpanKind.PRODUCER, attributes=attributes):
        carrier: dict[str, str] = {}
        _context.inject(carrier)
    if carrier:  # empty if no spans are collected
        options["meta"] = carrier | (options.get("meta") or {})


def _consume(job: Job | AsyncJob) -> Generator[None, Any, None]:
    attributes = _attributes("process", job.task_identifier, job.queue_name)
    attributes |= {
        "messaging.message.id": str(job.id),
        "pyworker.run": job.run,
        "pyworker.attempt": job.attempts,
    }
    meta = {name: value for name, value in (job.meta or {}).items() if isinstance(value, str)}
    with _tracer.start_as_current_span(
        f"process {job.task_identifier}", _context.extract(meta), SpanKind.CONSUMER, attributes,
        record_exception=False, set_status_on_exception=False,
    ) as span:  # fmt: skip
        try:
            yield
        except (Outcome, Suspended) as outcome:
            span.set_attribute("pyworker.outcome", type(outcome).__name__.lower())
            raise
        except BaseException as error:
            # Only the class: a message may quote the payload.
            name = type(error).__qualname__
            span.set_attribute("error.type", name)
            span.set_status(StatusCode.ERROR, name)
            raise
