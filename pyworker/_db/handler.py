"""What the job of a handler does in the database: its start, its end, and what is between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from .._texts import printable
from .lent import last
from .pool import Pool
from .text import quoted


class HandlerCalls(Pool):
    """Over connections of one kind; each call is a coroutine. The statements are on one line of SQL each."""

    async def _value(self, call: str, *parameters: Any) -> Any:
        return (await self.row(f"select {quoted(self.schema)}.{call}", *parameters))[0]

    async def start_jobs(self, job_ids: Sequence[int], runs: Sequence[int]) -> list[int]:
        """Start these jobs, which are at_most_once from now on. The ids of those that may run.

        Locked in the order of ids, as everywhere."""
        if self.rehearsal:
            return [*job_ids]
        jobs = "select * from unnest(%s::bigint[], %s::bigint[]) i(id, run) order by id offset 0"
        start = f"{quoted(self.schema)}.start_job(j.id, j.run, 'at_most_once') as started"
        ids = "coalesce(array_agg(s.id) filter (where s.started), '{}')"
        statement = f"select {ids} from (select j.id, {start} from ({jobs}) j) s"
        return (await self.row(statement, [*job_ids], [*runs]))[0]

    async def once(self, key: str) -> bool:
        return await self._value("once(%s)", key)

    async def set_progress(self, job_id: int, run: int, progress: float, message: str | None) -> None:
        # No report of progress waits for the disk or a standby.
        call = "set_progress(%s, %s, %s, %s), set_config('synchronous_commit', 'off', true)"
        if not self.rehearsal:
            await self._value(call, job_id, run, progress, message and printable(message))

    async def steps(self, job_id: int) -> str:
        """All saved steps as one JSON text: an object of the results by name."""
        source = f"{quoted(self.schema)}.get_steps(%s) s"
        objects = "coalesce(json_object_agg(s.name, s.result), '{}')::text"
        return (await self.row(f"select {objects} from {source}", job_id))[0]

    async def inputs(self, job_id: int) -> str:
        """How the jobs have ended that this one has waited for, as JSON text."""
        source = f"{quoted(self.schema)}.dependency_results(%s) r"
        one = "json_build_object('id', r.id, 'ref', r.ref, 'state', r.state, 'result', r.result)"
        found = f"select coalesce(json_agg({one} order by r.id), '[]')::text from {source}"
        return (await self.row(found, job_id))[0]

    async def save_step(
        self, job_id: int, run: int, name: str, result: str, within: Any | None = None
    ) -> None:
        """`within`: the connection that was lent, whose last statement this is."""
        statement = f"select {quoted(self.schema)}.save_step(%s, %s, %s, %s::jsonb)"
        if within is not None:
            await self._last(within, statement, job_id, run, name, result)
        elif not self.rehearsal:
            await self.row(statement, job_id, run, name, result)

    async def wait_for_signal(
        self, job_id: int, run: int, name: str, timeout: float | None, nth: int
    ) -> str | None:
        """The answer as JSON text; None if the job waits from now on."""
        if self.rehearsal:
            source = f"{quoted(self.schema)}.get_steps(%s) s where s.name = %s order by s.at"
            nth_of = f"select (select s.result::text from {source} offset %s limit 1)"
            return (await self.row(nth_of, job_id, name, nth - 1))[0]
        call = "wait_for_signal(%s, %s, %s, make_interval(secs => %s), %s)::text"
        return await self._value(call, job_id, run, name, timeout, nth)

    async def finish_job(self, conn: Any, job_id: int, run: int) -> str:
        """Complete the job as the last statement of a transaction that was lent.

        Returns the transaction's id, for `committed`."""
        statement = f"select {quoted(self.schema)}.finish_job(%s, %s), pg_current_xact_id()::text"
        return (await self._last(conn, statement, job_id, run))[1]

    async def committed(self, job_id: int, run: int, transaction: str) -> bool:
        """True if a transaction whose COMMIT got no reply has committed."""
        while (
            known := await self._value("was_finished(%s, %s, %s::xid8)", job_id, run, transaction)
        ) is None:
            await self.pause(0.1)
        return known

    async def _last(self, conn: Any, statement: str, *parameters: Any) -> Any:
        if self.rehearsal:
            await last(conn, "select")
            raise psycopg.Rollback
        return await last(conn, statement, *parameters)
