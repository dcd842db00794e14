"""One exchange with the database per turn: reports go out, claimed jobs come back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from .._db.connect import LOST, forbids, is_lost
from .._db.database import Database
from .._db.text import Call
from .._escape import shown
from ..errors import ClaimLost, sqlstate_of, translated
from .config import RunConfig
from .outcomes import KINDS, Failure, Outcomes, unstorable

log = logging.getLogger("pyworker.worker")


class Exchange:
    def __init__(self, config: RunConfig, worker_id: int, take_back: Callable[[Outcomes], None]) -> None:
        self.config = config
        self.worker_id = worker_id
        self.task_names: Sequence[str] = ()
        self._take_back = take_back  # gets outcomes that may not have been stored

    def work(self, db: Database, outcomes: Outcomes, room: int) -> list[tuple[Any, ...]] | None:
        """Report and claim in one round trip. None if a refused report prevented the claim."""
        try:
            rows = self._send(db, outcomes, room)
        except psycopg.Error as error:
            if _connection_lost(error):
                # The commit may have succeeded. Report everything again: the database ignores what
                # it has accepted before.
                self._take_back(outcomes)
                raise
            with translated():
                if sqlstate_of(error) in ("PW004",) or not outcomes:
                    raise
            self._report_one_by_one(db, outcomes, error)
            return None
        except Exception as error:  # an outcome could not be written as SQL
            self._report_one_by_one(db, outcomes, error)
            return None
        self._tell_of_ends(db, outcomes.failed)
        return rows

    def _send(self, db: Database, outcomes: Outcomes, room: int) -> list[tuple[Any, ...]]:
        reports = outcomes.reports(db)
        replies: list[psycopg.Cursor[Any]] = []
        with db.conn.pipeline() if reports else contextlib.nullcontext() as pipeline:
            for call in reports:
                # One transaction for each kind: a report locks its jobs in the order of their ids,
                # and several reports in one transaction would not keep that order.
                if replies and pipeline:
                    pipeline.sync()
                replies.append(db.send(call))
            claim = db.send(self._claim(db, room, not reports)) if room else None
        for reply in replies:
            reply.fetchall()
        return claim.fetchall() if claim else []

    def _claim(self, db: Database, room: int, alone: bool) -> Call:
        only, without = self.config.queues or None, self.config.forbidden_flags or None
        return db.claim_call(self.worker_id, room, self.task_names, only, without, alone)

    def _report_one_by_one(self, db: Database, outcomes: Outcomes, error: Exception) -> None:
        """Report each job separately after a report was refused, as one job may be the reason.

        If the database forbids the report for any values, take it back and raise that error at the
        end."""
        forbidden: psycopg.Error | None = None
        if not (isinstance(error, psycopg.Error) and forbids(error)):
            log.warning("a report was refused, going on one by one: %s", _first_line(error))
        for kind in KINDS:
            for item in getattr(outcomes, kind):
                one = Outcomes.of(kind, item)
                try:
                    db.send(one.reports(db)[0]).fetchall()
                except Exception as problem:
                    if isinstance(problem, psycopg.Error) and (
                        _connection_lost(problem, True) or forbids(problem)
                    ):
                        self._take_back(one)
                        forbidden = problem if forbids(problem) else forbidden
                        continue
                    with contextlib.suppress(ClaimLost), translated():
                        self._refused(db, kind, item, problem)
                else:
                    self._tell_of_ends(db, one.failed)
        if forbidden:
            raise forbidden

    def _refused(self, db: Database, kind: str, item: Any, error: Exception) -> None:
        if sqlstate_of(error) == "PW002":
            return  # the claim was lost: there is nothing to report
        log.error("job %s: its end could not be stored: %s", item[0], _first_line(error))
        db.send(db.fail_call([unstorable(item[0], item[1], kind, error)])).fetchall()

    def _tell_of_ends(self, db: Database, failed: Sequence[Failure]) -> None:
        """Log the jobs that these failures discarded. The database decides, so query it."""
        last = {failure.id: failure.task for failure in failed if failure.last}
        with contextlib.suppress(psycopg.Error):  # a lost connection shows in the next turn
            for job_id, reason in db.discarded(list(last)) if last else []:
                extra = {"job_id": job_id, "task": last[job_id]}
                log.error(
                    "job %s (%s) is discarded now: %s",
                    job_id,
                    shown(last[job_id]),
                    shown(reason or ""),
                    extra=extra,
                )


def _connection_lost(error: psycopg.Error, or_busy: bool = False) -> bool:
    """True if the connection is lost; with or_busy, also if the same report may succeed later."""
    if sqlstate_of(error) is None and isinstance(error, psycopg.DataError | psycopg.ProgrammingError):
        return False  # psycopg refused to send a value
    return is_lost(error) or (or_busy and isinstance(error, LOST))


def _first_line(error: Exception) -> str:
    return shown(str(error).strip().split("\n")[0])
