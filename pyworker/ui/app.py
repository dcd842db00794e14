"""The dashboard.

Each page calls one or two SQL functions and shows their rows; the database decides which actions a
job allows.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import jinja2
import psycopg
from markupsafe import Markup
from psycopg_pool import ConnectionPool, PoolTimeout
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, QueryParams
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from .. import _output
from .._db import connect
from .._db.database import Database
from ..errors import NotFound, PyworkerError
from . import _graph, _guard, _show
from ._request import STATEMENT_TIMEOUT, Problem, actor_of, link, number_of, problem_of, time_of

HERE = Path(__file__).parent
PAGE = 50
STATES = tuple(_output.STATES)


# The label of a button, its effect, and whether that is irreversible.
ACTIONS: dict[str, tuple[str, str, bool]] = {
    "retry": ("Retry", "Runs a finished job again, or a waiting job now.", False),
    "cancel": ("Cancel", "Cancels a waiting job; asks a running job to stop.", False),
    "force_cancel": (
        "Force cancel",
        "Cancels the job at once, even while it is running. Later reports of its worker are refused.",
        True,
    ),
    "delete": ("Delete", "Deletes the job and its errors.", True),
    "pause_queue": (
        "Pause queue",
        "Starts no further job of the queue. Running jobs finish, and jobs can be added.",
        False,
    ),
    "resume_queue": ("Resume queue", "Starts jobs of the queue again.", False),
    "resume_sequence": (
        "Resume sequence",
        "Continues the sequence with its next job. The job that halted it does not change.",
        False,
    ),
    "run_schedule": ("Run now", "Fires the schedule now, as at one of its ticks.", False),
    "pause_schedule": ("Pause schedule", "Stops the schedule until you resume it.", False),
    "resume_schedule": (
        "Resume schedule",
        "Resumes the schedule at its next tick. Ticks during the pause are skipped.",
        False,
    ),
}


class Dashboard:
    """The pages of one schema of one database."""

    def __init__(
        self,
        dsn: str,
        schema: str,
        read_only: bool,
        show_payloads: bool,
        actor: Callable[[Request], str] | None,
    ) -> None:
        self.schema, self.read_only, self.show_payloads = schema, read_only, show_payloads
        self.actor = actor or actor_of
        # Opened by the first request, with min_size=0: creating the application needs no database.
        self.pool = ConnectionPool(
            connect.conninfo(dsn, "pyworker ui"), name="pyworker-ui",
            min_size=0, max_size=4, timeout=10, open=False,
            kwargs={"prepare_threshold": None}, check=ConnectionPool.check_connection,
        )  # fmt: skip
        self._opening = threading.Lock()
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True,
            undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self.templates.filters.update(
            span=_show.span,
            pretty=_show.pretty,
            number=_show.number,
            last_line=lambda text: _output.text_of(text).plain,
        )
        cast("dict[str, Any]", self.templates.globals).update(actions=ACTIONS, states=STATES)

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        with self._opening:
            self.pool.open()
        with self.pool.connection() as conn:
            db = Database(conn, self.schema)
            db.limit_time(STATEMENT_TIMEOUT)
            yield db

    # -- pages: sync functions, which Starlette runs in threads

    def overview(self, request: Request) -> Response:
        with self.database() as db:
            whole, rows, workers = db.overview(), db.throughput(), db.list_workers()
        now = datetime.fromisoformat(whole["at"])
        latency = {
            "waited_p50": "waited p50",
            "waited_p95": "waited p95",
            "ran_p50": "ran p50",
            "ran_p95": "ran p95",
        }
        return self.page(
            request, "overview.html", now=now, whole=whole, rows=rows, workers=workers, bars=_show.bars(rows),
            lines=_show.lines(rows, latency), done=sum(row["completed"] for row in rows),
            failed=sum(row["failed"] for row in rows),
            last=next((row for row in reversed(rows) if row["completed"]), None),
        )  # fmt: skip

    def jobs(self, request: Request) -> Response:
        given = request.query_params
        filters = {
            name: given[name].strip()
            for name in ("state", "task", "queue", "key", "search", "from", "before")
            if given.get(name, "").strip()
        }
        newest_first = given.get("order") != "up"
        arguments: dict[str, Any] = {
            "states": [filters["state"]] if "state" in filters else None,
            "tasks": [filters["task"]] if "task" in filters else None,
            "queues": [filters["queue"]] if "queue" in filters else None,
            "job_key": filters.get("key"),
            "search": filters.get("search"),
            "created_from": time_of(filters, "from"),
            "created_before": time_of(filters, "before"),
            "after_id": number_of(given, "after"),
            "newest_first": newest_first,
            "max_jobs": PAGE,
        }
        with self.database() as db:
            now = db.clock()
            rows, more = db.job_page(**arguments)
        older = newer = None
        if newest_first:
            older = more or (rows[-1]["id"] if len(rows) == PAGE else None)
            newer = (rows[0]["id"] if rows else arguments["after_id"]) if arguments["after_id"] else None
        else:
            newer = more or (rows[-1]["id"] if len(rows) == PAGE else None)
            older = rows[0]["id"] if rows else None
            rows.reverse()

        return self.page(
            request, "jobs.html", now=now, rows=rows, filters=filters, more=more, newest_first=newest_first,
            older=link(**filters, after=older) if older else None,
            newer=link(**filters, after=newer, order="up") if newer else None,
            first=link(**filters),
            paged=arguments["after_id"] is not None,
        )  # fmt: skip

    def job(self, request: Request) -> Response:
        job_id = request.path_params["job_id"]
        if job_id >= 2**63:
            raise Problem(404, "No such job", f"There is no job {job_id}.")
        with self.database() as db:
            now = db.clock()
            job = db.get_job(job_id)
            if job is None:
                raise Problem(
                    404,
                    "No such job",
                    f"There is no job {job_id}. Finished jobs are kept for their retention.",
                )
            errors = [
                dict(zip(("run", "at", "worker", "error"), row, strict=True)) for row in db.job_errors(job_id)
            ]
            graph = db.job_graph(job_id)
            steps, signals, log = db.get_steps(job_id), db.job_signals(job_id), db.job_log(job_id)
            try:
                reasons = db.explain_job(job_id)
            except NotFound:
                reasons = []
        life: list[tuple[str, datetime, str | None]] = [("created", job.created_at, None)]
        if job.run_at != job.created_at:
            life.append(("due", job.run_at, None))
        life += [("failed", error["at"], f"run {error['run']}") for error in errors]
        if job.locked_at:
            life.append(("claimed", job.locked_at, f"by worker {job.locked_by}"))
        if job.finished_at:
            life.append((job.state, job.finished_at, job.reason if job.reason != job.state else None))
        return self.page(
            request, "job.html", now=now, job=job, errors=errors[::-1], reasons=reasons,
            life=sorted(life, key=lambda event: event[1]),
            ran=_show.seconds_between(job.locked_at, job.finished_at or (now if job.locked_at else None)),
            graph=_graph.drawn(job, graph, f"{request.scope.get('root_path', '').rstrip('/')}/jobs/"),
            steps=steps, signals=signals, log=log, show_payloads=self.show_payloads,
        )  # fmt: skip

    def queues(self, request: Request) -> Response:
        with self.database() as db:
            now, rows = db.clock(), db.list_queues(request.query_params.get("after"), PAGE)
        following = rows[-1]["queue_name"] if len(rows) == PAGE else None
        return self.page(
            request, "queues.html", now=now, rows=rows, next=link(after=following) if following else None
        )

    def sequences(self, request: Request) -> Response:
        only_halted, after = request.query_params.get("halted") == "1", request.query_params.get("after")
        with self.database() as db:
            now, rows = db.clock(), db.list_sequences(only_halted, after, PAGE)
            halted = [] if only_halted or after is not None else db.list_sequences(True, None, PAGE)
        following = rows[-1]["sequence_key"] if len(rows) == PAGE else None
        rows = [*halted, *(row for row in rows if row not in halted)]
        return self.page(
            request, "sequences.html", now=now, rows=rows, halted=only_halted,
            next=link(**({"halted": "1"} if only_halted else {}), after=following) if following else None,
        )  # fmt: skip

    def schedules(self, request: Request) -> Response:
        with self.database() as db:
            now, rows = db.clock(), db.schedules()
            for row in rows:
                row["runs"] = [] if row["paused"] else db.next_runs(row["cron"], row["timezone"], 3)
        return self.page(request, "schedules.html", now=now, rows=rows)

    def workers(self, request: Request) -> Response:
        with self.database() as db:
            now, rows = db.clock(), db.list_workers()
        return self.page(request, "workers.html", now=now, rows=rows)

    def audit(self, request: Request) -> Response:
        with self.database() as db:
            now, rows = db.clock(), db.audit(number_of(request.query_params, "before"), PAGE)
        return self.page(
            request, "audit.html", now=now, rows=rows, older=rows[-1]["id"] if len(rows) == PAGE else None
        )

    # -- actions: confirmed first, then performed

    def confirm(self, request: Request) -> Response:
        action, targets, back = self._asked(request, request.query_params)
        return self.page(
            request, "confirm.html", now=datetime.now(UTC), action=action, targets=targets, back=back
        )

    async def act(self, request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=1100)
        return await run_in_threadpool(self._perform_action, request, form)

    def _perform_action(self, request: Request, form: FormData) -> Response:
        if not _guard.is_own_form(request, str(form.get("csrf", ""))):
            raise Problem(
                403,
                "Refused",
                "This form is not from this dashboard, or it has expired."
                " Go back, reload the page, and try again.",
            )
        action, targets, back = self._asked(request, form)
        with self.database() as db:
            rows = db.perform_action(action, targets, self.actor(request)[:200])
        return self.page(request, "done.html", now=datetime.now(UTC), action=action, rows=rows, back=back)

    def _asked(self, request: Request, given: FormData | QueryParams) -> tuple[str, list[str], str]:
        if self.read_only:
            raise Problem(
                403, "Read-only", "This dashboard was started with --read-only, so actions are disabled."
            )
        action, targets = str(given.get("action", "")), [str(target) for target in given.getlist("target")]
        if action not in ACTIONS:
            raise Problem(400, "No such action", f"There is no action {action!r}.")
        if not targets:
            raise Problem(400, "Nothing selected", "Select jobs first, then choose an action.")
        back, root = str(given.get("back", "")), request.scope.get("root_path", "")
        # Only go back to a page of this dashboard.
        ours = back.startswith(f"{root}/") and not back.startswith(("//", "/\\")) and back.isprintable()
        return action, targets, back if ours else f"{root}/"

    # -- rendering

    def page(self, request: Request, template: str, status: int = 200, **context: Any) -> Response:
        root = request.scope.get("root_path", "").rstrip("/")

        def when(at: datetime | str | None) -> Markup:
            return _show.when(at, context["now"])

        def at_length(at: datetime | str | None) -> Markup:
            return _show.at_length(at, context["now"])

        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        token = _guard.csrf_token(request)
        html = self.templates.get_template(template).render(
            root=root, here=request.url.path.removeprefix(root).strip("/").split("/")[0], this=path,
            csrf=token, read_only=self.read_only, when=when, at_length=at_length, schema=self.schema,
            user=request.scope.get("pyworker.user"), **context,
        )  # fmt: skip
        response = HTMLResponse(html.encode("utf-8", "replace"), status)
        if request.cookies.get(_guard.COOKIE) != token:
            response.set_cookie(
                _guard.COOKIE,
                token,
                httponly=True,
                samesite="strict",
                secure=request.url.scheme == "https",
                path=f"{root}/",
            )
        return response

    def problem(self, request: Request, error: Exception) -> Response:
        told = problem_of(error, self.schema)
        now = datetime.now(UTC)
        return self.page(request, "problem.html", told.status, now=now, title=told.title, text=told.text)

    async def not_found(self, request: Request, error: Exception) -> Response:
        return self.problem(request, Problem(404, "No such page", "There is no such page."))

    def app(self, users: Mapping[str, str], hosts: Sequence[str] | None) -> Starlette:
        pages = {
            "/": self.overview, "/jobs": self.jobs, "/jobs/{job_id:int}": self.job, "/queues": self.queues,
            "/sequences": self.sequences, "/schedules": self.schedules, "/workers": self.workers,
            "/audit": self.audit, "/confirm": self.confirm,
        }  # fmt: skip
        kinds = (Problem, PyworkerError, psycopg.Error, PoolTimeout)
        return Starlette(
            routes=[
                *(Route(path, page) for path, page in pages.items()),
                Route("/act", self.act, methods=["POST"]),
                Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
            ],
            middleware=[Middleware(_guard.Guard, users=users, hosts=hosts)],
            exception_handlers={404: self.not_found, **dict.fromkeys(kinds, self.problem)},
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self.pool.close()


def create_app(
    dsn: str = "",
    schema: str = "pyworker",
    *,
    users: Mapping[str, str] | None = None,
    hosts: Sequence[str] | None = None,
    read_only: bool = False,
    show_payloads: bool = False,
    actor: Callable[[Request], str] | None = None,
) -> Starlette:
    """The dashboard as an ASGI application, to be served or mounted.

    dsn: the database, as `--dsn`. users: names with passwords; if empty, you must control access
    yourself. hosts: the names that it accepts in the Host header; None: all. read_only: no actions.
    show_payloads: show payloads and results of jobs, which may be secret. actor: returns, from a
    request, the name for the audit log; by default the authenticated user's.
    """
    return Dashboard(dsn, schema, read_only, show_payloads, actor).app(users or {}, hosts)


__all__ = ["create_app"]
