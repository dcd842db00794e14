"""Promises about which jobs run, when, and beside which others."""

from __future__ import annotations

from .broken import hold
from .promise import promise
from .stage import TASK, Played, Stage


@promise("What to report", "Report a job when its handler has ended, not before")
def serial_queue(stage: Stage) -> str:
    """The handlers of a named queue run one after another."""
    jobs = stage.add_many(12, {"ms": 100}, queue_name="serial")
    stage.start()
    stage.until_state("completed", *jobs)
    most = stage.notes.most_at_once(jobs)
    hold(most == 1, f"{most} handlers of the queue ran at once")
    return "12 handlers, never two at once"


@promise("What to report", "Report a job when its handler has ended, not before")
def limited_queue(stage: Stage) -> str:
    """Of a queue with the limit 2, at most two handlers run at once."""
    stage.db.set_queue("two", 2)
    jobs = stage.add_many(12, {"ms": 150}, queue_name="two")
    stage.start()
    stage.until_state("completed", *jobs)
    most = stage.notes.most_at_once(jobs)
    hold(most <= 2, f"{most} handlers of the queue ran at once")
    return f"12 handlers, at most {most} at once"


@promise("What to report", "Report a job when its handler has ended, not before")
def sequence(stage: Stage) -> str:
    """The jobs of a sequence run strictly in the order in which they were added."""
    policy = {"by_args": ["customer"]}
    payloads = [{"customer": n % 2, "ms": 100 - n % 3 * 50} for n in range(20)]
    jobs = [stage.add(payload, sequence_policy=policy) for payload in payloads]
    stage.start()
    stage.until_state("completed", *jobs)
    for mine in (jobs[::2], jobs[1::2]):
        wanted = [(job.name, word) for job in mine for word in ("begin", "end")]
        hold(stage.notes.order(mine) == wanted, f"the order was {stage.notes.order(mine)}")
    return "2 sequences of 10 jobs, each in order"


@promise("work: report, then claim", "Name the tasks that you have handlers for")
def unknown_task(stage: Stage) -> str:
    """A job of a task that the worker has no handler for is left to others."""
    unknown = [stage.add(task="conformance_unknown") for _ in range(5)]
    stage.start()
    stage.until_state("completed", *stage.add_many(5))
    stage.until_state("completed", stage.add())
    found = {(row.state, row.attempts) for row in map(stage.job, unknown)}
    hold(found == {("available", 0)}, f"states and attempts of its jobs: {sorted(found)}")
    return "5 such jobs are available, with no attempt, while others were completed"


@promise("Intervals and limits", "within `again_in_s`, at most 5 s; on a notification")
def notified(stage: Stage) -> str:
    """A worker that waits begins a job as soon as it is notified."""
    stage.ready()
    quick = 0
    for _ in range(5):
        stage.watch(0.7, lambda: True)  # until it waits again
        job = stage.add()
        quick += stage.watch_begin(job, 0.5)
        stage.until_state("completed", job)
    hold(quick >= 4, f"{quick} of 5 handlers began within half a second of the notification")
    return f"{quick} of 5 handlers began within half a second"


@promise("Connections", "A notification is a hint; behind a transaction pooler there are none")
def polled(stage: Stage) -> str:
    """A worker that waits finds a job that was added without a notification."""
    stage.ready()
    for _ in range(2):
        stage.watch(0.7, lambda: True)
        job = stage.add_silently()
        stage.until_begun(job, seconds=5)
        stage.until_state("completed", job)
    return "2 jobs were found without a notification"


@promise("work: report, then claim", "call `work` again within `again_in_s` (0 to 5)")
def idle(stage: Stage) -> str:
    """A worker without jobs asks the database a few times a second, not more."""
    stage.ready()
    stage.watch(1, lambda: True)
    seen = set(stage.db.statements())
    before = len(seen)
    stage.watch(4, lambda: seen.update(stage.db.statements()) is None)
    rate = (len(seen) - before) / 4
    hold(rate >= 0.5, f"{rate:g} statements a second: it calls beat less often than every two seconds")
    hold(rate <= 10, f"{rate:g} statements a second")
    return f"{rate:g} statements a second"


@promise("beat: alive, and what must stop", "Call again within `next_in_s` (0 to 5)")
def beat(stage: Stage) -> str:
    """The worker beats while its handlers run."""
    stage.ready()
    jobs = stage.add_many(2, {"ms": 10000})
    stage.until_begun(jobs[0])
    seen = set(stage.db.beats())

    def two_beats() -> bool:
        seen.update(stage.db.beats())
        return len(seen) >= 3

    stage.until("beat is called twice", two_beats, stage.ttl_s)
    hold(stage.notes.count("end", *jobs) < 2, "it beats only when no handler runs")
    return "beat was called twice while a handler ran"


@promise("beat: alive, and what must stop", "`stop`, `cancel`: `cancel_job` was called; tell the handler")
def cancel_running(stage: Stage) -> str:
    """The handler of a running job is told that the job was cancelled, notified or not."""
    stage.ready(supervised=True)
    for notify in (True, False):
        job = stage.add({"ms": 30000})
        stage.until_begun(job)
        stage.db.ask_to_cancel(job.id, notify=notify)
        stage.until_state("cancelled", job, seconds=15)
        hold(stage.is_stopped(job), "its handler still runs")
    return "2 handlers were stopped, and their jobs are cancelled"


@promise("What to report", "`start_job` returned false**: do not begin; `release`")
def cancel_waiting(stage: Stage) -> str:
    """An at_most_once job that is cancelled before start_job never begins."""
    stage.ready()
    jobs = stage.add_many(40, {"ms": 1500}, delivery="at_most_once")
    stage.until_begun(jobs[0])
    waited = 0
    cancelled: list[Played] = []
    for job in jobs:
        waited += stage.job(job).state == "running" and not stage.db.is_started(job.id)
        if not stage.db.ask_to_cancel(job.id):
            cancelled.append(job)
    stage.until_state("cancelled", *cancelled)
    stage.until_state("completed", stage.add())
    begun = [job.name for job in stage.notes.begun(cancelled)]
    hold(not begun, f"handlers of cancelled jobs began: {', '.join(begun)}")
    return f"{len(cancelled)} jobs did not begin; {waited} of them waited in the worker"


@promise("Effects that must not happen twice", "If `delivery` is `at_most_once`, call `start_job` and commit")
def start_job(stage: Stage) -> str:
    """The worker calls start_job before it begins the handler of an at_most_once job."""
    stage.ready()
    jobs = stage.add_many(3, {"ms": 1500}, delivery="at_most_once")
    for job in jobs:
        stage.until_begun(job)
        hold(stage.db.is_started(job.id), "a handler began, and start_job was not called")
    stage.until_state("completed", *jobs)
    return f"start_job was called for 3 jobs of {TASK} when their handlers ran"
