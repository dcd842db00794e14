"""What handlers do on the connection of their job."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg.rows import class_row, dict_row, namedtuple_row, scalar_row

from pyworker import AsyncJob, Job
from tests.habit.table import habit, told

ONE = "select 1 as one"


@dataclass
class One:
    one: int


@habit(returns={"one": 1})
@told
def dict_row_on_the_connection(payload, job: Job):
    with job.transaction() as conn:
        conn.row_factory = dict_row
        return conn.execute(ONE).fetchone()


@habit(returns={"one": 1})
@told
async def dict_row_on_the_async_connection(payload, job: AsyncJob):
    async with job.transaction() as conn:
        conn.row_factory = dict_row
        return await (await conn.execute(ONE)).fetchone()


@habit(returns=1)
@told
def namedtuple_row_on_the_connection(payload, job: Job):
    with job.transaction() as conn:
        conn.row_factory = namedtuple_row
        return conn.execute(ONE).fetchone().one


@habit(returns=1)
@told
def class_row_on_the_connection(payload, job: Job):
    with job.transaction() as conn:
        conn.row_factory = class_row(One)
        return conn.execute(ONE).fetchone().one


@habit(returns=1)
@told
async def scalar_row_on_the_async_connection(payload, job: AsyncJob):
    async with job.transaction() as conn:
        conn.row_factory = scalar_row
        return await (await conn.execute(ONE)).fetchone()


@habit(returns=[True, {"one": 1}])
@told
def everything_of_the_job_after_dict_row(payload, job: Job):
    with job.transaction() as conn:
        conn.row_factory = dict_row
        first = job.once("dict_row")
        job.progress(0.5, "half")
        job.log("in a transaction with dict_row")
        job.add_job("pong", {"from": "dict_row"})
        return [first, conn.execute(ONE).fetchone()]


@habit(returns={"one": 1})
def dict_row_in_a_step_transaction(payload, job: Job):
    with job.step_transaction("one") as step:
        if not step.done:
            step.connection.row_factory = dict_row
            step.result = step.connection.execute(ONE).fetchone()
    return step.result


@habit(returns={"one": 1})
@told
def a_cursor_with_dict_row(payload, job: Job):
    with job.transaction() as conn, conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(ONE).fetchone()


@habit(returns=3)
@told
def a_server_side_cursor(payload, job: Job):
    with job.transaction() as conn, conn.cursor(name="many") as cursor:
        cursor.itersize = 1
        cursor.execute("select generate_series(1, 3)")
        return len(list(cursor))


@habit(returns="a\t1\n")
@told
def a_copy(payload, job: Job):
    with job.transaction() as conn:
        with conn.cursor().copy("copy (select 'a', 1) to stdout") as copy:
            return "".join(bytes(part).decode() for part in copy)


@habit(returns=2)
@told
def executemany_into_a_temporary_table(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("create temporary table habit_temporary (n int)")
        conn.cursor().executemany("insert into habit_temporary values (%s)", [(1,), (2,)])
        return conn.execute("select count(*) from habit_temporary").fetchone()[0]


@habit(returns=[1, 2])
@told
def a_pipeline(payload, job: Job):
    with job.transaction() as conn:
        with conn.pipeline():
            one, two = conn.execute("select 1"), conn.execute("select 2")
        return [one.fetchone()[0], two.fetchone()[0]]


@habit(returns="went on")
@told
def a_failed_statement_in_a_savepoint(payload, job: Job):
    with job.transaction() as conn:
        try:
            with conn.transaction():
                conn.execute("select 1 / 0")
        except psycopg.errors.DivisionByZero:
            return "went on"


@habit(fails="transaction")
def a_failed_statement_swallowed(payload, job: Job):
    """The server would answer its COMMIT by ROLLBACK: the job has failed, and says why."""
    with job.transaction() as conn:
        try:
            conn.execute("select 1 / 0")
        except psycopg.Error:
            pass


@habit(fails="transaction")
async def a_failed_statement_swallowed_async(payload, job: AsyncJob):
    async with job.transaction() as conn:
        try:
            await conn.execute("select 1 / 0")
        except psycopg.Error:
            pass


@habit(fails="step")
def a_failed_statement_swallowed_in_a_step(payload, job: Job):
    try:
        with job.step_transaction("step") as step:
            if not step.done:
                try:
                    step.connection.execute("select 1 / 0")
                except psycopg.Error:
                    pass
    except Exception as error:
        raise RuntimeError("the step was not saved") from error


@habit()
def a_setting_of_the_session(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("set statement_timeout = '7s'")
        conn.execute("set timezone = 'Asia/Tokyo'")
        conn.execute("set datestyle = 'German'")


@habit()
async def a_setting_of_the_async_session(payload, job: AsyncJob):
    async with job.transaction() as conn:
        await conn.execute("set statement_timeout = '7s'")
        await conn.execute("set search_path = pg_catalog")


@habit()
def a_search_path(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("set search_path = pg_catalog")


@habit(returns="5s")
@told
def a_local_setting(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("set local statement_timeout = '5s'")
        return conn.execute("show statement_timeout").fetchone()[0]


@habit(returns="pg_monitor")
@told
def a_local_role(payload, job: Job):
    """A tenant's role for some statements, reset before the block ends."""
    with job.transaction() as conn:
        conn.execute("set local role pg_monitor")
        found = conn.execute("select current_user").fetchone()[0]
        conn.execute("reset role")
        return found


@habit(ends="completed")
def an_advisory_lock_of_the_session(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("select pg_advisory_lock(4711)")


@habit()
def a_listen(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("listen habit")


@habit()
def a_prepared_statement(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("prepare habit_statement as select 1")
        for _ in range(8):  # psycopg prepares it by itself as well
            conn.execute("select %s::int + 1", [1], prepare=True)


@habit(returns="off")
@told
def a_read_only_transaction_before_the_job_ends(payload, job: Job):
    """What a report does to be safe: a read-only look in a savepoint's block, through a setting."""
    with job.transaction() as conn:
        return conn.execute("show transaction_read_only").fetchone()[0]


@habit()
def an_isolation_level(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("select 1")


@habit()
def attributes_of_the_connection(payload, job: Job):
    with job.transaction() as conn:
        conn.prepare_threshold = None
        conn.add_notice_handler(lambda notice: None)
        conn.execute("do $$ begin raise notice 'a notice'; end $$")


@habit(returns=5)
def a_step_for_each_page(payload, job: Job):
    return sum(job.step(f"page {page}", lambda: 1) for page in range(5))


@habit(returns=[True, False])
def once_and_once_more(payload, job: Job):
    return [job.once("mail"), job.once("mail")]


@habit(fails="deliberate")
def an_error_in_the_transaction(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("create table public.habit_never (n int)")
        raise RuntimeError("deliberate")


@habit(returns=[1, 1])
def a_connection_of_the_handlers_own(payload):
    import os

    with psycopg.connect(os.environ["DATABASE_URL"], row_factory=dict_row) as conn:
        one = conn.execute(ONE).fetchone()["one"]
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        return [one, conn.execute(ONE).fetchone()[0]]


@habit(returns="kept")
@told
def a_closed_connection(payload, job: Job):
    """A handler that closes what it was lent ends its transaction, and is tried on another connection."""
    try:
        with job.transaction() as conn:
            conn.close()
    except psycopg.Error:
        return "kept"
