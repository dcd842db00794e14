"""Promises about workers that end, die, are paused, or lose the database."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .._db.conformance import Holder
from .broken import hold
from .promise import promise
from .stage import TASK, Played, Stage
from .waiting import waiting


@promise("What to report", "**The runner is told to end**: `release` the jobs that wait, at once")
def sigterm(stage: Stage) -> str:
    """On SIGTERM running handlers end, waiting jobs are handed back, and the exit code is 0."""
    process = stage.ready()
    jobs = [stage.add({"ms": 1500}, delivery=f"at_{d}_once") for d in ("least", "most") * 15]
    stage.until_begun(jobs[0])
    process.terminate()
    code = stage.until_ended(process)
    begun = stage.notes.begun(jobs)
    others = [job for job in jobs if job not in begun]
    ended = stage.notes.count("end", *begun)
    hold(code == 0, f"the exit code is {code}")
    hold(ended == len(begun), f"{len(begun)} handlers had begun, {ended} ended")
    states = sorted(set(stage.states(begun)))
    hold(states == ["completed"], f"jobs whose handlers ended are {states}")
    found = sorted({(stage.job(job).state, stage.job(job).attempts) for job in others})
    hold(found in ([], [("available", 0)]), f"jobs that had not begun are (state, attempts) {found}")
    hold(not stage.db.worker_ids(), "close_worker was not called")
    return f"exit code 0; {len(begun)} jobs are completed, {len(others)} available, with no attempt"


@promise("close_worker: hand back the rest", "Jobs that the worker still holds can be claimed at once")
def sigterm_idle(stage: Stage) -> str:
    """On SIGTERM a worker without jobs ends with exit code 0, and closes its worker."""
    process = stage.ready()
    process.terminate()
    code = stage.until_ended(process, 10)
    hold(code == 0, f"the exit code is {code}")
    hold(not stage.db.worker_ids(), "close_worker was not called")
    return "exit code 0, close_worker was called"


@promise("Effects that must not happen twice", "From then on no worker runs the job again by itself")
def kill(stage: Stage) -> str:
    """When a worker is killed, its jobs run again elsewhere; an at_most_once job never does."""
    first = stage.ready()
    jobs = [stage.add({"ms": 2000}, delivery=f"at_{d}_once") for d in ("least", "most") * 5]
    stage.until_begun(*jobs[:2])
    first.kill()
    stage.start()
    at_least, at_most = jobs[::2], jobs[1::2]
    stage.until_state("completed", *at_least, seconds=2 * stage.ttl_s + 40)
    stage.until_each(at_most, "completed", "discarded")
    twice = stage.notes.twice(at_most)
    hold(not twice, f"at_most_once jobs that began twice: {', '.join(twice)}")
    again, lost = len(stage.notes.twice(at_least)), stage.states(at_most).count("discarded")
    return f"{again} handlers began again; {lost} at_most_once jobs are discarded, none began twice"


@promise("work: report, then claim", "above 0: the job may have ended its process before; run it alone")
def crashed(stage: Stage) -> str:
    """A job that may have ended its process runs alone the next time."""
    stage.clear()  # a worker from before would take the jobs
    jobs = stage.add_many(2, {"ms": 500})
    rival = stage.db.open_rival()
    claimed = stage.db.rival_claim(rival, 2, [TASK])
    others = stage.add_many(6, {"ms": 700})
    stage.start()
    stage.until_begun(others[0])
    stage.db.report_crash(rival, claimed, "killed by signal 9")
    stage.db.close_worker(rival)
    others += stage.add_many(6, {"ms": 500})
    stage.until_state("completed", *jobs, *others)
    beside = {name for job in jobs for name in stage.notes.beside(job)}
    hold(not beside, f"beside a job whose process had ended ran {', '.join(sorted(beside))}")
    return "2 jobs whose process had ended ran alone"


@contextmanager
def _start_delayed(stage: Stage, jobs: list[Played]) -> Iterator[tuple[Holder, Played] | None]:
    """Within the block a call of start_job waits for a lock that the script holds on this job.

    None if the worker claims no more jobs than it begins.
    """
    stage.watch(0.3, lambda: True)  # it begins what it can
    for job in waiting(stage, jobs):
        with stage.db.holding("live_jobs", job.id) as holder:
            if stage.db.is_started(job.id):
                continue  # before it was locked
            stage.until("start_job is called for a job that waits in the worker", holder.waiting)
            yield holder, job
            return
    yield None


@promise("beat: alive, and what must stop", "before you begin one, check it too")
def pause(stage: Stage) -> str:
    """A worker that is paused for longer than its lease begins and reports only what is its own."""
    process = stage.ready(supervised=True)
    jobs = [stage.add({"ms": 600}, delivery=f"at_{d}_once") for d in ("least", "most") * 10]
    stage.until_begun(*jobs[:2])
    with _start_delayed(stage, jobs[1::2]):
        process.signal_all(signal.SIGSTOP)
    rival = stage.db.open_rival()
    claimed: dict[int, int] = {}

    def all_taken() -> bool:
        stage.db.rival_beat(rival)
        claimed.update(stage.db.rival_claim(rival, 50, [TASK]))
        return all(job.id in claimed or stage.job(job).state in ("completed", "discarded") for job in jobs)

    stage.until("another worker has taken its jobs", all_taken, 2 * stage.ttl_s + 20)
    begun = {job.name: stage.notes.count("begin", job) for job in jobs}
    process.signal_all(signal.SIGCONT)

    def only_rival_acts() -> bool:
        stage.db.rival_beat(rival)
        return begun == {job.name: stage.notes.count("begin", job) for job in jobs}

    quiet = stage.watch(3, only_rival_acts)
    late = [f"{job.name}, {stage.job(job).state} by now" for job in jobs
            if stage.notes.count("begin", job) > begun[job.name]]  # fmt: skip
    hold(quiet, f"it began jobs that it had lost in the meantime: {'; '.join(late)}")
    refused = stage.db.rival_finish(rival, list(claimed.items()), "rival")
    hold(refused == 0, f"{refused} jobs of the other worker were ended by a report of the paused one")
    stage.db.close_worker(rival)
    lost = [job for job in jobs if job.id not in claimed and stage.job(job).state == "discarded"]
    stage.until_state("completed", stage.add())
    return f"{len(claimed)} jobs ran elsewhere, {len(lost)} at_most_once jobs are lost, and it works again"


@promise("Errors", "the connection is lost, or its server read-only: connect again")
def cut_connections(stage: Stage) -> str:
    """When its connections are cut, no job is lost, and no handler begins twice."""
    stage.ready()
    kinds = ("least", "most") * 20
    jobs = [stage.add({"ms": 50 * (n % 8)}, delivery=f"at_{d}_once") for n, d in enumerate(kinds)]
    stage.until_begun(jobs[0])
    cut = 0
    for _ in range(6):
        cut += stage.db.cut_connections()
        stage.watch(0.35, lambda: True)
    jobs.append(stage.add())
    stage.until_state("completed", *jobs[::2], seconds=40)
    stage.until_each(jobs[1::2], "completed", "discarded")  # the answer of start_job may have been lost
    lost = [job for job in stage.notes.begun(jobs) if stage.job(job).state == "discarded"]
    hold(not lost, f"jobs whose handlers had begun are discarded: {', '.join(job.name for job in lost)}")
    stage.notes.hold_once(jobs)
    hold(cut > 0, "the script found no connection of the worker")
    done = stage.states(jobs).count("completed")
    return f"{cut} connections were cut; {done} jobs are completed, no handler began twice"


@promise(
    "What to report", "**An answer of `work` is missing**: on the new connection for `work`, call `beat`"
)
def lost_answer(stage: Stage) -> str:
    """A report whose answer is lost is repeated."""
    stage.ready()
    jobs = [stage.add({"ms": 1000}, delivery=f"at_{d}_once") for d in ("least", "most")]
    for job in jobs:
        stage.until_begun(job)
        with stage.db.holding("live_jobs", job.id) as holder:
            stage.until("the worker's report waits for a lock", holder.waiting)
            holder.cut_waiting()
    stage.until_state("completed", *jobs)
    stage.notes.hold_once(jobs)
    return "2 reports whose connections were cut were repeated"


@promise("work: report, then claim", "set aside those that time out again, for five seconds, and go on")
def locked_job(stage: Stage) -> str:
    """While another session has a job locked, the worker reports and claims other jobs."""
    stage.ready()
    job = stage.add({"ms": 300})
    stage.until_begun(job)
    with stage.db.holding("live_jobs", job.id) as holder:
        stage.until("the worker's report waits for a lock", holder.waiting)
        others = stage.add_many(20, {})
        stage.until_state("completed", *others)
    stage.until_state("completed", job)
    stage.notes.hold_once([job, *others])
    return "20 jobs were completed beside one that was locked, and that one, too"


@promise("work: report, then claim", "the run has ended before; drop the report")
def stale(stage: Stage) -> str:
    """A report that was accepted before, or of an outdated run, is dropped, and the worker works on."""
    process, fails = stage.ready(), {"do": "fail", "error": "boom"}
    completed, _ = _report_first(stage, {}, {"do": "done"})
    failed, _ = _report_first(stage, fails, {**fails, "delay_s": 3600})
    rival = stage.db.open_rival()
    taken, claimed = _report_first(stage, {"result": "late"}, {"do": "release"}, rival)
    stage.until_state("completed", stage.add())
    refused = stage.db.rival_finish(rival, claimed, "rival")
    stage.db.close_worker(rival)
    found = [(stage.job(job).state, stage.job(job).attempts) for job in (completed, failed)]
    hold(found == [("completed", 1), ("retryable", 1)], f"after two reports, (state, attempts) are {found}")
    kept = not refused and stage.job(taken).result == "rival"
    hold(kept, "a report of an outdated run ended the job under another worker")
    process.terminate()
    code = stage.until_ended(process)
    hold(code == 0, f"the exit code is {code}")
    return "2 reports that came twice and 1 of an outdated run were dropped, and the exit code is 0"


def _report_first(
    stage: Stage, payload: dict[str, Any], report: dict[str, Any], rival: int = 0
) -> tuple[Played, list[tuple[int, int]]]:
    """A job whose run is reported while the worker's own report waits, so that the worker's comes second.

    Then `rival` claims it: its id and its new run.
    """
    job = stage.add({"ms": 300, **payload})
    stage.until_begun(job)
    with stage.db.holding("live_jobs", job.id) as holder:
        stage.until("the worker's report waits for a lock", holder.waiting)
        hold(holder.report(job.id, report), f"{report} was refused, though it came first")
        return job, holder.rival_claim(rival, [TASK]) if rival else []


@promise("Effects that must not happen twice", "only if it returned true and the commit was answered")
def start_job_unanswered(stage: Stage) -> str:
    """While start_job is not answered, no handler begins, and no job is lost."""
    stage.ready()
    jobs = stage.add_many(12, {"ms": 600}, delivery="at_most_once")
    stage.until_begun(jobs[0])
    cut = 0
    with _start_delayed(stage, jobs) as delayed:
        if delayed:
            holder, job = delayed
            hold(holder.start(job.id), "the job could not be started")
            cut = holder.cut_waiting()  # as if it had committed, and its answer had not arrived
            begun = not stage.watch(0.7, lambda: not stage.notes.begun([job]))
            hold(not begun, "a handler began, and start_job had not been answered")
    stage.until_state("completed", *jobs, seconds=40)
    stage.notes.hold_once(jobs)
    return f"{cut} calls of start_job were cut off; 12 jobs are completed, each handler began once"


@promise("beat: alive, and what must stop", "`dead` instead of `alive`: other workers have your jobs")
def declared_dead(stage: Stage) -> str:
    """A worker that was declared dead stops its handlers, opens another worker, and works on."""
    stage.ready(supervised=True)
    job = stage.add({"ms": 5000})
    stage.until_begun(job)
    former = stage.db.worker_ids()
    for worker in former:
        stage.db.close_worker(worker)
    stage.until_begun(job, times=2)
    stage.until_state("completed", job)
    ended = stage.notes.count("end", job)
    hold(ended == 1, "its handler was not stopped, and ended twice")
    now = stage.db.worker_ids()
    hold(bool(now) and not set(now) & set(former), f"its worker was {former}, it is {now}")
    return "its handler was stopped and began again under another worker"


@promise("beat: alive, and what must stop", "If that is `stop_after_s` ago, stop all handlers")
def silence(stage: Stage) -> str:
    """When no beat is answered, the worker stops its handlers before others may take their jobs."""
    stage.ready(supervised=True)
    job = stage.add({"ms": 60000})
    stage.until_begun(job)
    workers = stage.db.worker_ids()
    with stage.db.holding("workers", workers[0]):
        stage.until("its handler stops", lambda: stage.is_stopped(job), stage.ttl_s)
    return f"the handler was stopped after less than {stage.ttl_s + 1:g} s"


@promise("Errors", "this database and this runner do not fit. Stop as if told to, and exit")
def newer_schema(stage: Stage) -> str:
    """After a migration that it does not know, a worker lets its handlers end, and exits."""
    process = stage.ready()
    job = stage.add({"ms": 1500})
    stage.until_begun(job)
    process.forgotten = True
    try:
        stage.db.pretend_newer()
        code = stage.until_ended(process)
    finally:
        stage.db.pretend_no_longer()
    state = stage.job(job).state
    hold(state == "completed", f"its running job is {state}")
    hold(code != 0, "the exit code is 0, as if it had been told to end")
    return f"exit code {code}, and its running job is completed"
