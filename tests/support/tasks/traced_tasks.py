"""Tasks with OpenTelemetry and Sentry around them; what both were told is written into files
beside the worker's log."""

import json
import os
from pathlib import Path

import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.transport import Transport

from pyworker import Snooze, otel, sentry, task

TOLD = Path(os.environ.get("TOLD", os.devnull))


def tell(what):
    with TOLD.open("a") as file:
        file.write(json.dumps(what) + "\n")


class ToFile(SpanExporter):
    def export(self, spans):
        for span in spans:
            tell({"span": json.loads(span.to_json())})
        return SpanExportResult.SUCCESS


class ToFileToo(Transport):
    def capture_envelope(self, envelope):
        if event := envelope.get_event():
            tell({"event": event})


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
trace.set_tracer_provider(provider)
sentry_sdk.init(dsn="https://key@example.org/1", transport=ToFileToo, default_integrations=False)
otel.instrument()
sentry.instrument()


def work(payload):
    if payload.get("fail"):
        raise ValueError(payload["fail"])
    if payload.get("snooze"):
        raise Snooze(3600)
    with trace.get_tracer("application").start_as_current_span("inside"):
        pass


@task(backoff=["1 hour"])
def traced(payload, job):
    if payload.get("then"):
        job.add_job("traced_async", {})
    work(payload)


@task(backoff=["1 hour"])
async def traced_async(payload):
    work(payload)
