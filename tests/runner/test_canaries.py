"""Secrets are planted wherever one may be; then everything that pyworker writes is searched for them.

The rule: the password of a connection string is nowhere. A payload, a result, a step or a signal is where a
person asked for it: `pyworker jobs ID`, and the dashboard with --show-payloads. What a handler puts into an
exception or a log line is shown to operators, as it wrote it.
"""

from __future__ import annotations

import json
import secrets
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pyworker._runner.metrics import text_of
from tests.support.health import until_health
from tests.support.site import Answer, Site

pytestmark = pytest.mark.slow

KINDS = ("password", "environment", "payload", "result", "step", "signal", "raised", "logged")
CANARIES = {kind: f"canary{secrets.token_hex(12)}" for kind in KINDS}
QUIET = ("password", "environment", "payload", "result", "step", "signal")

TASKS = """
import enum, os, signal, time
from dataclasses import dataclass
from typing import Literal
import msgspec, pydantic
from pyworker import Cancel, Discard, Job, Snooze, task

class One(pydantic.BaseModel):
    type: Literal["one"]

class Two(pydantic.BaseModel):
    type: Literal["two"]

@dataclass
class Typed:
    word: Literal["right"]

@task(result=True)
def returns(payload, job: Job):
    job.step("pay", lambda: RESULTS["step"])
    job.logger.info("it goes on")
    job.log("nothing of note")
    return RESULTS["result"]

@task(max_attempts=1)
def raises(payload, job: Job):
    job.log(RESULTS["logged"])
    raise ValueError(RESULTS["raised"])

@task(max_attempts=1)
def raises_quietly(payload):
    secret = payload  # a local of the traceback: not shown
    raise ValueError("no more to say")

@task(max_attempts=1)
def crashes(payload):
    os.kill(os.getpid(), signal.SIGKILL)

@task(max_attempts=1, timeout=0.2)
async def hangs(payload):
    import asyncio
    await asyncio.sleep(60)

@task(max_attempts=1)
def typed(payload: Typed):
    raise AssertionError

@task(max_attempts=1)
def tagged(payload: One | Two):
    raise AssertionError

@task
def snoozes(payload):
    return Snooze(3600)

@task
def cancels(payload):
    raise Cancel("not wanted")

@task(max_attempts=1)
def waits(payload, job: Job):
    job.wait_for("go")

@task(max_attempts=1, result=True)
def unstorable(payload):
    return {payload["secret"]: object()}

@task
def in_a_transaction(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("select %s::text", [payload["secret"]])
        job.add_job("snoozes", payload)
"""


# All have ended, but for the one that is snoozed.
WORKED = """
    select bool_and(j.finished_at is not null or j.state = 'scheduled')
    from unnest(%s::bigint[]) i, pyworker.get_job(i) j
"""


def found_in(text: str, *kinds: str) -> list[str]:
    return [kind for kind in kinds if CANARIES[kind] in text]


@pytest.fixture
def dsn_with_password(queue: Any) -> str:
    given = {k: str(v) for k, v in conninfo_to_dict(queue.dsn).items() if v is not None}
    host = quote(given["host"], safe="")
    return (
        f"postgresql://{given['user']}:{CANARIES['password']}@/{given['dbname']}"
        f"?host={host}&port={given.get('port', 5432)}"
    )


@pytest.fixture
def planted(queue: Any, tmp_path: Path) -> list[int]:
    """A job of each task, with the secret in its payload, and a signal."""
    (tmp_path / "canaries.py").write_text(f"RESULTS = {CANARIES!r}\n" + textwrap.dedent(TASKS))
    payload = {"secret": CANARIES["payload"], "word": CANARIES["payload"], "type": CANARIES["payload"]}
    names = [
        "returns", "raises", "raises_quietly", "hangs", "typed", "tagged", "snoozes", "cancels", "waits",
        "unstorable",
        "in_a_transaction", "crashes",
    ]  # fmt: skip
    jobs = [
        queue.add(name, payload, max_attempts=1, job_key=f"key of {name}", queue_name=f"{name}s")
        for name in names
    ]
    queue.rows("select pyworker.send_signal(%s, 'go', %s)", jobs[8], json.dumps(CANARIES["signal"]))
    queue.rows("select pyworker.add_schedule('s', '0 4 * * *', 'returns', %s)", json.dumps(payload))
    return jobs


def commands_of(pid: int) -> str:
    """The command lines of a process and all below it, and their threads' names."""
    found = ""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            if pid in (parent, int(status.parent.name)):
                found += (status.parent / "cmdline").read_text() + (status.parent / "comm").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.fixture
def listening(queue: Any) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(queue.dsn, autocommit=True) as conn:
        conn.execute("listen pyworker; listen pyworker_ended; listen pyworker_discarded")
        yield conn


@pytest.mark.parametrize(("log_format", "level"), [("text", "debug"), ("json", "debug"), ("short", "info")])
def test_a_worker_tells_no_secret_while_it_works(
    queue: Any, dsn_with_password: str, planted: list[int], listening: Any, health: Any, port: str,
    log_format: str,
    level: str,
) -> None:  # fmt: skip
    queue.rows("select pyworker.configure(notify_discarded => true)")
    worker = queue.start(
        "--log-format", log_format, "--log-level", level, "--health-port", port, "--metrics-port", port,
        modules="canaries", DATABASE_URL=dsn_with_password, SHOP_API_KEY=CANARIES["environment"],
    )  # fmt: skip
    until_health(queue, health, 0, "ready", "--port", port)
    queue.until(WORKED, planted)
    # What the database and the operating system show to others while it runs.
    activity = queue.rows("select to_jsonb(a)::text as row from pg_stat_activity a")
    seen = "\n".join(row.row for row in activity) + commands_of(worker.pid)
    for path in ("/live", "/ready", "/metrics", "/"):
        seen += Answer(get(port, path)).text
    notified = "\n".join(f"{n.channel} {n.payload}" for n in listening.notifies(timeout=0.5))
    assert notified
    assert worker.stop() == 0
    assert found_in(seen + notified, *CANARIES) == []
    assert found_in(worker.log, *QUIET) == []
    assert found_in(worker.log, "raised") == ["raised"], "the rule has changed: an exception is in the log"


def get(port: str, path: str) -> bytes:
    import socket

    from tests.support.site import read_all

    with socket.create_connection(("127.0.0.1", int(port)), 20) as conn:
        conn.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        return read_all(conn)


LOOKS = [
    "jobs", "jobs --json", "jobs --state discarded", "queues", "queues --json", "sequences",
    "schedules --json", "tasks",
    "doctor --verbose", "doctor --json", "health", "health --json", "metrics", "metrics --json",
    "migrate --sql",
    "migrate --dry-run", "sql", "jobs --sql", "schedules next s",
]  # fmt: skip


@pytest.fixture
def worked(queue: Any, dsn_with_password: str, planted: list[int]) -> list[int]:
    worker = queue.start(modules="canaries", DATABASE_URL=dsn_with_password)
    queue.until(WORKED, planted)
    worker.stop()
    return planted


def test_no_command_view_or_page_tells_a_secret_unasked(
    queue: Any, cli: Any, dsn_with_password: str, worked: list[int], tmp_path: Path
) -> None:
    environment = {"DATABASE_URL": dsn_with_password, "SHOP_API_KEY": CANARIES["environment"]}
    for words in LOOKS:
        done = cli(*words.split(), **environment)
        assert found_in(done.stdout + done.stderr, *QUIET) == [], words
    for job in worked:
        for words in ("explain", "explain --json", "retry --dry-run", "retry --sql", "cancel --dry-run"):
            done = cli(*words.split(), str(job), **environment)
            assert found_in(done.stdout + done.stderr, *QUIET) == [], (words, job)
    seen = ""
    views = "jobs history queue_stats sequences dependencies live_workers schedules audit"
    for view in views.split():
        rows = queue.rows(f"select to_jsonb(v)::text as row from pyworker.{view} v")
        seen += "".join(row.row for row in rows)
    for call in "list_jobs problems doctor list_workers list_tasks overview list_queues".split():
        seen += str(queue.rows(f"select * from pyworker.{call}()"))
    seen += text_of(row._asdict() for row in queue.rows("select * from pyworker.metrics()"))
    assert found_in(seen, *QUIET) == []
    site = Site(dsn_with_password, tmp_path, SHOP_API_KEY=CANARIES["environment"])
    try:
        paths = [
            "/",
            "/jobs",
            "/queues",
            "/schedules",
            "/workers",
            "/health",
            "/audit",
            f"/jobs?search={CANARIES['payload']}",
        ]
        pages = [site.ask(path).text for path in [*paths, *(f"/jobs/{job}" for job in worked)]]
    finally:
        site.close()
    shown = (
        "\n".join(pages).replace(f'value="{CANARIES["payload"]}"', "").replace(f"={CANARIES['payload']}", "")
    )
    assert found_in(shown + site.log(), *QUIET) == []
    assert found_in(shown, "raised", "logged") == ["raised", "logged"]  # operators are to see these


def test_who_asks_for_a_payload_sees_it_and_still_no_password(
    queue: Any, cli: Any, worked: list[int], tmp_path: Path
) -> None:
    dsn_with_password = make_conninfo(queue.dsn, password=CANARIES["password"])
    told = "".join(cli("jobs", str(job), DATABASE_URL=dsn_with_password).stdout for job in worked)
    assert found_in(told, "payload", "result") == ["payload", "result"]
    site = Site(dsn_with_password, tmp_path, "--show-payloads")
    try:
        told += "".join(site.ask(f"/jobs/{job}").text for job in worked)
    finally:
        site.close()
    assert found_in(told, "payload", "result", "step", "signal") == ["payload", "result", "step", "signal"]
    assert found_in(told, "password", "environment") == []


WRONG = [
    "mysql://ada:{}@h/db", "postgresql://ada:x%zz{}@h/db", "postgresql://ada:x/{}@127.0.0.1:1/db",
    "postgresql://ada:x@{}@h/db",
    "postgresql://ada:{}@127.0.0.1:x/db", "postgresql://ada:{}@127.0.0.1:1/db?nope=1",
    "postgresql+psycopg://ada:{}@h/db",
    "host=127.0.0.1 port=1 password={}", "host=127.0.0.1 port=1 pasword={}", "host=127.0.0.1 password='{}",
    "{}",
    "postgresql://ada:{}@[::1/db", "host=127.0.0.1 port=1 password=a {}", "postgresql://ada:x?{}@h/db",
    "postgresql://ada:x:{}@h/db", "postgresql://ada:x#{}@127.0.0.1:1/db",
    "postgresql://ada:{}@127.0.0.1:1/db",
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_connection_string_that_is_wrong_or_leads_nowhere_is_not_shown(
    cli: Any, program: Any, wrong: str
) -> None:
    dsn = wrong.format(CANARIES["password"])
    for words in ("jobs", "doctor", "migrate", "metrics", "ui --port 0", "queues pause x", "health", "add t"):
        done = cli(*words.split(), DATABASE_URL=dsn)
        assert done.returncode != 0
        assert found_in(done.stdout + done.stderr, "password") == [], words
    done = program("run", "json", "--log-level", "debug", "--once", DATABASE_URL=dsn)
    assert done.returncode != 0
    assert found_in(done.stdout + done.stderr, "password") == []
