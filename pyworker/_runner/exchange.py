"""One call of `work` per turn: what has ended goes out, claimed jobs come back.

    handlers → ended → work(read_reports(…)) → answered: forgotten
                 ▲              │
                 └── no answer ─┘    and aside for some seconds, if another session has the job locked

The database ignores what it has accepted before, so the worker repeats what was not answered.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psycopg

from .._db.database import Database
from .._escape import shown
from ..errors import sqlstate_of, translated
from .config import RunConfig
from .log import Lines, as_reports
from .outcomes import Outcome
from .shared import COUNTED
from .shares import Share

log = logging.getLogger("pyworker.worker")

NOTHING = Share(0, None)
# How long a turn waits for a job that another session has locked: one with several reports, and with one.
OF_SEVERAL, OF_ONE = "1s", "200ms"
VALUES = ("22", "54")  # classes of SQLSTATEs: a value that cannot be stored, or is too large
ASIDE = 5.0  # seconds until the report of a locked job is sent again, and in which others are sent one by one


class Turn(NamedTuple):
    """The answer of `work`."""

    jobs: list[tuple[Any, ...]]  # as Claimed takes them
    again_in: float  # seconds until the next call at the latest
    reported: int


class Exchange:
    def __init__(
        self,
        config: RunConfig,
        worker_id: int,
        lines: Lines,
        count: Callable[..., object] = dict,
        patient: bool = False,
    ) -> None:
        """`count` is told how many jobs ended how. `patient`: wait for locked jobs as long as it takes."""
        self.worker_id = worker_id
        self.task_names: Sequence[str] = ()
        self.ended: deque[Outcome] = deque()  # filled by handlers; deque.append is atomic
        self._config, self._lines, self._count, self._patient = config, lines, count, patient
        self._sent: list[Outcome] = []  # not answered yet
        self._aside: deque[tuple[float, Outcome]] = deque()  # and when to send them again
        self._apart_until = 0.0
        self._as_texts = False  # the database has refused values: read_reports makes what can be stored
        self._repeated: set[tuple[int, int]] = set()  # id and run: sent before, without an answer

    def work(self, db: Database, share: Share, hurry: bool = False) -> Turn | None:
        """Report, and claim.

        None if another session has one of the jobs locked, or a value cannot be stored: call it again."""
        self._take(hurry)
        lines, complete = self._lines.take()
        if not complete:  # the lines of a run go before its end
            self._put_back()
        sent, patience = self._sent, OF_SEVERAL if self._sent[1:] else OF_ONE
        try:
            with translated():
                rows = db.work(
                    self.worker_id, [(one.id, one.run, one.text, one.result) for one in sent], share.most,
                    self.task_names, share.queues, self._config.forbidden_flags or None, share.without,
                    as_reports(lines), patience if sent and not self._patient else None, self._as_texts,
                )  # fmt: skip
        except BaseException as error:
            self._lines.put_back(lines)
            if sent and isinstance(error, psycopg.errors.LockNotAvailable):
                self._set_aside()
                return None
            if sent and not self._as_texts and (sqlstate_of(error) or "")[:2] in VALUES:
                self._as_texts = True
                self._put_back()
                return None
            self._repeated.update((one.id, one.run) for one in sent)
            self._put_back()
            raise
        *_, again_in = rows.pop()
        first = 0
        while first < len(rows) and rows[first][0] == "refused":
            first += 1
        self._sent, self._as_texts = [], False
        self._tell_of_ends(db, sent, {(row[1], row[2]) for row in rows[:first]})
        return Turn([row[1:-2] for row in rows[first:]], again_in, len(sent))

    def due_in(self) -> float:
        """Seconds until an outcome that was set aside is sent again."""
        return max(self._aside[0][0] - time.monotonic(), 0) if self._aside else math.inf

    def has_due(self, hurry: bool) -> bool:
        """True if the next turn has something to report."""
        return bool(self.ended or (self._aside and hurry)) or not self.due_in()

    def held(self) -> list[Outcome]:
        """What has ended, and is not known to be reported."""
        return [*self.ended, *self._sent, *(one for _, one in self._aside)]

    def _take(self, hurry: bool) -> None:
        while self._aside and (hurry or not self.due_in()):
            self.ended.append(self._aside.popleft()[1])
        most = 1 if time.monotonic() < self._apart_until else len(self.ended)
        self._sent = [self.ended.popleft() for _ in range(min(most, len(self.ended)))]

    def _put_back(self) -> None:
        self.ended.extendleft(reversed(self._sent))
        self._sent = []

    def _set_aside(self) -> None:
        """One of these jobs is locked. Until it is known which, they are sent one by one."""
        again_at = time.monotonic() + ASIDE
        if self._sent[1:]:
            self._apart_until = again_at
            self._put_back()
        else:
            self._aside.append((again_at, self._sent.pop()))

    def _tell_of_ends(self, db: Database, sent: Sequence[Outcome], stale: set[tuple[int, int]]) -> None:
        """Count these jobs, and log those that are discarded now. The database decides, so query it."""
        if stale:  # what was sent before may have been accepted then
            stale -= self._repeated
            sent = [one for one in sent if (one.id, one.run) not in stale]
        self._repeated.clear()
        did = Counter(one.do for one in sent)
        # Which jobs are discarded, the database says below.
        did["fail"] += did.pop("not_started", 0) + did.pop("discard", 0)
        last = {one.id: one.task for one in sent if one.last}
        with contextlib.suppress(psycopg.Error):
            for job_id, reason in db.discarded(list(last)) if last else []:
                did.update(discard=1, fail=-1)
                task, why = shown(last[job_id]), shown(reason or "")
                extra = {"job_id": job_id, "task": last[job_id]}
                log.error("job %s (%s) is discarded now: %s", job_id, task, why, extra=extra)
        if sent:
            self._count(**{name: did[name] for name in COUNTED})
