"""What the jobs of handlers use: connections of both kinds, and the lines that they log."""

from __future__ import annotations

from .._db.handler import HandlerCalls
from .config import RunConfig
from .log import Lines


class Connections:
    """Those of a job and of an async job. `rehearsal`: see Pool."""

    def __init__(self, config: RunConfig, rehearsal: bool = False) -> None:
        self.schema = config.schema
        self.blocking, self.awaited = (
            HandlerCalls(config.dsn, config.schema, config.concurrency, awaits=awaits, rehearsal=rehearsal)
            for awaits in (False, True)
        )
        self.lines = Lines()

    def meet(self, server: str, pooled: bool) -> None:
        """The worker's own connection leads to this server, behind a transaction pooler or not."""
        for calls in (self.blocking, self.awaited):
            calls.pooled = pooled
            calls.leave_all_but(server)
