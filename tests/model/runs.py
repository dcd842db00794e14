"""What the model says to workers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.model.state import HALF, SOME, TTL, Job, Refused, State


class Runs(State):
    def claim(self, worker: int, limit: int, tasks: Any, queues: Any, forbidden: Any) -> list[Any]:
        if worker not in self.workers:
            raise Refused("PW004")
        self.promote()
        ready = [
            j for j in self.ready()
            if (tasks is None or j.task in tasks) and (queues is None or (j.queue or "default") in queues)
            and not set(forbidden or []) & set(j.flags or [])
        ]  # fmt: skip
        claimed = []
        for job in sorted(ready, key=Job.rank):
            if len(claimed) == limit or self.room(job.queue) <= 0:
                continue
            claimed.append(job)
            job.state, job.worker, job.attempts = "running", worker, job.attempts + 1
            self.starts.append((job.queue or "", self.now))
            job.cancelled_runs, job.start_by = False, None
        return [(j.id, j.attempts, j.payload, j.key, j.queue) for j in claimed]

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
