"""`pyworker demo`: the example application, with a real database, a real worker and real mail.

The SQL is that of examples/welcome. The worker is a separate `pyworker run`. The mail server keeps
what it receives and refuses the first mail, as busy servers do.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import psycopg
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from .._db import migrations
from .._db.connect import connect
from .._db.database import Database
from .._distribution import pip_install
from .._files import directory
from ..errors import PyworkerError
from .postgres import kept_server

CITIES = ["Oslo", "Lisbon", "Kyoto"]
NO_PROGRESS = 60.0  # seconds without any progress before the demo gives up


class MailServer:
    """An SMTP server on a free port. The first mail is refused once with 451, "try again later"."""

    def __init__(self) -> None:
        try:
            from aiosmtpd.controller import Controller
        except ImportError as error:
            raise PyworkerError(f"the demo needs a mail server: {pip_install('demo')}") from error
        self.received: list[str] = []
        self.refused = 0

        class OnAnyPort(Controller):
            def _trigger_server(self) -> None:  # the original would connect to port 0
                server: Any = self.server
                self.port: int = server.sockets[0].getsockname()[1]
                super()._trigger_server()

        self._controller: Any = OnAnyPort(self, hostname="127.0.0.1", port=0)

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:
        if not self.refused:
            self.refused += 1
            return "451 busy, try again later"
        self.received.append(envelope.rcpt_tos[0])
        return "250 OK"

    def __enter__(self) -> MailServer:
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._controller.port}"


class Demo:
    def __init__(self, users: int, console: Console) -> None:
        self.users = users
        self.console = console
        self.application = directory("examples") / "welcome"

    def run(self) -> None:
        began = time.monotonic()
        signal.signal(signal.SIGTERM, _leave)  # so that the server below is stopped properly
        with MailServer() as mail, kept_server("demo", fresh=True) as server, connect(server.url()) as conn:
            self._say(f"PostgreSQL {server.version} is up, on a private socket")
            migrations.migrate(conn)
            conn.execute((self.application / "schema.sql").read_bytes())
            self._say(
                "pyworker is installed;"
                " the application has a table, users, whose triggers call pyworker.add_job"
            )
            with tempfile.NamedTemporaryFile("w+", prefix="pyworker-demo-", suffix=".log") as log:
                worker = self._start_worker(server.url(), mail.address, log)
                try:
                    self._say(f"a worker runs: pyworker run welcome.tasks (pid {worker.pid})")
                    self._perform_action(conn)
                    self._watch(Database(conn), worker, log.name)
                finally:
                    worker.send_signal(signal.SIGTERM)
                    worker.wait(30)
            self._summarize(Database(conn), mail, time.monotonic() - began)

    def _say(self, text: str) -> None:
        self.console.print(f"[green]✓[/green] {text}", highlight=False)

    def _start_worker(self, url: str, mail: str, log: Any) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, [str(self.application.parent), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "pyworker", "run", "welcome.tasks", "--dsn", url, "--schema", "pyworker"],
            env={**os.environ, "PYTHONPATH": path, "WELCOME_SMTP": mail}, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip

    def _perform_action(self, conn: psycopg.Connection[Any]) -> None:
        """What the application's users do: plain SQL without any call of the queue."""
        conn.execute((self.application / "sign_up.sql").read_bytes(), {"users": self.users})
        self._say(f"{self.users} users signed up: insert into users …")
        for city in CITIES:
            conn.execute((self.application / "move.sql").read_bytes(), {"city": city})
        self._say(f"3 of them moved {len(CITIES)} times: update users set city = …")  # noqa: S608

    def _watch(self, db: Database, worker: subprocess.Popen[bytes], log: str) -> None:
        expected = self.users + 3
        done, changed = 0, time.monotonic()
        columns = (
            TextColumn("  sending mail"),
            BarColumn(40),
            TextColumn("{task.completed} of {task.total} jobs done{task.fields[note]}"),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            bar = progress.add_task("", total=expected, note="")
            while done < expected:
                if worker.poll() is not None or time.monotonic() - changed > NO_PROGRESS:
                    raise PyworkerError(
                        f"the worker did not get its work done:\n{Path(log).read_text()[-2000:]}"
                    )
                counts = db.counts()
                if counts.get("completed", 0) != done:
                    done, changed = counts.get("completed", 0), time.monotonic()
                waits = counts.get("retryable", 0)
                progress.update(
                    bar, completed=done, note=f", {waits} waits to be tried again" if waits else ""
                )
                time.sleep(0.05)
        self._say("every job is done")

    def _summarize(self, db: Database, mail: MailServer, seconds: float) -> None:
        failed = next(
            (
                job
                for job in db.list_jobs(states=[], tasks=[], queues=[], key=None, limit=10_000)
                if job["attempts"] > 1
            ),
            None,
        )
        counts = db.counts()
        changes = 3 * len(CITIES)
        table = Table(
            title=f"\nWhat happened in {seconds:.1f} seconds",
            title_justify="left",
            title_style="bold",
            box=None,
            show_header=False,
        )
        table.add_column(justify="right", style="bold")
        table.add_column()
        table.add_row(
            str(self.users + changes), "jobs added by triggers, each in the transaction that it belongs to"
        )
        table.add_row(f"{changes} → 3", "profile changes with a job_key: those of one user became one mail")
        table.add_row(str(counts.get("completed", 0)), "jobs run")
        table.add_row(
            str(mail.refused),
            "failed at first, as the mail server was made to say “busy”, and was tried again a second later",
        )
        table.add_row(
            str(len(mail.received)),
            "mails received by the SMTP server,"
            f" {len(mail.received) - len(set(mail.received)) - 3} of them twice",
        )
        self.console.print(table, highlight=False)
        me = "pyworker" if sys.argv[0].endswith("__main__.py") else _short(sys.argv[0])
        payload = shlex.quote(json.dumps({"email": "ada@example.org", "name": "Ada"}))
        self.console.print("\nThe database is kept. Try next, on this same one:\n", style="bold")
        for line in (
            f"{me} jobs --dsn demo",
            f"{me} jobs --dsn demo {failed['id'] if failed else 1}"
            "        # the one that failed at first, with its error",
            f"{me} add --dsn demo send_welcome {payload} && "
            f"PYTHONPATH={_short(self.application.parent)} {me} run --dsn demo --once welcome.tasks",
        ):
            self.console.print(f"  {line}", highlight=False, soft_wrap=True)


def _leave(_number: int, _frame: object) -> NoReturn:
    sys.exit(143)


def _short(path: str | Path) -> str:
    """The path as you would type it in this directory."""
    return shlex.quote(min(str(path), os.path.relpath(path), key=len))
