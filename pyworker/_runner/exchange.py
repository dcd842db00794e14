"""One call of `work` per turn: reports go out, claimed jobs come back."""

from __future__ import annotations

import contextlib
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg

from .._db.connect import LOST, forbids, is_lost
from .._db.database import Database
from .._escape import shown
from ..errors import sqlstate_of, translated
from .config import RunConfig
from .lines import Gathered, Lines, as_items, portions
from .outcomes import Outcome, Outcomes, unstorable
from .shared import COUNTED
from .shares import Share

log = logging.getLogger("pyworker.worker")

NOTHING = Share(0, None)
# How long a turn waits for a job that another session has locked, and a report that was set aside.
LOCK_TIMEOUT, FOR_ONE = "1s", "200ms"
MANY = 5  # locked jobs, after which all other reports are set aside, too: perhaps a table is locked


class Turn(NamedTuple):
    """The answer of `work`."""

    jobs: list[tuple[Any, ...]]  # as Claimed takes them
    again_in: float  # seconds until the next call at the latest


class _LinesSuspected(Exception):
    """A turn was refused that carried lines of job.log: perhaps because of them."""


class Exchange:
    def __init__(
        self,
        config: RunConfig,
        worker_id: int,
        take_back: Callable[[Outcomes], None],
        lines: Lines,
        count: Callable[..., object] = dict,
        set_aside: Callable[[Outcomes], None] | None = None,
    ) -> None:
        self.config = config
        self._lines = lines
        self._count = count  # is told how many jobs ended how
        self.worker_id = worker_id
        self.task_names: Sequence[str] = ()
        self._take_back = take_back  # gets outcomes that may not have been stored
        # Gets outcomes whose jobs another session has locked. Without it, reports wait for as long as it
        # takes.
        self._set_aside = set_aside
        self._again: set[tuple[int, int]] = set()  # their jobs and runs

    def work(self, db: Database, outcomes: Outcomes, share: Share) -> Turn | None:
        """Report and claim, and send what jobs have logged. None if a refused report prevented the claim."""
        waiting = [*portions(self._lines.take())]
        if len(waiting) == 1:
            with contextlib.suppress(_LinesSuspected):
                return self._work(db, outcomes, share, waiting[0])
        # Before the reports: when a job runs again, its former run may log no more.
        while waiting:
            self._send_alone(db, outcomes, waiting)
        return self._work(db, outcomes, share)

    def _send_alone(self, db: Database, outcomes: Outcomes, waiting: list[Gathered]) -> None:
        """Send the first of these portions in a call of its own. Drops it if the database refuses it."""
        lines = waiting.pop(0)
        try:
            self._call(db, Outcomes(), lines=lines)
        except psycopg.Error as error:
            if _connection_lost(error, True):
                self._take_back(outcomes)
                for portion in (lines, *waiting):
                    self._lines.put_back(portion)
                raise
            with translated():
                if sqlstate_of(error) == "PW004":
                    raise
            if forbids(error):
                self._lines.put_back(lines)
            self._lines.refused(error)

    def _work(
        self, db: Database, outcomes: Outcomes, share: Share, lines: Gathered | None = None
    ) -> Turn | None:
        try:
            turn, refused = self._call(db, outcomes, share, lines)
        except psycopg.Error as error:
            if _connection_lost(error):
                # The commit may have succeeded. Report everything again: the database ignores what
                # it has accepted before.
                self._again.update(outcome[:2] for outcome in outcomes)
                self._take_back(outcomes)
                self._lines.put_back(lines or {})
                raise
            if lines and sqlstate_of(error) != "PW004":
                raise _LinesSuspected from error
            with translated():
                if sqlstate_of(error) in ("PW004",) or not outcomes:
                    raise
            self._report_one_by_one(db, outcomes, error)
            return None
        except Exception as error:  # an outcome could not be written as SQL
            if lines:
                raise _LinesSuspected from error
            self._report_one_by_one(db, outcomes, error)
            return None
        if refused:
            self._fail_refused(db, outcomes, refused)
        self._tell_of_ends(db, outcomes, refused)
        return turn

    def report_again(self, db: Database, outcomes: Outcomes) -> None:
        """Report outcomes that were set aside."""
        self._report_one_by_one(db, outcomes)

    def _call(
        self,
        db: Database,
        outcomes: Outcomes,
        share: Share = NOTHING,
        lines: Gathered | None = None,
        lock_timeout: str = LOCK_TIMEOUT,
    ) -> tuple[Turn, dict[tuple[int, int], str]]:
        """The turn, and why reports were refused, by id and run."""
        config, items = self.config, [report.item() for report in outcomes.reports]
        rows = db.work(
            self.worker_id, outcomes.done, items, share.most,
            self.task_names, share.queues, config.forbidden_flags or None, share.without,
            as_items(lines) if lines else (), lock_timeout if outcomes and self._set_aside else None,
        )  # fmt: skip
        *_, again_in = rows.pop()
        first = 0
        while first < len(rows) and rows[first][0] == "refused":
            first += 1
        refused = {(row[1], row[2]): row[-2] for row in rows[:first]}
        return Turn([row[1:-2] for row in rows[first:]], again_in), refused

    def _report_one_by_one(self, db: Database, outcomes: Outcomes, error: Exception | None = None) -> None:
        """Report each job separately after a report was refused, as one job may be the reason.

        Those whose jobs another session has locked are set aside.

        If the database forbids the report for any values, take it back and raise that error at the
        end."""
        forbidden: psycopg.Error | None = None
        if error and not (isinstance(error, psycopg.Error) and (forbids(error) or self._is_locked(error))):
            log.warning("a report was refused, going on one by one: %s", _first_line(error))
        waiting, locked = deque(outcomes), 0
        if error is None:
            random.shuffle(waiting)  # so that locked jobs, which come again, keep no others from their turn
        while waiting:
            one = Outcomes()
            one.add(outcome := waiting.popleft())
            try:
                _, refused = self._call(db, one, lock_timeout=FOR_ONE)
            except Exception as problem:
                if self._set_aside and self._is_locked(problem):
                    locked += 1
                    while waiting and locked >= MANY:
                        one.add(waiting.popleft())
                    self._set_aside(one)
                    continue
                if isinstance(problem, psycopg.Error) and (
                    _connection_lost(problem, True) or forbids(problem)
                ):
                    self._take_back(one)
                    forbidden = problem if forbids(problem) else forbidden
                    continue
                with translated():
                    self._fail(db, outcome, _first_line(problem))
            else:
                self._fail_refused(db, one, refused)
                self._tell_of_ends(db, one, refused)
        if forbidden:
            raise forbidden

    def _is_locked(self, error: Exception) -> bool:
        return self._set_aside is not None and isinstance(error, psycopg.errors.LockNotAvailable)

    def _fail_refused(self, db: Database, outcomes: Outcomes, refused: dict[tuple[int, int], str]) -> None:
        """Fail the jobs of malformed reports. A stale report is no fault: the claim was lost."""
        for outcome in outcomes:
            why = refused.get(outcome[:2], "stale")
            if why != "stale":
                self._fail(db, outcome, why)

    def _fail(self, db: Database, outcome: Outcome, why: str) -> None:
        log.error("job %s: its end could not be stored: %s", outcome[0], shown(why))
        self._call(db, Outcomes(reports=[unstorable(outcome, why)]))
        self._count(fail=1)

    def _tell_of_ends(self, db: Database, outcomes: Outcomes, refused: Mapping[tuple[int, int], str]) -> None:
        """Log the jobs that these reports discarded, and count all. The database decides, so query it."""
        if not outcomes:
            return
        if self._again and refused:
            # What is stale now may have been accepted before the connection was lost.
            with contextlib.suppress(psycopg.Error):  # that shows in the next turn
                before = db.accepted(self._again & refused.keys())
                refused = {key: why for key, why in refused.items() if key not in before}
        self._again.clear()
        if not (outcomes.reports or refused):  # the common turn
            self._count(done=len(outcomes.done))
            return
        reports = [report for report in outcomes.reports if report[:2] not in refused]
        did = Counter(report.do for report in reports)
        did["done"] = sum(done[:2] not in refused for done in outcomes.done)
        # Which jobs are discarded, the database says below.
        did["fail"] += did.pop("not_started", 0) + did.pop("discard", 0)
        last = {report.id: report.task for report in reports if report.last}
        with contextlib.suppress(psycopg.Error):
            for job_id, reason in db.discarded(list(last)) if last else []:
                extra = {"job_id": job_id, "task": last[job_id]}
                did.update(discard=1, fail=-1)
                log.error(
                    "job %s (%s) is discarded now: %s",
                    job_id,
                    shown(last[job_id]),
                    shown(reason or ""),
                    extra=extra,
                )
        self._count(**{name: did[name] for name in COUNTED})


def _connection_lost(error: psycopg.Error, or_busy: bool = False) -> bool:
    """True if the connection is lost; with or_busy, also if the same report may succeed later."""
    if sqlstate_of(error) is None and isinstance(error, psycopg.DataError | psycopg.ProgrammingError):
        return False  # psycopg refused to send a value
    return is_lost(error) or (or_busy and isinstance(error, LOST))


def _first_line(error: Exception) -> str:
    return shown(str(error).strip().split("\n")[0])
