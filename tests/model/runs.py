"""What the model says to workers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.model.state import HALF, MOMENT, SOME, TTL, Job, Refused, State


class Runs(State):
    def claimable(self, tasks: Any, queues: Any, forbidden: Any) -> list[Job]:
        ready = [
            j for j in self.ready()
            if (tasks is None or j.task in tasks) and (queues is None or (j.queue or "default") in queues)
            and not set(forbidden or []) & set(j.flags or [])
        ]  # fmt: skip
        return sorted(ready, key=Job.rank)

    def take(self, job: Job, worker: int) -> None:
        job.state, job.worker, job.attempts = "running", worker, job.attempts + 1
        if job.queue and self.rates.get(self.settings(job.queue)):
            self.starts.append((job.queue, self.now))
        job.cancelled_runs, job.start_by = False, None

    def claim(self, worker: int, limit: int, *only: Any, got: list[int]) -> list[Any]:
        """`got`: what the database has claimed, as not every order is promised, only what must hold."""
        if worker not in self.workers:
            raise Refused("PW004")
        self.promote()
        ready = self.claimable(*only)
        kept = self.kept_from(ready)
        claimed = [job for job_id in got for job in ready if job.id == job_id]
        assert len(claimed) == len(got) <= limit
        for job in claimed:
            assert self.room(job.queue) > 0
            self.take(job, worker)
        others = [job for job in ready if job not in claimed]
        left = [job for job in others if self.room(job.queue) > 0 and job.queue not in kept]
        assert len(claimed) == limit or not left  # no worker is idle
        assert [j.priority for j in claimed] == sorted(j.priority for j in claimed)
        for job in claimed:
            assert not [o for o in left if o.priority < job.priority]
            assert not [o for o in others if o.queue == job.queue not in kept and o.priority < job.priority]
            assert not (job.plain() and [o for o in left if o.plain() and o.rank() < job.rank()])
        if len(claimed) < limit:
            self.asides |= dict.fromkeys(kept, self.now)
        return [(j.id, j.attempts, j.payload, j.key, j.queue) for j in claimed]

    def kept_from(self, ready: list[Job]) -> set[str | None]:
        """The queues in which jobs that this worker does not take may have slots, or some kinds stand
        aside since a moment ago."""
        slots = {job.queue for job in self.ready() if job.queue and job not in ready}
        return slots | {queue for queue, at in self.asides.items() if self.now < at + MOMENT}

    def start(self, job_id: int, run: int) -> bool:
        job = self.running(job_id, run)
        if not job or job.started or job.superseded or job.cancelled_runs or job.worker not in self.workers:
            return False
        job.started = True
        return True

    def finish(self, runs: list[tuple[int, int]], result: Any = None) -> list[int]:
        jobs = sorted({j for i, r in runs if (j := self.running(i, r))}, key=lambda j: j.id)
        for job in jobs:
            job.result = result
        self.close(jobs, "completed")
        return [job.id for job in jobs]

    def finish_one(self, job_id: int, run: int) -> None:
        if not self.finish([(job_id, run)]):
            raise Refused("PW002")

    def fail(self, failures: list[dict[str, Any]]) -> list[int]:
        accepted = []
        for f in sorted(failures, key=lambda f: f["id"]):
            job = self.running(f["id"], f["run"])
            if not job:
                continue
            accepted.append(job.id)
            if f.get("cancel"):
                self.close([job], "cancelled", job.superseded or "cancelled by its handler", f["error"])
                continue
            job.started = job.started and not f.get("not_started")
            if not (job.superseded or job.cancelled_runs):
                job.payload = f.get("payload", job.payload)
            if f.get("discard") or job.lost() or job.attempts >= job.max_attempts:
                self.discard(job, f["error"])
            else:
                self.put_back(job, job.attempts, "retryable", f["error"], HALF)
        return accepted

    def snooze(self, job_id: int, run: int, delay: timedelta) -> None:
        job = self.running(job_id, run)
        if not job:
            raise Refused("PW002")
        if job.lost() and not (job.superseded or job.cancelled_runs):
            raise Refused("PW005")
        self.put_back(job, max(job.attempts - 1, 0), delay=delay)

    def release(self, runs: list[tuple[int, int]]) -> list[int]:
        accepted = []
        for job_id, run in sorted(runs):
            if job := self.running(job_id, run):
                accepted.append(job_id)
                self.put_back(job, max(job.attempts - 1, 0))
        return accepted

    def unregister(self, worker: int) -> None:
        self.workers.pop(worker, None)
        for job in [j for j in self.live("running") if j.worker == worker]:
            self.put_back(job, max(job.attempts - 1, 0))

    def abandon(self, workers: Any) -> int:
        jobs = [j for j in self.live("running") if j.worker in workers]
        for job in jobs:
            if job.attempts >= job.max_attempts and not job.lost():
                self.discard(job, SOME)
            else:
                self.put_back(job, job.attempts, error=SOME)
        return len(jobs)

    def sweep(self) -> int:
        dead = [w for w, until in self.workers.items() if until < self.now]
        for worker in dead:
            del self.workers[worker]
        return self.abandon(dead)

    def heartbeat(self, worker: int) -> bool:
        if worker in self.workers:
            self.workers[worker] = self.now + TTL
        return worker in self.workers
