"""The machine that says the same to the model and to the database, and compares what both show."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any

import psycopg
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.model import Model
from tests.model.state import HALF, SOME, TTL, Refused
from tests.model.strategies import definitions, hours, keys, numbers, several, specs, tasks

NAMES = {
    "task": "identifier", "queue": "queue_name", "key": "job_key", "mode": "job_key_mode",
    "unique": "unique_policy",
    "sequence": "sequence_policy",
}  # fmt: skip
SEEN = """
    select id, state, key, attempts, max_attempts, run, revision, priority, queue_name, delivery,
        task_identifier, sequence_key,
           unique_key is not null as is_unique, last_error, reason, locked_by, run_at
    from (select * from pyworker.jobs union all select * from pyworker.history) j order by id
"""


with_a_running_job = precondition(lambda self: self.model.live("running"))
with_a_job = precondition(lambda self: self.model.jobs)


class Machine(RuleBasedStateMachine):
    steps = 0

    def __init__(self, api: Any, clock: Any, clean: Any, check: Any) -> None:
        super().__init__()
        self.api, self.clock, self.clean, self.check = api, clock, clean, check
        self.runs: list[tuple[int, int]] = []  # every claim ever
        self.workers: list[int] = []
        self.model = Model(datetime.min)

    @initialize(
        many=st.lists(specs, min_size=3, max_size=6),
        theme=st.sampled_from([None, "sequence", "queue", "key"]),
    )
    def begin(self, many: list[dict[str, Any]], theme: str | None) -> None:
        self.theme = theme  # all in one sequence, in one queue, or of one key: there they meet
        self.clean()
        self.clock.advance(seconds=-self.clock.offset.total_seconds())
        self.api.configure(worker_ttl=TTL)
        self.api.maintain()
        self.model = Model(self.api.at())
        self.slack = timedelta(0)
        self.register()
        self.register()
        for spec in many:
            self.add_one(spec)

    def both(self, ours: Callable[[Model], Any], theirs: Callable[[], Any]) -> tuple[Any, Any]:
        """What the model and the database say to the same call: a result, or an SQLSTATE."""
        before = deepcopy(self.model)
        self.model.now = self.api.at()
        try:
            got = theirs()
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith("PW"):
                raise
            got = error.sqlstate
        self.slack += self.api.at() - self.model.now
        try:
            expected = ours(self.model)
        except Refused as refused:
            self.model, expected = before, str(refused)
        return expected, got

    def same(self, ours: Callable[[Model], Any], theirs: Callable[[], Any]) -> Any:
        expected, got = self.both(ours, theirs)
        assert got == expected
        return got

    def any_job(self, number: int) -> int:
        """The id of a job; now and then of none."""
        jobs = self.model.jobs
        return jobs[number % len(jobs)].id if jobs and number % 23 else 10**6

    def run(self, number: int) -> tuple[int, int]:
        """A run to speak of: mostly one that goes on, else an earlier one of the same job, or any
        that there has been."""
        now = [(job.id, job.run) for job in self.model.live("running")]
        runs = now if number % 4 else [(job_id, run - 1) for job_id, run in now] if number % 8 else self.runs
        return runs[number // 8 % len(runs)] if runs else (10**6, 1)

    def arguments(self, spec: dict[str, Any]) -> dict[str, Any]:
        named = {NAMES.get(k, k): v for k, v in spec.items()}
        if "run_at" in spec:
            named["run_at"] = str(spec["run_at"])
        return named

    def timed(self, spec: dict[str, Any]) -> dict[str, Any]:
        """With its run_at as a time, and with the sequence, the queue or the key that this is about."""
        spec = dict(spec)
        if self.theme == "sequence":
            spec["sequence"] = {**spec.get("sequence", {}), "key": "s"}
        elif self.theme == "queue":
            spec["queue"] = "q"
        elif self.theme == "key" and "unique" not in spec:
            spec["key"] = "a"
        if "run_at" in spec:
            spec["run_at"] = self.api.at(f"{spec['run_at']} hours")
        return spec

    def added(self, expected: Any, got: Any) -> None:
        if isinstance(expected, str) or isinstance(got, str):
            assert got == expected
            return
        newest = max((job.id for job in self.model.jobs if job.id < 10**9), default=0)
        for row, (job, deduplicated) in zip(got, expected, strict=True):
            if job.id >= 10**9:
                assert row.id > newest
                job.id = newest = row.id
            assert (row.id, row.deduplicated) == (job.id, deduplicated)

    # Producers

    @rule(spec=specs)
    def add_one(self, spec: dict[str, Any]) -> None:
        spec = self.timed(spec)
        named = self.arguments(spec)
        if isinstance(named.get("payload"), list):
            named["payload"] = json.dumps(named["payload"])
        self.added(*self.both(lambda m: [m.add(spec, 10**9)], lambda: [self.api.add_job(**named)]))

    @rule(many=st.lists(specs, min_size=2, max_size=4))
    def add_many(self, many: list[dict[str, Any]]) -> None:
        many = [self.timed(spec) for spec in many]
        ids = list(range(10**9, 10**9 + len(many)))
        named = [self.arguments(spec) for spec in many]
        self.added(*self.both(lambda m: m.add_many(many, ids), lambda: self.api.add_jobs(named)))
        self.promote()  # the order in which they are worked on inside is no promise

    @rule(key=keys)
    def remove_job(self, key: str) -> None:
        self.same(lambda m: m.remove(key), lambda: self.api.remove_job(key).id)

    @rule(task=tasks["task"], options=definitions)
    def define_task(self, task: str, options: dict[str, Any]) -> None:
        named = {NAMES.get(k, k): v for k, v in options.items()}
        self.api.define_task(task, backoff='["90 minutes"]', **named)
        self.model.tasks[task] = options

    @rule(key=keys)
    def once(self, key: str) -> None:
        self.same(lambda m: m.once(key), lambda: self.api.once(key))

    # Workers

    def register(self) -> None:
        self.workers.append(self.api.register_worker())
        self.model.workers[self.workers[-1]] = self.api.at() + TTL

    def claim(self, number: int, limit: int, only: tuple[Any, Any, Any] = (None, None, None)) -> None:
        if not self.model.workers:
            self.register()
        worker = self.workers[(number if number % 5 else -1) % len(self.workers)]
        worker = worker if number % 11 == 0 or worker in self.model.workers else max(self.model.workers)
        self.api.rows(
            "reset pyworker.claim_note"
        )  # how far the last claim came: it may pass over what came in before that, for a while
        runs: dict[int, int] = {}

        def theirs() -> Any:
            rows = self.api.claim_jobs(worker, limit, *only)
            runs.update({j.id: j.run for j in rows})
            return [(j.id, j.attempts, j.payload, j.key, j.queue_name) for j in rows]

        self.same(lambda m: m.claim(worker, limit, *only), theirs)
        for job in self.model.jobs:
            if job.id in runs:
                assert runs[job.id] > job.run
                job.run = runs[job.id]
        self.runs += runs.items()

    @rule(number=numbers, limit=st.sampled_from([1, 2, 9]))
    def claim_any(self, number: int, limit: int) -> None:
        self.claim(number, limit)

    @rule(number=numbers, tasks=st.sampled_from([None, ["t"], ["u", "v"], []]),
        queues=st.sampled_from([None, ["p", "default"], ["q"], []]),
          flags=st.sampled_from([None, ["f"], ["g"]]))  # fmt: skip
    def claim_some(self, number: int, tasks: Any, queues: Any, flags: Any) -> None:
        self.claim(number, 3, (tasks, queues, flags))

    @with_a_running_job
    @rule(number=numbers)
    def start(self, number: int) -> None:
        run = self.run(number)
        self.same(lambda m: m.start(*run), lambda: self.api.start_job(*run))

    @with_a_running_job
    @rule(some=several)
    def finish(self, some: list[int]) -> None:
        runs = [self.run(number) for number in some]
        ids, numbers = map(list, zip(*runs, strict=True))
        self.same(lambda m: m.finish(runs), lambda: sorted(self.api.finish_jobs(ids, numbers)))

    @with_a_running_job
    @rule(number=numbers)
    def finish_one(self, number: int) -> None:
        run = self.run(number)
        self.same(lambda m: m.finish_one(*run), lambda: self.api.finish_job(*run) or None)

    @with_a_running_job
    @rule(
        some=several,
        how=st.sampled_from(
            [{}, {}, {"discard": True}, {"cancel": True}, {"not_started": True}, {"payload": {"left": 1}}]
        ),
    )
    def fail(self, some: list[int], how: dict[str, Any]) -> None:
        runs = {run[0]: run for run in map(self.run, some)}.values()
        failures = [{"id": i, "run": r, "error": f"error of run {r}", **how} for i, r in runs]
        delay = {"delay": "90 minutes"}  # a task's own backoff says the same
        sent = [
            f | ({} if (j := self.model.get(f["id"])) and j.task in self.model.tasks else delay)
            for f in failures
        ]
        self.same(lambda m: m.fail(failures), lambda: self.api.fail_jobs(sent))

    @with_a_running_job
    @rule(number=numbers, delay=st.sampled_from([timedelta(0), HALF]))
    def snooze(self, number: int, delay: timedelta) -> None:
        run = self.run(number)
        self.same(lambda m: m.snooze(*run, delay), lambda: self.api.snooze_job(*run, delay) or None)

    @with_a_running_job
    @rule(some=several)
    def release(self, some: list[int]) -> None:
        runs = list({self.run(number) for number in some})
        ids, numbers = map(list, zip(*runs, strict=True))
        self.same(lambda m: m.release(runs), lambda: self.api.release_jobs(ids, numbers))

    # Time

    @rule(by=st.sampled_from([1, 1, 2, 4, 25, 170]), silent=st.sampled_from([None, 0, 1]))
    def time_passes(self, by: int, silent: int | None) -> None:
        self.clock.advance(hours=by)
        for n, worker in enumerate(self.workers):
            if silent is None or n % 2 != silent:
                self.same(lambda m, w=worker: m.heartbeat(w), lambda w=worker: self.api.heartbeat(w))

    def promote(self) -> None:
        self.both(Model.promote, self.api.promote_jobs)

    @rule(what=st.sampled_from(["promote", "promote", "sweep", "sweep", "maintain", "prune"]))
    def housework(self, what: str) -> None:
        if what == "promote":
            self.promote()
        elif what == "sweep":
            self.same(Model.sweep, self.api.sweep_workers)
        elif what == "prune":
            self.both(Model.prune, self.api.prune)
        else:
            self.same(Model.maintain, lambda: self.api.maintain()["rescued"])

    # People

    @with_a_job
    @rule(number=numbers, force=st.booleans())
    def cancel(self, number: int, force: bool) -> None:
        job = self.any_job(number)
        self.same(lambda m: m.cancel(job, force), lambda: self.api.cancel_job(job, force).state)

    @with_a_job
    @rule(number=numbers)
    def retry(self, number: int) -> None:
        job = self.any_job(number)
        self.same(lambda m: m.retry(job), lambda: self.api.retry_job(job).state)

    @with_a_job
    @rule(number=numbers)
    def delete(self, number: int) -> None:
        job = self.any_job(number)
        self.same(lambda m: m.delete(job), lambda: self.api.delete_job(job) and None)

    @with_a_job
    @rule(some=several, verb=st.sampled_from(["retry", "complete", "fail"]))
    def many(self, some: list[int], verb: str) -> None:
        ids = [self.any_job(number) for number in some]
        call = {
            "retry": self.api.retry_jobs,
            "complete": self.api.complete_jobs,
            "fail": self.api.permanently_fail_jobs,
        }[verb]
        more = ["by hand"] if verb == "fail" else []
        ours = {"retry": Model.retry_many, "complete": Model.complete, "fail": Model.fail_for_good}[verb]
        self.same(lambda m: ours(m, ids, *more), lambda: [job.id for job in call(ids, *more)])

    @with_a_job
    @rule(some=several, by=st.none() | hours, priority=st.sampled_from([None, None, -2]),
        attempts=st.sampled_from([None, None, 0, 1, 25]),
          limit=st.sampled_from([None, None, 1, 3]))  # fmt: skip
    def reschedule(self, some: list[int], by: Any, priority: Any, attempts: Any, limit: Any) -> None:
        ids = [self.any_job(number) for number in some]
        given = (None if by is None else self.api.at(f"{by} hours"), priority, attempts, limit)
        self.same(
            lambda m: m.reschedule(ids, *given), lambda: [j.id for j in self.api.reschedule_jobs(ids, *given)]
        )

    @rule(number=numbers, verb=st.sampled_from(["force_unlock", "unregister", "register"]))
    def change_a_worker(self, number: int, verb: str) -> None:
        worker = self.workers[number % len(self.workers)]
        if verb == "force_unlock":
            self.both(lambda m: m.abandon([worker]), lambda: self.api.force_unlock_workers([str(worker)]))
        elif verb == "unregister":
            self.both(lambda m: m.unregister(worker), lambda: self.api.unregister_worker(worker))
        else:
            self.register()

    @rule(queue=st.sampled_from(["p", "q", "f:"]), verb=st.sampled_from(["set", "set", "pause", "resume"]),
          limit=st.sampled_from([None, 1, 2, 3]))  # fmt: skip
    def change_a_queue(self, queue: str, verb: str, limit: int | None) -> None:
        if verb == "set":
            queue += "*" if queue == "f:" else ""
            self.api.set_queue(queue, limit)
            self.model.limits[queue] = limit
            return
        queue += "1" if queue == "f:" else ""
        if verb == "pause":
            self.both(lambda m: m.pause(queue), lambda: self.api.pause_queue(queue))
        else:
            self.both(lambda m: m.paused.discard(queue), lambda: self.api.resume_queue(queue))

    @rule(key=st.sampled_from(["s", "r", '{"kind":"t"}']))
    def resume_sequence(self, key: str) -> None:
        self.same(lambda m: m.resume_sequence(key), lambda: self.api.resume_sequence(key))

    @invariant()
    def the_views_show_what_the_model_holds(self) -> None:
        if self.model.now == datetime.min:
            return
        Machine.steps += 1
        rows = {row.id: row for row in self.api.rows(SEEN)}
        self.model.jobs = [job for job in self.model.jobs if job.id in rows or not job.kept]
        ours = []
        for job in sorted(self.model.jobs, key=lambda j: j.id):
            row = rows.get(job.id)
            if row and job.fresh:
                assert timedelta(0) <= row.run_at - job.run_at <= self.slack
                job.run_at, job.fresh = row.run_at, False
            error = row.last_error if row and job.error == SOME and row.last_error else job.error
            reason = (
                job.reason
                if job.reason in ("superseded", "removed", "replaced", "lost")
                else row and row.reason
            )
            locked = str(job.worker) if job.state == "running" else row and row.locked_by
            ours.append((
                job.id, job.state, job.key, job.attempts, job.max_attempts, job.run, job.revision,
                job.priority, job.queue, job.delivery, job.task, job.sequence, job.unique is not None,
                error, reason, locked, job.run_at,
            ))  # fmt: skip
        assert [tuple(row) for row in rows.values()] == ours
        shown = self.api.rows("select sequence_key, running, waiting, halted_by from pyworker.sequences")
        assert {row[0]: tuple(row[1:]) for row in shown} == self.model.sequences()
        self.slack = timedelta(0)
        if Machine.steps % 3 == 0:  # the dearest part; what is wrong stays wrong
            self.check(self.api.conn)


def run(api: Any, clock: Any, clean: Any, check: Any, examples: int, steps: int, **more: Any) -> None:
    Machine.steps = 0
    run_state_machine_as_test(
        lambda: Machine(api, clock, clean, check),
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
            report_multiple_bugs=False, suppress_health_check=list(HealthCheck), **more,
        ),
    )  # fmt: skip
    print(f"{Machine.steps} steps")
