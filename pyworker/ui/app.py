"""The dashboard.

Each page calls a few SQL functions and shows their rows; the database decides which actions a job
allows.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import jinja2
import psycopg
from markupsafe import Markup
from psycopg_pool import ConnectionPool, PoolTimeout
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from .. import _values
from .._db import connect
from .._db.connection import Connection
from .._db.database import Database
from ..errors import NotFound, PyworkerError
from . import _graph, _guard, _life, _plots, _show
from ._actions import ACTIONS, JOB_ACTIONS, LABELS, audit_of, without_notice
from ._findings import Findings
from ._perform import Actions
from ._request import (
    STATEMENT_TIMEOUT,
    Problem,
    actor_of,
    filters_of,
    is_id,
    link,
    number_of,
    problem_of,
    root_of,
    search_of,
)  # fmt: skip

HERE = Path(__file__).parent
PAGE = 50
MORE = 200  # rows of a sorted list that its second page shows
STATES = tuple(_values.STATES)
LATENCY = {
    "waited_p50": "waited p50",
    "waited_p95": "waited p95",
    "ran_p50": "ran p50",
    "ran_p95": "ran p95",
}
SORTS = {"run_time": "run time", "attempts": "attempts"}


class Dashboard(Actions):
    """The pages of one schema of one database."""

    def __init__(
        self,
        dsn: str,
        schema: str,
        read_only: bool,
        show_payloads: bool,
        actor: Callable[[Request], str] | None,
        operators: Collection[str] | None,
    ) -> None:
        self.schema, self.read_only, self.show_payloads = schema, read_only, show_payloads
        self.actor = actor or actor_of
        self.operators = operators
        self.findings = Findings(self._examine)
        # Opened by the first request, with min_size=0: creating the application needs no database.
        self.pool = ConnectionPool[psycopg.Connection[Any]](
            connect.conninfo(dsn, "pyworker ui"), name="pyworker-ui",
            min_size=0, max_size=4, timeout=10, open=False,
            kwargs={"prepare_threshold": None}, check=ConnectionPool.check_connection,
            connection_class=Connection,
        )  # fmt: skip
        self._opening = threading.Lock()
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True,
            undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self.templates.filters.update(
            local=_show.local, span=_show.span, period=_show.period, size=_show.size, pretty=_show.pretty,
            number=_show.number,
            sequence_name=_show.sequence_name, origin=_show.origin, told=_show.told,
            last_line=_values.line_of,
        )  # fmt: skip
        cast("dict[str, Any]", self.templates.globals).update(
            worker_facts=_show.worker_facts,
            actions=ACTIONS, labels=LABELS, job_actions=JOB_ACTIONS, states=STATES, sorts=SORTS,
            ranges=_plots.RANGES,
        )  # fmt: skip

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        with self._opening:
            self.pool.open()
        with self.pool.connection() as conn:
            db = Database(conn, self.schema)
            db.limit_time(STATEMENT_TIMEOUT)
            yield db

    def _examine(self) -> list[dict[str, Any]]:
        with self.database() as db:
            return db.doctor()

    # -- pages: sync functions, which Starlette runs in threads

    def overview(self, request: Request) -> Response:
        chosen = request.query_params.get("range", "1h")
        if chosen not in _plots.RANGES:
            raise Problem(400, "No such range", f"range must be one of {', '.join(_plots.RANGES)}.")
        _, minutes, step, _ = _plots.RANGES[chosen]
        with self.database() as db:
            whole, problems = db.overview(), db.problems()
            rows, workers = db.throughput(minutes, step), db.list_workers()
            tasks, waiting = db.activity("task", minutes, 8), db.waiting_queues(10)
        known = {row["check_name"] for row in problems}
        checked = self.findings.latest() or []
        problems += [
            dict(row) for row in checked
            if row["severity"] in ("error", "warning") and row["check_name"] not in known
        ]  # fmt: skip
        order = ["error", "warning", "info"]
        for at, row in enumerate(problems):  # a name that stays while others come and go
            earlier = sum(other["check_name"] == row["check_name"] for other in problems[:at])
            row["key"] = f"{row['check_name']}-{earlier}"
        return self.page(
            request, "overview.html", now=datetime.fromisoformat(whole["at"]), whole=whole, rows=rows,
            workers=workers, chosen=chosen, waiting=waiting,
            problems=sorted(problems, key=lambda problem: order.index(problem["severity"])),
            bars=_plots.bars(rows, step), lines=_plots.lines(rows, LATENCY, step), step=step, tasks=tasks,
            done=sum(row["completed"] for row in rows), failed=sum(row["failed"] for row in rows),
            every=5 if minutes <= 60 else 30,
        )  # fmt: skip

    def health(self, request: Request) -> Response:
        rows = self.findings.now()
        with self.database() as db:
            now = db.clock()
        return self.page(request, "health.html", now=now, rows=rows)

    def jobs(self, request: Request) -> Response:
        given = request.query_params
        filters = filters_of(given)
        sort = given.get("sort", "") or "id"
        newest_first = given.get("order") != "up"
        oldest_first = given.get("sort") == "id" and not newest_first  # chosen; `newer` has no sort
        more_rows = sort != "id" and given.get("show") == str(MORE)
        search = search_of(filters)
        after = number_of(given, "after")
        with self.database() as db:
            now = db.clock()
            rows, more = db.job_page(
                **search, after_id=after, newest_first=newest_first, sort_by=sort,
                max_jobs=MORE if more_rows else PAGE,
            )  # fmt: skip
            others = {name: value for name, value in search.items() if name != "states"}
            narrowed = any(value is not None for value in others.values())
            counts = db.count_listed_jobs(**others) if narrowed else db.count_jobs()
        older = newer = further = None
        if oldest_first:
            further = more or (rows[-1]["id"] if len(rows) == PAGE else None)
        elif sort == "id" and newest_first:
            older = more or (rows[-1]["id"] if len(rows) == PAGE else None)
            newer = (rows[0]["id"] if rows else after) if after else None
        elif sort == "id":
            newer = more or (rows[-1]["id"] if len(rows) == PAGE else None)
            older = rows[0]["id"] if rows else None
            rows.reverse()
        state = filters.get("state")
        shown = counts[state]["jobs"] if state in counts else sum(count["jobs"] for count in counts.values())
        exact = all(count["exact"] for name, count in counts.items() if state in (None, name))
        return self.page(
            request, "jobs.html", now=now, rows=rows, filters=filters, more=more, newest_first=newest_first,
            counts=counts, matching=shown, exact=exact, narrowed=narrowed, sort=sort, link=link,
            older=link(**filters, after=older) if older else None,
            newer=link(**filters, after=newer, order="up") if newer else None,
            further=link(**filters, sort="id", order="up", after=further) if further else None,
            first=link(**filters, **({"sort": "id", "order": "up"} if oldest_first else {})),
            paged=after is not None,
            show=link(**filters, sort=sort, show=MORE) if sort != "id" and len(rows) == PAGE else None,
            every=5 if after is None else 0,
        )  # fmt: skip

    def job(self, request: Request) -> Response:
        if not is_id(request.path_params["job_id"]):
            raise Problem(404, "No such job", "There is no job of this id.")
        job_id = int(request.path_params["job_id"])
        with self.database() as db:
            now = db.clock()
            job = (db.get_job if self.show_payloads else db.show_job)(job_id)
            if job is None:
                raise Problem(
                    404,
                    "No such job",
                    f"There is no job {job_id}. Finished jobs are kept for their retention.",
                )
            errors = db.job_errors(job_id)
            graph, statements = db.job_graph(job_id), db.job_actions(job_id)
            began = job.locked_at or (db.last_claim(job_id) if job.finished_at else None)
            if self.show_payloads:
                steps, signals = db.get_steps(job_id), db.job_signals(job_id)
            else:
                marks = db.job_marks(job_id)
                steps, signals = (
                    [row for row in marks if row["kind"] == kind] for kind in ("step", "signal")
                )
            log = db.job_log(job_id)
            try:
                with db.conn.transaction():  # a savepoint: the job may be gone by now
                    reasons = db.explain_job(job_id)
            except NotFound:
                reasons = []
        return self.page(
            request, "job.html", now=now, job=job, errors=errors[::-1], reasons=reasons,
            life=_life.events(job, errors), statements=statements,
            ran=_show.seconds_between(began, job.finished_at or (now if began else None)),
            graph=_graph.drawn(job, graph, f"{root_of(request)}/jobs/"),
            steps=steps, signals=signals, log=log, show_payloads=self.show_payloads, every=5,
        )  # fmt: skip

    def queues(self, request: Request) -> Response:
        with self.database() as db:
            now, rows = db.clock(), db.list_queues(request.query_params.get("after"), PAGE)
            active = {row["name"]: row for row in db.activity("queue", 60, 1000)}
        following = rows[-1]["queue_name"] if len(rows) == PAGE else None
        return self.page(
            request, "queues.html", now=now, rows=rows, active=active, every=5,
            next=link(after=following) if following else None,
        )  # fmt: skip

    def sequences(self, request: Request) -> Response:
        only_halted, after = request.query_params.get("halted") == "1", request.query_params.get("after")
        with self.database() as db:
            now, rows = db.clock(), db.list_sequences(only_halted, after, PAGE)
            halted = [] if only_halted or after is not None else db.list_sequences(True, None, PAGE)
        following = rows[-1]["sequence_key"] if len(rows) == PAGE else None
        rows = [*halted, *(row for row in rows if row not in halted)]
        return self.page(
            request, "sequences.html", now=now, rows=rows, halted=only_halted, every=5,
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
        return self.page(request, "workers.html", now=now, rows=rows, every=5)

    def audit(self, request: Request) -> Response:
        with self.database() as db:
            now, rows = db.clock(), db.audit(number_of(request.query_params, "before"), PAGE)
        return self.page(
            request, "audit.html", now=now, rows=rows, older=rows[-1]["id"] if len(rows) == PAGE else None
        )

    # -- rendering

    def may_act(self, request: Request) -> bool:
        return not self.read_only and (
            self.operators is None or request.scope.get("pyworker.user") in self.operators
        )

    def notice(self, request: Request) -> dict[str, Any] | None:
        """What came of the action that led here."""
        audit = audit_of(request.query_params)
        if audit is None or "x-refresh" in request.headers or not self.may_act(request):
            return None  # a refresh changes other parts of the page only
        with self.database() as db:
            told = db.action_outcomes(*audit, self.actor(request)[:200])
        return told if told["action"] or audit == (0, 0) else None

    def page(self, request: Request, template: str, status: int = 200, **context: Any) -> Response:
        root = root_of(request)

        def when(at: datetime | str | None) -> Markup:
            return _show.when(at, context["now"])

        def at_length(at: datetime | str | None) -> Markup:
            return _show.at_length(at, context["now"])

        path = without_notice(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
        token = _guard.csrf_token(request)
        html = self.templates.get_template(template).render(
            **{"every": 0, **context}, root=root, this=path, csrf=token,
            here=request.url.path.removeprefix(root).strip("/").split("/")[0],
            read_only=not self.may_act(request), when=when, at_length=at_length, schema=self.schema,
            user=request.scope.get("pyworker.user"), notice=self.notice(request) if status == 200 else None,
        )  # fmt: skip
        response = HTMLResponse(html.encode("utf-8", "replace"), status)
        if request.cookies.get(_guard.COOKIE) != token:
            response.set_cookie(
                _guard.COOKIE,
                token,
                httponly=True,
                samesite="strict",
                secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),
                path=f"{root}/",
            )
        return response

    def problem(self, request: Request, error: Exception) -> Response:
        acts = request.method == "POST" or "done" in request.query_params
        of_a_job = self.show_payloads and "job_id" in request.path_params
        told = problem_of(error, f"{self.schema}_{'admin' if acts or of_a_job else 'reader'}")
        now = datetime.now(UTC)
        return self.page(request, "problem.html", told.status, now=now, title=told.title, text=told.text)

    async def not_found(self, request: Request, error: Exception) -> Response:
        return self.problem(request, Problem(404, "No such page", "There is no such page."))

    async def gone(self, request: Request, error: Exception) -> Response:
        return Response(status_code=400)  # no one reads it

    def app(self, guard: Mapping[str, Any]) -> Starlette:
        pages = {
            "/": self.overview, "/jobs": self.jobs, "/jobs/{job_id}": self.job, "/queues": self.queues,
            "/sequences": self.sequences, "/schedules": self.schedules, "/workers": self.workers,
            "/audit": self.audit, "/health": self.health, "/confirm": self.confirm,
        }  # fmt: skip
        kinds = (Problem, PyworkerError, psycopg.Error, PoolTimeout)
        return Starlette(
            routes=[
                *(Route(path, page) for path, page in pages.items()),
                Route("/act", self.act, methods=["POST"]),
                Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
            ],
            middleware=[Middleware(_guard.Guard, **guard)],
            exception_handlers={
                404: self.not_found,
                ClientDisconnect: self.gone,
                **dict.fromkeys(kinds, self.problem),
            },
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
    operators: Collection[str] | None = None,
    user_header: str | None = None,
    proxies: Sequence[str] = ("127.0.0.1", "::1"),
) -> Starlette:
    """The dashboard as an ASGI application, to be served or mounted.

    dsn: the database, as `--dsn`. users: names with passwords; if empty, you must control access
    yourself. hosts: the names that it accepts in the Host header; None: all. read_only: no actions.
    show_payloads: show payloads and results of jobs, which may be secret. actor: returns, from a
    request, the name for the audit log; by default the authenticated user's. operators: the users
    who may act, the others only look; None: all may act. user_header: the header in which a proxy
    names the user that it has authenticated; proxies: the addresses from which it is believed.
    """
    dashboard = Dashboard(dsn, schema, read_only, show_payloads, actor, operators)
    guard = {"users": users or {}, "hosts": hosts, "user_header": user_header, "proxies": proxies}
    return dashboard.app(guard)


__all__ = ["create_app"]
