"""Every public call of the package on a connection, as a member of each of the four roles."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict

import pyworker
from pyworker import RoleMissing
from pyworker._db.rights import CALLS
from tests.roles.conftest import GROUPS, Logins, one_role, state

ADDED = "select count(*) = {} from pyworker.jobs where task_identifier = 'added'"
GONE = "select id is null from pyworker.get_job(%(waiting)s)"
# The arguments, from the ids of the zoo, and what the database answers with true if it was done.
CASES: dict[str, tuple[Callable[[dict[str, int]], tuple[Any, ...]], str]] = {
    "add_job": (lambda _: ("added", {}), ADDED.format(1)),
    "add_jobs": (lambda _: ([{"identifier": "added"}, {"identifier": "added"}],), ADDED.format(2)),
    "add_batch": (lambda _: ([{"identifier": "added"}], "added"), ADDED.format(2)),
    "extend_batch": (lambda ids: (ids["callback"], [{"identifier": "added"}]), ADDED.format(1)),
    "flow": (lambda _: (), ADDED.format(1)),
    "remove_job": (lambda _: ("k",), GONE),
    "send_signal": (
        lambda ids: (ids["waiting"], "go"),
        "select exists (select from pyworker.job_signals(%(waiting)s) where name = 'go')",
    ),
    "wait_for_job": (lambda ids: (ids["discarded"], 5), "select true"),
    "get_job": (lambda ids: (ids["waiting"],), "select true"),
    "cancel_job": (
        lambda ids: (ids["waiting"],), "select state = 'cancelled' from pyworker.get_job(%(waiting)s)",
    ),
    "retry_job": (
        lambda ids: (ids["discarded"],), "select state = 'available' from pyworker.get_job(%(discarded)s)",
    ),
    "delete_job": (lambda ids: (ids["waiting"],), GONE),
}  # fmt: skip


def on_psycopg(dsn: str, call: Callable[[Any], Any]) -> Any:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return call(conn)


def on_psycopg_async(dsn: str, call: Callable[[Any], Any]) -> Any:
    async def run() -> Any:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            return await call(conn)

    return asyncio.run(run())


def on_asyncpg(dsn: str, call: Callable[[Any], Any]) -> Any:
    async def run() -> Any:
        given: dict[str, Any] = dict(conninfo_to_dict(dsn))
        conn = await asyncpg.connect(
            host=given["host"], port=given.get("port"), user=given["user"], database=given["dbname"]
        )
        try:
            return await call(conn)
        finally:
            await conn.close()

    return asyncio.run(run())


def on_psycopg2(dsn: str, call: Callable[[Any], Any]) -> Any:
    conn = psycopg2.connect(dsn)
    try:
        with conn:
            return call(conn)
    finally:
        conn.close()


def on_sqlalchemy(dsn: str, call: Callable[[Any], Any]) -> Any:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    try:
        with engine.begin() as conn:
            return call(conn)
    finally:
        engine.dispose()


WAYS = [on_psycopg, on_psycopg_async, on_asyncpg, on_psycopg2, on_sqlalchemy]


def in_a_flow(conn: Any) -> None:
    with pyworker.flow(conn) as flow:
        flow.add("added")


async def in_a_flow_async(conn: Any) -> None:
    async with pyworker.flow(conn) as flow:
        flow.add("added")


def test_each_call_on_a_connection_has_its_roles_and_is_tried() -> None:
    public = {
        name
        for name in pyworker.__all__
        if inspect.isfunction(call := getattr(pyworker, name))
        and "conn" in inspect.signature(call).parameters
    }
    assert public == set(CALLS), "a new call needs an entry in pyworker._db.rights.CALLS"
    assert public == set(CASES), "and a case here"


# Every role on psycopg's connections; on the others one that may, and one that may not.
TRIED = [
    pytest.param(verb, way, group, id=f"{verb}-{way.__name__}-{group}")
    for verb in CASES
    for way in WAYS
    for group in (GROUPS if way is on_psycopg else ("reader", "admin"))
    if verb != "wait_for_job" or way in (on_psycopg, on_psycopg_async)  # those that it waits on
]


@pytest.mark.parametrize(("verb", "way", "group"), TRIED)
def test_a_call_does_what_it_says_or_names_the_role_that_is_missing(
    db: Any, people: Logins, zoo: dict[str, int], verb: str, way: Any, group: str
) -> None:
    arguments, done = CASES[verb]
    if verb == "extend_batch":
        zoo["callback"] = pyworker.add_batch(db, [{"identifier": "t"}], "t").callback.id
    before = state(db)
    dsn = people.dsn_of(people.of[group])

    def call(conn: Any) -> Any:
        if verb == "flow":
            return in_a_flow_async(conn) if "async" in way.__name__ else in_a_flow(conn)
        return getattr(pyworker, verb)(conn, *arguments(zoo))

    if group in CALLS[verb]:
        way(dsn, call)
        assert db.execute(done, zoo).fetchone() == (True,)
    else:
        with pytest.raises(RoleMissing) as refused:
            way(dsn, call)
        assert refused.value.role == f"pyworker_{CALLS[verb][0]}"
        assert one_role(str(refused.value)) == CALLS[verb][0]
        assert str(refused.value).startswith(f"{'add_jobs' if verb == 'flow' else verb} needs the role ")
        assert state(db) == before


def test_a_task_names_the_role_as_well(db: Any, people: Logins) -> None:
    task = pyworker.task("added by a role")(lambda payload: None)
    with psycopg.connect(people.dsn_of(people.of["reader"])) as conn:
        with pytest.raises(RoleMissing, match="needs the role pyworker_producer"):
            task.add(conn, {})


def test_a_refusal_of_the_callers_own_is_left_as_it_is(db: Any, dsn: str, people: Logins) -> None:
    """Here of a trigger: it is no role of pyworker's that is missing."""
    db.execute("create table public.closed (id bigint)")
    db.execute(
        "create function public.look() returns trigger language plpgsql as"
        " $$ begin perform from public.closed; return new; end $$"
    )
    db.execute("create table public.orders (id bigint)")
    db.execute(f"grant insert on public.orders to {people.of['producer']}")
    db.execute(
        "create trigger look before insert on public.orders for each row execute function public.look()"
    )
    try:
        with psycopg.connect(people.dsn_of(people.of["producer"])) as conn:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute("insert into public.orders values (1)")
    finally:
        db.execute("drop table public.orders, public.closed; drop function public.look")
