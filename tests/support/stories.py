"""What jobs of queues and sequences went through, and what of it breaks a rate or an order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg

from tests.support.rates import worst

RATES = {"r20": (20, "0.5 s"), "r3": (3, "0.3 s"), "both": (30, "1 s")}
# What the rows of jobs went through, as their transactions wrote it. `decided`: before the statement.
RECORD = """
    create table public.story (
        at timestamptz not null default clock_timestamp(), what text, id bigint, run bigint, queue text,
        sequence text, decided timestamptz);
    create function public.note() returns trigger language plpgsql as $$
    begin
        if tg_op = 'UPDATE' and new.state = 'running' and old.state <> 'running' then
            insert into public.story (what, id, run, queue, sequence, decided)
            values ('start', new.id, new.run, new.queue_name, new.sequence_key, new.claimed_at);
        elsif old.state = 'running' and (tg_op = 'DELETE' or new.state <> 'running') then
            insert into public.story (what, id, run, queue, sequence)
            values ('end', old.id, old.run, old.queue_name, old.sequence_key);
        elsif tg_op = 'UPDATE' and new.sequence_head and old.sequence_head is not true then
            insert into public.story (what, id, run, queue, sequence, decided)
            values ('head', new.id, new.run, new.queue_name, new.sequence_key, new.updated_at);
        end if;
        return null;
    end $$;
    create trigger note after update or delete on pyworker.live_jobs
        for each row execute function public.note();
"""


def judge(conn: psycopg.Connection[Any], known: dict[int, Any], by_hand: set[int]) -> Iterator[Any]:
    """What the histories have that they must not. `known`: since when every session could see a job of a
    sequence; `by_hand`: jobs that people have moved."""
    rows = conn.execute("select * from public.story order by at").fetchall()
    for queue, (limit, period) in RATES.items():
        times = sorted(row.decided for row in rows if row.what == "start" and row.queue == queue)
        length = timedelta(seconds=float(period.split()[0]))
        if times and worst(times, length) > limit:
            yield "rate", queue, worst(times, length)
    ended = conn.execute("select id from pyworker.finished_jobs group by 1 having count(*) > 1").fetchall()
    yield from (("twice", row) for row in ended)
    yield from disorder(rows, known, by_hand)


def disorder(rows: list[Any], known: dict[int, Any], by_hand: set[int]) -> Iterator[Any]:
    """A job that became the head of its sequence, though one of a lower id could be seen before that."""
    of: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        if row.sequence:
            of[row.sequence].append(row)
    for sequence, some in of.items():
        first_start = {row.id: row.at for row in reversed(some) if row.what == "start"}
        for row in (row for row in some if row.what == "head"):
            for id, at in known.items():
                seen = id < row.id and at < row.decided and id in first_start
                if seen and first_start[id] > row.at and not {id, row.id} & by_hand:
                    yield "order", sequence, id, row
