"""Handlers that leave their connection as they should not, and one that looks at what it gets."""

import psycopg
import pytest
from psycopg.adapt import Dumper, Loader
from psycopg.rows import dict_row

from pyworker import AsyncJob, Job, task

KEPT = []
OPEN = []


class Loud(Loader):
    def load(self, data):
        return "LOUD"


class LoudDumper(Dumper):
    def dump(self, obj):
        return b"LOUD"


def forbidden(name, value):
    """psycopg changes these only outside of a transaction."""

    def change(conn):
        with pytest.raises(psycopg.ProgrammingError, match="can't change"):
            setattr(conn, name, value)

    return change


def keep(conn):
    KEPT[:] = [conn, conn.cursor()]


# What a handler does to its connection: a statement, or a function.
DEEDS = {
    "row factory": lambda conn: setattr(conn, "row_factory", dict_row),
    "cursor factory": lambda conn: setattr(conn, "cursor_factory", psycopg.ClientCursor),
    "a wrong cursor factory": lambda conn: setattr(conn, "cursor_factory", object),
    "a wrong row factory": lambda conn: setattr(conn, "row_factory", None),
    "server cursor factory": lambda conn: setattr(conn, "server_cursor_factory", object),
    "loaders": lambda conn: [conn.adapters.register_loader(name, Loud) for name in ("int8", "text", "bool")],
    "dumpers": lambda conn: conn.adapters.register_dumper(str, LoudDumper),
    "notice handler": lambda conn: conn.add_notice_handler(lambda diag: KEPT.append(diag)),
    "notify handler": lambda conn: conn.add_notify_handler(lambda notify: KEPT.append(notify)),
    "prepare threshold": lambda conn: setattr(conn, "prepare_threshold", 0),
    "autocommit": forbidden("autocommit", True),
    "isolation level": forbidden("isolation_level", psycopg.IsolationLevel.SERIALIZABLE),
    "read only": forbidden("read_only", True),
    "deferrable": forbidden("deferrable", True),
    "kept": keep,
    "role": "set role dirty",
    "local role": "set local role dirty",
    "session authorization": "set session authorization dirty",
    "role and session authorization": "set role dirty; set session authorization dirty; set role dirty",
    "timeouts": "set statement_timeout = '3min'; set lock_timeout = '2min'",
    "search path": "set search_path = pg_temp",
    "no search path": "set search_path = ''",
    "formats": "set timezone = 'Asia/Tokyo'; set datestyle = 'SQL, DMY'; set bytea_output = escape",
    "later isolation": "set session characteristics as transaction isolation level serializable",
    "later transactions are read only": "set session characteristics as transaction read only",
    "a tenant": "select set_config('app.tenant', '7', false)",
    "a statement of SQL": "prepare dirty as select 1",
    "a function's setting": "select set_config('pyworker.notify', 'off', false)",
    "listen": "listen dirty",
    "temporary table": "create temporary table dirty (x int)",
    "advisory lock": "select pg_advisory_lock(4711), pg_advisory_lock_shared(4712)",
    "cursor with hold": "declare dirty cursor with hold for select 1",
    "sequence": "create temporary sequence dirty; select nextval('dirty')",
}
# What ends the block's transaction before the block.
ENDS = {
    "commit": "commit",
    "commit, and then": "commit; set statement_timeout = '3min'; select pg_advisory_lock(4711)",
    "rollback": "rollback",
    "rollback, and then": "rollback; set statement_timeout = '3min'",
    "commit and chain": "commit and chain",
    "commit and chain, and then": "commit and chain; set statement_timeout = '3min'",
    "rollback and chain": "rollback and chain",
    "commit and begin": "commit;begin",
}
DEEDS |= ENDS
STATE = """
    select current_user::text, session_user::text, coalesce(current_setting('app.tenant', true), '') tenant,
        (select json_object_agg(name, setting order by name) from pg_settings
         where name !~ '^transaction_|[.]') settings,
        (select count(*) from pg_prepared_statements) prepared, (select count(*) from pg_cursors) cursors,
        array(select pg_listening_channels()) listens,
        (select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory') locks,
        (select count(*) from pg_class where relnamespace = pg_my_temp_schema()) temporary
"""


def about(conn):
    """The settings of psycopg's object."""
    own = (conn.row_factory, conn.cursor_factory, conn.server_cursor_factory, conn.isolation_level)
    return [
        *[getattr(one, "__name__", str(one)) for one in own],
        [conn.autocommit, conn.read_only, conn.deferrable, conn.prepare_threshold],
        [len(conn._notice_handlers), len(conn._notify_handlers), conn.info.pipeline_status.name],
    ]


def use_what_was_kept():
    """No connection, and no cursor of it, can be used after its block."""
    for one in KEPT:
        with pytest.raises(psycopg.OperationalError, match="has ended"):
            one.execute("select 1")
    if KEPT:
        KEPT[0].close()
        assert KEPT[0].closed
    KEPT.clear()


async def use_what_was_kept_async():
    for one in KEPT:
        with pytest.raises(psycopg.OperationalError, match="has ended"):
            await one.execute("select 1")
    if KEPT:
        await KEPT[0].close()
        assert KEPT[0].closed
    KEPT.clear()


@task(result=True, max_attempts=1)
def look(payload, job: Job):
    with job.step_transaction("look") as step:
        conn = step.connection
        use_what_was_kept()
        cursor = psycopg.Cursor(conn)
        step.result = [about(conn), psycopg.rows.dict_row(cursor.execute(STATE))(cursor.fetchone())]
        assert conn.execute("select 1::bigint, 'x'::text, true").fetchone() == (1, "x", True)
    return step.result


@task(result=True, max_attempts=1)
async def look_async(payload, job: AsyncJob):
    async with job.step_transaction("look") as step:
        conn = step.connection
        await use_what_was_kept_async()
        cursor = psycopg.AsyncCursor(conn)
        await cursor.execute(STATE)
        step.result = [about(conn), psycopg.rows.dict_row(cursor)(await cursor.fetchone())]
        cursor = await conn.execute("select 1::bigint, 'x'::text, true")
        assert await cursor.fetchone() == (1, "x", True)
    return step.result


@task(max_attempts=1)
def in_transaction(deed, job: Job):
    with job.transaction() as conn:
        if "role" not in deed and "authorization" not in deed and deed not in ("dumpers", "loaders"):
            job.add_job("nobody", {"of": deed})
        act(conn, DEEDS[deed])
        assert job.once(deed)
        job.progress(0.5)
        if deed == "row factory":
            job.add_job("nobody", {"of": deed})


@task(max_attempts=1)
def in_step(deed, job: Job):
    with job.step_transaction("a") as step:
        act(step.connection, DEEDS[deed])
        assert job.once(deed)
        step.result = "done"
    assert job.step("b", str, 1) == "1"
    job.progress(0.5)
    job.add_job("nobody", {"of": deed})


@task(max_attempts=1)
async def in_transaction_async(deed, job: AsyncJob):
    async with job.transaction() as conn:
        await act_async(conn, DEEDS[deed])
        assert await job.once(deed)
        await job.progress(0.5)
        if deed == "row factory":
            await job.add_job("nobody", {"of": deed})


@task(max_attempts=1)
async def in_step_async(deed, job: AsyncJob):
    async with job.step_transaction("a") as step:
        await act_async(step.connection, DEEDS[deed])
        assert await job.once(deed)
        step.result = "done"
    assert await job.step("b", str, 1) == "1"
    await job.progress(0.5)
    await job.add_job("nobody", {"of": deed})


def act(conn, deed):
    if not isinstance(deed, str):
        deed(conn)
        return
    for statement in deed.split("; "):
        conn.execute(statement)
    for _ in range(0 if deed in ("commit", "rollback") else 8):  # psycopg prepares it
        conn.execute("select 1 where %s", [True])


async def act_async(conn, deed):
    if not isinstance(deed, str):
        if deed is DEEDS["autocommit"] or "forbidden" in getattr(deed, "__qualname__", ""):
            return  # an asynchronous connection has methods for these
        deed(conn)
        return
    for statement in deed.split("; "):
        await conn.execute(statement)
    for _ in range(0 if deed in ("commit", "rollback") else 8):
        await conn.execute("select 1 where %s", [True])


def open_pipeline(conn):
    OPEN.append(conn.pipeline())
    return OPEN[-1]


# What ends the job as a failure.
BREAKS = {
    "pipeline": ("leave conn.pipeline() before the block ends", lambda conn: open_pipeline(conn).__enter__()),
    "closed": ("the connection is closed", lambda conn: conn.close()),
    "commit": ("commit() is forbidden here", lambda conn: conn.commit()),
    "rollback": ("rollback() is forbidden here", lambda conn: conn.rollback()),
    "an error": ("I have failed", lambda conn: conn.execute("set role dirty") and 1 / 0),
}


@task(max_attempts=1)
def break_it(deed, job: Job):
    with job.transaction() as conn:
        conn.execute("set statement_timeout = '3min'")
        conn.execute("select pg_advisory_lock(4711)")
        conn.execute("insert into public.runs values (%s)", [job.id])
        if deed == "an error":
            raise ValueError("I have failed")
        BREAKS[deed][1](conn)


@task(max_attempts=1)
async def break_it_async(deed, job: AsyncJob):
    async with job.transaction() as conn:
        await conn.execute("set statement_timeout = '3min'")
        await conn.execute("select pg_advisory_lock(4711)")
        await conn.execute("insert into public.runs values (%s)", [job.id])
        if deed == "an error":
            raise ValueError("I have failed")
        if deed == "pipeline":
            await open_pipeline(conn).__aenter__()
        else:
            await BREAKS[deed][1](conn)


@task(delivery="at_most_once", max_attempts=1)
async def innocent_async(payload, job: AsyncJob):
    assert await job.once("a")
    assert await job.step("b", int, "3") == 3


@task(delivery="at_most_once", max_attempts=1)
def innocent(payload, job: Job):
    assert job.once("a")
    assert job.step("b", int, "3") == 3


@task(max_attempts=1)
def defers(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("set local role dirty")
        conn.execute("insert into public.deferring values (%s)", [job.id])


@task(max_attempts=1)
async def defers_async(payload, job: AsyncJob):
    async with job.transaction() as conn:
        await conn.execute("set local role dirty")
        await conn.execute("insert into public.deferring values (%s)", [job.id])


@task(max_attempts=1)
def adds_as_tenant(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("set local role dirty")
        job.add_job("nobody")


@task(max_attempts=1)
async def adds_as_tenant_async(payload, job: AsyncJob):
    async with job.transaction() as conn:
        await conn.execute("set local role dirty")
        await job.add_job("nobody")
