"""The machine that says the same to the model and to the database, and compares what both show."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test
from psycopg.types.json import Jsonb

from tests.model.calls import NAMES
from tests.model.met import met
from tests.model.model import Model
from tests.model.schedules import Schedules
from tests.model.state import HALF, MOMENT, PERIOD, SOME, TTL
from tests.model.strategies import definitions, hours, keys, numbers, several, specs, tasks
from tests.model.together import with_a_job

SEEN = """
    select id, state, key, attempts, max_attempts, run, revision, priority, queue_name, delivery,
        task_identifier, sequence_key,
           unique_key is not null as is_unique, last_error, reason, locked_by, run_at
    from (select * from pyworker.jobs union all select * from pyworker.history) j order by id
"""
SEQUENCES = """
    select 'view' as source, sequence_key, running, waiting, halted_by from pyworker.sequences
    union all
    select 'list', sequence_key, running, waiting, halted_by
    from pyworker.list_sequences(max_sequences => 1000)
"""

with_a_running_job = precondition(lambda self: self.model.live("running"))

ASKED = """
    select from pyworker.promotion_requests where at is null and starts_with(lane, 'sequence:') limit 1
"""


class Machine(Schedules):
    steps = 0
    met: ClassVar[Counter[str]] = Counter()

    def __init__(self, api: Any, clock: Any, clean: Any, check: Any) -> None:
        super().__init__()
        self.api, self.clock, self.clean, self.check = api, clock, clean, check
        self.runs: list[tuple[int, int]] = []  # every claim ever
        self.workers: list[int] = []
        self.looks = 0  # of this example, so that a repetition checks at the same steps
        self.model = Model(datetime.min)

    @initialize(
        many=st.lists(specs, min_size=3, max_size=6),
        theme=st.sampled_from([None, "sequence", "queue", "key", "dependency", "signal"]),
        claims=st.integers(0, 4),
    )
    def begin(self, many: list[dict[str, Any]], theme: str | None, claims: int) -> None:
        self.theme = theme  # one sequence, queue or key, few parents, one signal: there they meet
        self.clean()
        self.clock.advance(seconds=-self.clock.offset.total_seconds())
        self.api.configure(worker_ttl=TTL)
        self.api.maintain()
        self.model = Model(self.api.at())
        self.begin_schedules()
        self.set_rate("r", 2)
        self.set_rate("g:*", 2)
        self.set_fair("h:*", None)
        self.register()
        self.register()
        for spec in many:
            self.add_one(spec)
        if claims:
            self.claim(claims, claims)

    # Producers

    @rule(spec=specs)
    def add_one(self, spec: dict[str, Any]) -> None:
        spec = self.timed(spec)
        named = self.arguments(spec)
        if isinstance(named.get("payload"), list):
            named["payload"] = json.dumps(named["payload"])
        if "depends_on" in named:
            named["depends_on"] = Jsonb(named["depends_on"])
        self.added(*self.both(lambda m: [m.add(spec, 10**9)], lambda: [self.api.add_job(**named)]))

    @rule(many=st.lists(specs, min_size=2, max_size=4), forwards=st.booleans())
    def add_many(self, many: list[dict[str, Any]], forwards: bool) -> None:
        many = self.call(many, forwards)
        ids = list(range(10**9, 10**9 + len(many)))
        named = [self.arguments(spec) for spec in many]
        placed = self.model.placed()
        self.added(*self.both(lambda m: m.add_many(many, ids), lambda: self.api.add_jobs(named)))
        self.settle(placed=placed)  # the order in which they are worked on inside is no promise

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
        runs: dict[int, int] = {}
        late = self.prepare_claim()

        def theirs() -> Any:
            rows = self.api.claim_jobs(worker, limit, *only)
            runs.update({j.id: j.run for j in rows})
            return [(j.id, j.attempts, j.payload, j.key, j.queue_name) for j in rows]

        self.same(lambda m: m.claim(worker, limit, *only, got=list(runs)), theirs)
        for job in self.model.jobs:
            if job.id in runs:
                assert runs[job.id] > job.run
                job.run = runs[job.id]
        self.runs += runs.items()
        if late:
            self.settle(late)

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
    @rule(some=several, result=st.sampled_from([None, 1, {"by": "ann"}]))
    def finish(self, some: list[int], result: Any) -> None:
        runs = [self.run(number) for number in some]
        ids, numbers = map(list, zip(*runs, strict=True))
        results = [Jsonb(result)] * len(ids)
        self.same(
            lambda m: m.finish(runs, result), lambda: sorted(self.api.finish_jobs(ids, numbers, results))
        )

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

    @rule(what=st.sampled_from(["promote", "promote", "sweep", "sweep", "maintain", "prune"]))
    def housework(self, what: str) -> None:
        if what == "promote":
            self.settle()
        elif what == "sweep":
            self.same(Model.sweep, self.api.sweep_workers)
        elif what == "prune":
            self.both(Model.prune, self.api.prune)
        else:
            self.maintain()

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

    @rule(
        queue=st.sampled_from(["p", "q", "f:", "r", "g:", "h:"]),
        verb=st.sampled_from(["set", "set", "pause", "resume"]),
        limit=st.sampled_from([None, 1, 2, 3]),
    )
    def change_a_queue(self, queue: str, verb: str, limit: int | None) -> None:
        if verb == "set":
            if queue in ("r", "g:", "h:"):
                return
            queue += "*" if queue == "f:" else ""
            self.api.set_queue(queue, limit)
            self.model.limits[queue] = limit
            return
        queue += "1" if queue.endswith(":") else ""
        if verb == "pause":
            self.both(lambda m: m.pause(queue), lambda: self.api.pause_queue(queue))
        else:
            self.both(lambda m: m.paused.discard(queue), lambda: self.api.resume_queue(queue))

    @rule(
        queue=st.sampled_from(["r", "g:*"]),
        rate=st.integers(1, 4),
        limit=st.sampled_from([None, None, 1]),
        fair=st.booleans(),
    )
    def change_a_rate(self, queue: str, rate: int, limit: int | None, fair: bool) -> None:
        self.set_rate(queue, rate, limit, fair and queue == "g:*")

    def set_rate(self, queue: str, rate: int, limit: int | None = None, fair: bool = False) -> None:
        self.set_fair(queue, limit, fair, rate, PERIOD)
        self.model.rates[queue] = rate

    @rule(limit=st.sampled_from([None, None, 1, 2]), fair=st.sampled_from([True, True, False]))
    def change_turns(self, limit: int | None, fair: bool) -> None:
        self.set_fair("h:*", limit, fair)

    def set_fair(self, queue: str, limit: int | None, fair: bool = True, *rate: Any) -> None:
        self.api.set_queue(queue, limit, *(rate or (None, None)), fair)
        self.model.limits[queue] = limit

    @rule(key=st.sampled_from(["s", "r", '{"kind":"t"}']))
    def resume_sequence(self, key: str) -> None:
        self.same(lambda m: m.resume_sequence(key), lambda: self.api.resume_sequence(key))

    @invariant()
    def the_views_show_what_the_model_holds(self) -> None:
        if self.model.now == datetime.min:
            return
        if self.api.rows(ASKED):  # what the end of a job that did not run has left to the next turn
            self.settle()
        Machine.steps += 1
        Machine.met += met(self.model)
        rows = {row.id: row for row in self.api.rows(SEEN)}
        ours = []
        for job in sorted(self.model.jobs, key=lambda j: j.id):
            row = rows.get(job.id)
            if row and job.fresh:
                assert timedelta(0) <= row.run_at - job.run_at < MOMENT
                job.run_at, job.fresh = row.run_at, False
            error = row.last_error if row and job.error == SOME and row.last_error else job.error
            reason = (
                job.reason
                if job.reason in ("superseded", "removed", "replaced", "lost", "expired", "dependency")
                else row and row.reason
            )
            locked = str(job.worker) if job.state == "running" else row and row.locked_by
            ours.append((
                job.id, job.state, job.key, job.attempts, job.max_attempts, job.run, job.revision,
                job.priority, job.queue, job.delivery, job.task, job.sequence, job.unique is not None,
                error, reason, locked, job.run_at,
            ))  # fmt: skip
        assert [tuple(row) for row in rows.values()] == ours
        shown = self.api.rows(SEQUENCES)
        assert {row[1]: tuple(row[2:]) for row in shown if row.source == "view"} == self.model.sequences()
        assert {row[1]: tuple(row[2:]) for row in shown if row.source == "list"} == self.model.sequences()
        self.compare_coordination()
        self.looks += 1
        if self.looks % 5 == 0:  # the dearest part; what is wrong stays wrong
            self.check(self.api.conn)


class Workflows(Machine):
    """The same with less beside what jobs wait for, so that more of it meets in a few examples."""

    claim_some = start = finish_one = snooze = define_task = None  # type: ignore[assignment]
    once = change_a_worker = change_a_queue = change_a_rate = change_turns = None  # type: ignore[assignment]
    resume_sequence = None  # type: ignore[assignment]

    @initialize(
        many=st.lists(specs, min_size=3, max_size=6),
        theme=st.sampled_from(["dependency", "dependency", "signal"]),
        claims=st.integers(1, 4),
    )
    def begin(self, many: list[dict[str, Any]], theme: str | None, claims: int) -> None:
        super().begin(many, theme, claims)

    def timed(self, spec: dict[str, Any], refs: list[str] | None = None) -> dict[str, Any]:
        return super().timed({k: v for k, v in spec.items() if k not in ("queue", "flags", "run_at")}, refs)


def run(kind: type[Machine], api: Any, clock: Any, clean: Any, check: Any, examples: int, steps: int,
        **more: Any) -> None:  # fmt: skip
    Machine.steps = 0
    Machine.met.clear()
    run_state_machine_as_test(
        lambda: kind(api, clock, clean, check),
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
            report_multiple_bugs=False, suppress_health_check=list(HealthCheck), **more,
        ),
    )  # fmt: skip
    print(f"{Machine.steps} steps")
