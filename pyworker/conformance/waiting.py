"""Promises about jobs that the worker has claimed and cannot begin."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .broken import hold
from .promise import promise
from .stage import TASK, Played, Stage

SECTION = "work: report, then claim"


def waiting(stage: Stage, jobs: Sequence[Played]) -> list[Played]:
    """The jobs that the worker has claimed and not begun."""
    return [
        job for job in jobs
        if stage.job(job).state == "running" and not stage.notes.begun([job])
        and not stage.db.is_started(job.id)
    ]  # fmt: skip


def _behind(stage: Stage, ms: int, **options: Any) -> tuple[Played, list[Played]]:
    """A long job that runs, beside four others, and the jobs behind these: a worker may have claimed some.

    The quick jobs before them may make it claim many at once."""
    stage.clear()
    stage.add_many(100)
    long = stage.add_many(5, {"ms": ms})
    jobs = stage.add_many(10, **options)
    stage.start()
    stage.until_begun(long[0])
    stage.watch(0.5, lambda: True)
    return long[0], jobs


@promise(SECTION, "**A job begins within a second, or goes back.**")
def goes_back(stage: Stage) -> str:
    """What a worker has claimed and cannot begin within a second goes back, and others take it."""
    _, jobs = _behind(stage, 6000)
    stage.until("what has waited for a second goes back", lambda: not waiting(stage, jobs), 3)
    runs = [stage.job(job).run for job in jobs]
    stage.watch(1.5, lambda: True)
    again = [run for job, run in zip(jobs, runs, strict=True) if stage.job(job).run != run]
    hold(not again, f"{len(again)} of the jobs that went back were claimed again, with no handler free")
    rival = stage.db.open_rival()
    claimed = stage.db.rival_claim(rival, 20, [TASK])
    hold(len(claimed) >= len(jobs), f"another worker got {len(claimed)} of {len(jobs)} jobs")
    stage.db.rival_finish(rival, claimed, "rival")
    stage.db.close_worker(rival)
    return f"another worker took the {len(jobs)} jobs behind long ones"


@promise(
    SECTION, '`"begun": false` says that the handler was not called: the job\'s `expires_at` still holds'
)
def expires(stage: Stage) -> str:
    """A job that waits behind long ones, and expires meanwhile, never begins."""
    _, jobs = _behind(stage, 7000, expires_at=timedelta(seconds=5))
    stage.until_state("cancelled", *jobs, seconds=10)
    begun = stage.notes.begun(jobs)
    hold(not begun, f"{len(begun)} of the jobs that have expired began")
    return f"{len(jobs)} jobs have expired behind long ones"


@promise(SECTION, "before you call the handler: your process may have been paused")
def late(stage: Stage) -> str:
    """A worker that was paused for some seconds begins nothing that it had claimed before."""
    stage.db.set_queue("late", 1000)
    long, jobs = _behind(stage, 1500, queue_name="late")
    process = stage.start()
    process.signal_all(signal.SIGSTOP)
    held = waiting(stage, jobs)
    stage.db.pause_queue("late")
    stage.watch(3, lambda: True)
    process.signal_all(signal.SIGCONT)
    stage.until_state("completed", long)
    stage.watch(1.5, lambda: True)
    begun = stage.notes.begun(held)
    stage.db.resume_queue("late")
    hold(not begun, f"{len(begun)} jobs of a queue that had been paused began")
    stage.until_state("completed", *jobs)
    return f"{len(held)} jobs waited in the worker; their queue was paused, and they did not begin"


@promise(SECTION, "While it runs or waits for that, claim nothing (`max_jobs` 0)")
def claims_nothing(stage: Stage) -> str:
    """While a job runs alone, the worker claims nothing."""
    stage.clear()
    alone = stage.add({"ms": 3000})
    rival = stage.db.open_rival()
    claimed = stage.db.rival_claim(rival, 1, [TASK])
    stage.db.report_crash(rival, claimed, "killed by signal 9")
    stage.start()
    stage.until_begun(alone)
    others = stage.add_many(5)
    stage.watch(2, lambda: set(stage.states(others)) == {"available"})
    taken = [job for job in others if stage.job(job).state != "available"]
    hold(not taken or stage.job(alone).state == "completed", f"{len(taken)} jobs were claimed beside it")
    stage.until_state("completed", alone, *others)
    return "5 jobs were left to others while a job ran alone"
