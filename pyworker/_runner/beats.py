"""What the database hears of the child processes: their beats, and how they ended."""

from __future__ import annotations

import json
import logging
import time

from .._db.database import Database
from .._escape import shown
from .children import ChildProcess, memory_of
from .control import Control
from .family import Family
from .maintenance import Duties
from .shared import boottime

log = logging.getLogger("pyworker.parent")

BEAT = 5.0  # seconds at most between beats; their answers say when the next is due


class Beats:
    def __init__(self, family: Family, control: Control, duties: Duties) -> None:
        self.next_at = time.monotonic() + BEAT
        self._family, self._control, self._duties = family, control, duties

    def beat(self, db: Database) -> None:
        first, self.next_at = boottime(), time.monotonic() + BEAT
        for child in sorted(self._family.children.values(), key=lambda child: child.acknowledged):
            began = boottime()
            if began - first > BEAT / 2:  # the answers come slowly, and there are other things to do
                self.next_at = time.monotonic()
                return
            unlocked = child.locked_by is not db  # then it may be another database, too
            told = child.condition
            news = json.dumps(told) if unlocked or told != child.told else None
            lock = unlocked and not self._control.pooled
            answer = db.beat(child.worker_id, lock, news, self._duties.busy)
            if not answer.alive:
                child.kill("it was declared dead")
                continue
            child.acknowledged = began
            child.slots.prolong(began + self._family.patience)
            child.told = told
            child.locked_by = None if answer.unlocked else db
            self._tell_memory(db, child)
            self._duties.tell(answer.duties)
            self.next_at = min(self.next_at, time.monotonic() + answer.next_in_s)

    def _tell_memory(self, db: Database, child: ChildProcess) -> None:
        """Once it has changed by a tenth, since each time is a write."""
        memory = memory_of(child.process.pid)
        if abs(memory - child.memory) > child.memory // 10:
            db.update_worker(child.worker_id, {"memory": memory})
            child.memory = memory

    def unregister(self, db: Database) -> None:
        """Tell of the children that have ended."""
        waiting, did = self._family.to_unregister, self._family.ended
        while waiting:
            ended = waiting[0]
            charged = [job_id for job_id, _ in ended.running]
            if ended.failures:
                db.fail_jobs(ended.failures)
                charged += [failure["id"] for failure in ended.failures]
            if ended.crashed:
                db.report_crash(ended.worker_id, ended.running, ended.why)
            db.close_worker(ended.worker_id)
            did["fail"] += len(charged)
            for job_id, reason in db.discarded(charged) if charged else []:
                did.update(discard=1, fail=-1)
                why = shown(reason or "")
                log.error("job %s is discarded now: %s", job_id, why, extra={"job_id": job_id})
            waiting.pop(0)
