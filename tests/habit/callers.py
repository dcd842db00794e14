"""What people ordinarily do where they add jobs. Each function adds one with the payload {"n": 1}, and
returns its id."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import psycopg_pool
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from psycopg.rows import class_row, dict_row, namedtuple_row, scalar_row

import pyworker
from tests.habit.innocent import pong

CALLERS: list[Callable[[str], int]] = []
ONE = {"n": 1}


def caller(function: Callable[[str], int]) -> Callable[[str], int]:
    CALLERS.append(function)
    return function


@caller
def sql_alone(dsn):
    with psycopg.connect(dsn) as conn:
        return conn.execute("""select id from pyworker.add_job('pong', '{"n": 1}')""").fetchone()[0]


@caller
def a_transaction_by_with(dsn):
    with psycopg.connect(dsn) as conn:
        return pyworker.add_job(conn, "pong", ONE).id


@caller
def autocommit(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        return pong.add(conn, ONE).id


@caller
def a_connection_of_dict_row(dsn):
    with psycopg.connect(dsn, row_factory=dict_row) as conn:
        job = pong.add(conn, ONE)
        assert conn.execute("select 1 as one").fetchone() == {"one": 1}
        return job.id


@caller
def connections_of_other_row_factories(dsn):
    for factory in (namedtuple_row, scalar_row, class_row(dict)):
        with psycopg.connect(dsn, row_factory=factory) as conn:
            job = pong.add(conn, ONE)
            assert pyworker.get_job(conn, job.id).payload == ONE
    return job.id


@caller
def a_client_cursor_factory(dsn):
    with psycopg.connect(dsn, cursor_factory=psycopg.ClientCursor) as conn:
        return pong.add(conn, ONE).id


@caller
def a_cursor_with_unread_rows(dsn):
    with psycopg.connect(dsn) as conn, conn.cursor() as cursor:
        cursor.execute("select generate_series(1, 3)")
        job = pong.add(cursor, ONE)
        assert [row[0] for row in cursor] == [1, 2, 3]
        return job.id


@caller
def a_savepoint_that_rolls_back_another_add(dsn):
    with psycopg.connect(dsn) as conn:
        job = pong.add(conn, ONE)
        with contextlib.suppress(ZeroDivisionError), conn.transaction():
            pong.add(conn, {"n": 2})
            raise ZeroDivisionError
        return job.id


@caller
def a_refused_add_in_a_savepoint(dsn):
    with psycopg.connect(dsn) as conn:
        job = pong.add(conn, ONE)
        try:
            with conn.transaction():
                pyworker.add_job(conn, "", ONE)
        except pyworker.InvalidArgument:
            pass
        return job.id


@caller
def a_pool(dsn):
    with psycopg_pool.ConnectionPool(dsn, min_size=1, open=True) as pool, pool.connection() as conn:
        return pong.add(conn, ONE).id


@caller
def a_search_path_of_the_application(dsn):
    with psycopg.connect(dsn, options="-c search_path=public") as conn:
        return pong.add(conn, ONE).id


@caller
def serializable(dsn):
    with psycopg.connect(dsn) as conn:
        conn.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        return pong.add(conn, ONE).id


@caller
def psycopg_async(dsn):
    async def main():
        async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as conn:
            return (await pong.add(conn, ONE)).id

    return asyncio.run(main())


@caller
def asyncpg_in_a_transaction(dsn):
    async def main():
        conn = await asyncpg.connect(dsn)
        try:
            async with conn.transaction():
                return (await pong.add(conn, ONE)).id
        finally:
            await conn.close()

    return asyncio.run(main())


@caller
def asyncpg_with_a_codec_for_json(dsn):
    import json

    async def main():
        conn = await asyncpg.connect(dsn)
        try:
            for name in ("json", "jsonb"):
                await conn.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
            return (await pong.add(conn, ONE)).id
        finally:
            await conn.close()

    return asyncio.run(main())


@caller
def asyncpg_from_a_pool(dsn):
    async def main():
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as conn:
            return (await pong.add(conn, ONE)).id

    return asyncio.run(main())


@caller
def psycopg2_with_real_dict_cursors(dsn):
    conn = psycopg2.connect(dsn, cursor_factory=psycopg2.extras.RealDictCursor)
    with contextlib.closing(conn), conn:
        return pong.add(conn, ONE).id


def _engine(dsn: str, driver: str, **options: Any) -> Any:
    return sqlalchemy.create_engine(dsn.replace("postgresql:", f"postgresql+{driver}:", 1), **options)


@caller
def sqlalchemy_begin(dsn):
    engine = _engine(dsn, "psycopg")
    with engine.begin() as conn:
        job_id = pong.add(conn, ONE).id
    engine.dispose()
    return job_id


@caller
def sqlalchemy_session(dsn):
    engine = _engine(dsn, "psycopg2")
    with sqlalchemy.orm.Session(engine) as session:
        job_id = pong.add(session, ONE).id
        session.commit()
    engine.dispose()
    return job_id


@caller
def sqlalchemy_scoped_session(dsn):
    engine = _engine(dsn, "psycopg")
    session = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine))
    job_id = pong.add(session, ONE).id
    session.commit()
    session.remove()
    engine.dispose()
    return job_id


@caller
def sqlalchemy_nested(dsn):
    engine = _engine(dsn, "psycopg")
    with sqlalchemy.orm.Session(engine) as session, session.begin():
        job_id = pong.add(session, ONE).id
        nested = session.begin_nested()
        pong.add(session, {"n": 2})
        nested.rollback()
    engine.dispose()
    return job_id


@caller
def sqlalchemy_async_session(dsn):
    async def main():
        engine = sqlalchemy.ext.asyncio.create_async_engine(
            dsn.replace("postgresql:", "postgresql+asyncpg:", 1)
        )
        async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session, session.begin():
            job_id = (await pong.add(session, ONE)).id
        await engine.dispose()
        return job_id

    return asyncio.run(main())


@caller
def threads_with_a_connection_each(dsn):
    def add(_):
        with psycopg.connect(dsn) as conn:
            return pong.add(conn, ONE).id

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(add, range(8)))[-1]


@caller
def threads_on_one_connection(dsn):
    found: list[int] = []
    with psycopg.connect(dsn) as conn:
        threads = [threading.Thread(target=lambda: found.append(pong.add(conn, ONE).id)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found[-1]


@caller
def another_process(dsn):
    program = (
        "import sys, psycopg, pyworker\n"
        "with psycopg.connect(sys.argv[1]) as conn:\n"
        "    print(pyworker.add_job(conn, 'pong', {'n': 1}).id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, dsn], capture_output=True, text=True, check=True
    )  # fmt: skip
    return int(done.stdout)


@caller
def a_trigger(dsn):
    with psycopg.connect(dsn) as conn:
        conn.execute("""
            create table if not exists public.habit_orders (id int, job_id bigint);
            create or replace function public.habit_ordered() returns trigger language plpgsql as $$
            begin
                new.job_id := (pyworker.add_job('pong', json_build_object('n', new.id))).id;
                return new;
            end $$;
            create or replace trigger habit_ordered before insert on public.habit_orders
                for each row execute function public.habit_ordered()""")
        row = conn.execute("insert into public.habit_orders (id) values (1) returning job_id").fetchone()
        return row[0]


@caller
def add_many(dsn):
    with psycopg.connect(dsn) as conn:
        return pyworker.add_jobs(conn, [{"identifier": pong, "payload": ONE}] * 3)[-1].id
