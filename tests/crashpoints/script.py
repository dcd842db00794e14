"""What the sessions do before the crash: each verb of pyworker's SQL at least once.

Two workers, an application and an operator; a handler with a transaction of its own stays open while the
others commit, and so does a producer that never commits.
"""

from __future__ import annotations

from typing import Any

from tests.crashpoints.recording import ALWAYS, NEVER, Fact, Recorder
from tests.crashpoints.runner import OFF, Runner, add, added

TICK, SIGNAL = "report", "approval"  # the tasks of the schedule, and of the jobs that wait for a signal
PREPARED = Fact("prepared", ("prepared",))  # a transaction called like the task of the job that it adds


def script(it: Recorder) -> None:
    ada = Runner(it, "ada")
    settings(it)
    adds(it)
    bob = Runner(it, "bob")
    ada.beat("beat-lock")
    turns(it, ada)
    at_most_once(it, ada)
    own_transactions(it, ada, bob)
    queues(it, bob)
    sequences(it, ada)
    waiting(it, ada)
    people(it, ada)
    schedules(it, ada, bob)
    below(it)
    endings(it, ada, bob)


def settings(it: Recorder) -> None:
    it.step(
        "configure",
        "select pyworker.configure(completed_retention => '30 days', cancelled_retention => '30 days', "
        "discarded_retention => '30 days', max_crashes => 100)",
    )
    it.step("define-task", "select pyworker.define_task('fleeting', retention => '0', max_attempts => 2)")


def adds(it: Recorder) -> None:
    add(it, "add", "plain", "'{\"n\": 1}'")
    add(it, "add-many-options", "plain", "'[2]', priority => -1, flags => '{slow}', meta => '{\"by\": 7}'")
    add(it, "add-delayed", "later", "run_at => pyworker.clock() + interval '1 hour'")
    add(it, "add-keyed", "keyed", "'[1]', job_key => 'k'")
    add(it, "add-keyed-again", "keyed", "'[2]', job_key => 'k'")
    add(it, "add-preserve", "keyed", "'[3]', job_key => 'k', job_key_mode => 'preserve_run_at'")
    add(it, "add-dedupe", "keyed", "'[4]', job_key => 'k', job_key_mode => 'unsafe_dedupe'")
    add(it, "add-to-remove", "keyed", "job_key => 'gone'")
    it.step("remove", "select id from pyworker.remove_job('gone')")
    unique = "'{\"c\": 9}', unique_policy => pyworker.unique_opts(by_args => 'true')"
    add(it, "add-unique", "unique", unique)
    add(it, "add-unique-again", "unique", unique)
    it.step(
        "add-jobs",
        """select id from pyworker.add_jobs('[{"identifier": "bulk", "ref": "a"},
            {"identifier": "bulk", "depends_on": ["a"]}, {"identifier": "fleeting"},
            {"identifier": "bulk", "job_key": "b", "queue_name": "q"}]'::jsonb)""",
        learns=added,
    )
    it.step("begin-add", "begin", on="producer")
    add(it, "add-uncommitted", "plain", on="producer")
    it.steps[-1].facts.clear()  # never committed: its id may be given again
    it.step("no-notify", "set pyworker.notify = off", on="two-phase")
    it.step("begin-prepare", "begin", on="two-phase")
    add(it, "add-prepared", "prepared", on="two-phase")
    it.steps[-1].facts.clear()
    it.step("prepare", "prepare transaction 'prepared'", on="two-phase", learns=lambda _: [PREPARED])
    it.step("begin-rollback", "begin", on="waverer")
    add(it, "add-rolled-back", "plain", "job_key => 'k'", on="waverer")
    it.steps[-1].facts.clear()
    it.step("rollback", "rollback", on="waverer")
    it.step("commit-prepared", "commit prepared 'prepared'", on="two-phase")


def turns(it: Recorder, ada: Runner) -> None:
    """Every report."""
    for n in range(6):
        add(it, "add-for-reports", "reports", f"'{{\"n\": {n}}}', max_attempts => {1 if n == 3 else 5}")
    plain = ada.turn("claim", 2, ["plain"])
    runs = ada.turn("claim-six", 6, ["reports"])
    lines = [{"id": runs[0][0], "run": runs[0][1], "do": "log", "message": "half of it"}]
    ada.turn("log", reports=lines)
    ada.handler(
        "progress", f"select from {OFF}, pyworker.set_progress(%s, %s, 0.5, 'half')", runs[0], durable=NEVER
    )
    ada.handler("log-job", "select pyworker.log_job(%s, %s, 'a line')", runs[1])
    ada.turn("done", done=plain[:1])
    reports = [
        {"id": id, "run": run, "do": verb, **more}
        for (id, run), (verb, more) in zip(
            runs,
            [("log", {"message": "the last line"}), ("fail", {"error": "boom", "delay_s": 60}),
             ("snooze", {"delay_s": 60}), ("fail", {"error": "the end"}), ("release", {}),
             ("cancel", {"error": "of no use"})],
            strict=True,
        )
    ]  # fmt: skip
    ada.turn("reports", 1, ["bulk"], done=runs[:1], reports=reports)
    ada.turn("reports-again", done=runs[:1], reports=reports[1:])  # all of them are stale
    fleeting = ada.turn("claim-fleeting", 1, ["fleeting"])
    ada.turn("done-without-history", done=fleeting)
    keyed = ada.turn("claim-keyed", 1, ["keyed"])
    add(it, "add-onto-running", "keyed", "'[5]', job_key => 'k'")
    ada.turn("done-superseded", done=keyed)


def at_most_once(it: Recorder, ada: Runner) -> None:
    it.step("define-charge", "select pyworker.define_task('charge', delivery => 'at_most_once')")
    for n in range(4):
        add(it, "add-charge", "charge", f"'{{\"amount\": {n}}}'")
    runs = ada.turn("claim-charges", 4, ["charge"])
    for run in runs[:3]:
        ada.start("start", run)
    ada.start("start-twice", runs[0])
    ada.turn("done-charge", done=runs[:1])
    ada.turn(
        "not-started", reports=[{"id": runs[1][0], "run": runs[1][1], "do": "not_started", "delay_s": 5}]
    )
    # runs[2] is started and not reported, runs[3] claimed and not started, when the end comes.
    it.step("once", "select pyworker.once('mail 7')", durable=ALWAYS, learns=marked("mail 7"))
    it.step("once-again", "select pyworker.once('mail 7')")
    add(it, "add-letter", "letter")
    letter = ada.turn("claim-letter", 1, ["letter"])
    key = f"pyworker/job/{letter[0][0]}/post"
    ada.handler(
        "once-of-job", "select pyworker.once(%s, %s, 'post')", letter[0], durable=ALWAYS, learns=marked(key)
    )


def marked(key: str) -> Any:
    return lambda rows: [Fact("once", (key,))] if rows[0][0] else []  # type: ignore[index]


def own_transactions(it: Recorder, ada: Runner, bob: Runner) -> None:
    """Handlers that complete their job with their own writes."""
    for _ in range(3):
        add(it, "add-book", "book")
    one, *_ = ada.turn("claim-book", 1, ["book"])
    book(ada, "quick", one)
    two, *_ = ada.turn("claim-book", 1, ["book"])
    ada.handler("begin-slow", "begin")
    ada.handler("write-slow", "insert into app.payments values (%s, 10)", [two[0]])
    add(it, "add-meanwhile", "plain")  # other sessions commit while it is open
    bob.beat("beat-meanwhile")
    ada.handler("finish-slow", FINISH, two, learns=asked(two))
    ada.handler("commit-slow", "commit", learns=lambda _: [Fact("accepted", two)])
    three, *_ = bob.turn("claim-book", 1, ["book"])
    bob.handler("begin-undone", "begin")
    bob.handler("write-undone", "insert into app.payments values (%s, 10)", [three[0]])
    bob.handler("finish-undone", FINISH, three, learns=asked(three))
    bob.handler("rollback-undone", "rollback")
    bob.turn("fail-undone", reports=[{"id": three[0], "run": three[1], "do": "fail", "error": "no paper"}])


FINISH = "select pyworker.finish_job(%s, %s), pg_current_xact_id()::text"


def asked(run: tuple[int, int]) -> Any:
    return lambda rows: [Fact("asked", (*run, rows[0][1]))]  # type: ignore[index]


def book(runner: Runner, name: str, run: tuple[int, int]) -> None:
    runner.handler(f"begin-{name}", "begin")
    runner.handler(f"write-{name}", "insert into app.payments values (%s, 5)", [run[0]])
    runner.handler(f"finish-{name}", FINISH, run, learns=asked(run))
    runner.handler(f"commit-{name}", "commit", learns=lambda _: [Fact("accepted", run)])


def queues(it: Recorder, bob: Runner) -> None:
    it.step("set-queue", "select pyworker.set_queue('pair', 2)")
    it.step("set-rate", "select pyworker.set_queue('paced', null, 2, '1 hour')")
    it.step("set-family", "select pyworker.set_queue('customer*', 1, fair => true)")
    for n in range(4):
        add(it, "add-queued", "queued", "queue_name => 'pair'")
        add(it, "add-paced", "paced", f"'[{n}]', queue_name => 'paced'")
        add(it, "add-fair", "fair", f"queue_name => 'customer {n % 2}'")
    runs = bob.turn("claim-queued", 3, ["queued", "paced"])
    bob.turn("done-queued", 3, ["queued", "paced"], done=runs[:1])
    bob.turn("claim-fair", 2, ["fair"])
    it.step("pause", "select pyworker.pause_queue('pair')", on="operator")
    it.step("resume", "select pyworker.resume_queue('pair')", on="operator")
    it.step("pause-for-good", "select pyworker.pause_queue('customer 1')", on="operator")


def sequences(it: Recorder, ada: Runner) -> None:
    for n in range(4):
        add(it, "add-sequenced", "ordered", f'\'{{"n": {n}}}\', sequence_policy => \'{{"key": "s"}}\'')
    one = ada.turn("claim-ordered", 4, ["ordered"])
    two = ada.turn("done-ordered", 1, ["ordered"], done=one)
    ada.turn("discard-ordered", reports=[{"id": two[0][0], "run": two[0][1], "do": "discard", "error": "no"}])
    it.step("resume-sequence", "select pyworker.resume_sequence('s')", on="operator")
    ada.turn("claim-after-halt", 1, ["ordered"])


def waiting(it: Recorder, ada: Runner) -> None:
    """Dependencies, batches, steps and signals."""
    first = add(it, "add-parent", "parent")
    add(it, "add-child", "child", f"depends_on => '[{first}]'")
    add(it, "add-child-of-end", "child", f'depends_on => \'[{{"id": {first}, "on": "end"}}]\'')
    rows = it.step(
        "add-batch",
        """select id from pyworker.add_batch('[{"identifier": "part"}, {"identifier": "part"}]',
           '{"identifier": "whole"}')""",
        learns=added,
    )
    whole = rows[-1][0]
    it.step(
        "extend-batch",
        f'select id from pyworker.extend_batch({whole}, \'[{{"identifier": "part"}}]\')',
        learns=added,
    )
    parts = ada.turn("claim-parents", 4, ["parent", "part"])
    ada.turn("done-parents", done=parts[:3])
    waits = [add(it, "add-approval", SIGNAL) for _ in range(3)]
    runs = ada.turn("claim-approvals", 3, [SIGNAL])
    ada.handler(
        "step", "select pyworker.save_step(%s, %s, 'draft', '{\"page\": 1}')", runs[0], durable=ALWAYS
    )
    send(it, "send-early", waits[1])
    for number, run in enumerate(runs[:2]):
        rows = ada.handler(
            "wait", "select pyworker.wait_for_signal(%s, %s, 'go', '10 hours')", run,
            learns=lambda rows, run=run: [] if rows[0][0] is not None else [Fact("accepted", run)],
        )  # fmt: skip
        if number == 0:
            ada.turn("release-waiter", reports=[{"id": run[0], "run": run[1], "do": "release"}])
    send(it, "send", waits[0])
    send(it, "send-again", waits[0], "second")
    send(it, "send-before-wait", waits[2])
    ada.turn("promote", 1, [SIGNAL])


def send(it: Recorder, step: str, job: int, what: str = "first") -> None:
    it.step(
        step, f"select pyworker.send_signal({job}, 'go', '\"{what}\"')",
        learns=lambda _: [Fact("sent", (job, what))],
    )  # fmt: skip


def people(it: Recorder, ada: Runner) -> None:
    """What operators do to jobs that wait, run or have ended."""
    jobs = [add(it, "add-for-people", "people", f"'[{n}]'") for n in range(8)]
    runs = ada.turn("claim-for-people", 3, ["people"])
    on = {"on": "operator"}
    it.step("cancel-running", f"select id from pyworker.cancel_job({jobs[0]})", **on)
    ada.beat("beat-cancelled", runs)
    ada.turn("fail-cancelled", reports=[{"id": runs[0][0], "run": runs[0][1], "do": "fail", "error": "c"}])
    it.step("cancel-by-force", f"select id from pyworker.cancel_job({jobs[1]}, true)", **on)
    it.step("cancel-waiting", f"select id from pyworker.cancel_job({jobs[3]})", **on)
    it.step("retry", f"select id from pyworker.retry_job({jobs[3]})", **on)
    it.step("delete", f"select id from pyworker.delete_job({jobs[4]})", **on)
    it.step("reschedule", f"select id from pyworker.reschedule_jobs('{{{jobs[5]}}}', priority => 7)", **on)
    it.step("complete", f"select id from pyworker.complete_jobs('{{{jobs[6]}}}')", **on)
    it.step("fail-for-good", f"select id from pyworker.permanently_fail_jobs('{{{jobs[7]}}}', 'no')", **on)
    it.step("retry-jobs", f"select id from pyworker.retry_jobs('{{{jobs[7]}}}')", **on)
    it.step("action", f"select ok from pyworker.perform_action('cancel', '{{{jobs[7]}}}', 'eve')", **on)
    it.step("unlock", f"select pyworker.force_unlock_workers('{{{ada.id}}}')", **on)
    add(it, "add-expiring", "expiring", "expires_at => pyworker.clock() + interval '5 minutes'")


def schedules(it: Recorder, ada: Runner, bob: Runner) -> None:
    it.step(
        "add-schedule",
        f"select name from pyworker.add_schedule('minutely', '* * * * *', '{TICK}', backfill => '1 day')",
    )
    advance(it, "3 minutes", ada, bob)
    it.step("tick", "select pyworker.run_schedules()")
    it.step("tick-again", "select pyworker.run_schedules()")
    advance(it, "2 minutes", bob, ada)  # the first beat fires what is due, and does not wait for the disk
    bob.turn("claim-ticks", 2, [TICK])
    it.step("pause-schedule", "select name from pyworker.pause_schedule('minutely')", on="operator")
    it.step("resume-schedule", "select name from pyworker.resume_schedule('minutely')", on="operator")
    advance(it, "2 minutes")
    it.step("run-schedule", "select id from pyworker.run_schedule('minutely')", learns=added)


def below(it: Recorder) -> None:
    """The functions below `work`, and some for many jobs at once."""
    on = {"on": "fay"}
    rows = it.step(
        "register", "select pyworker.register_worker('{\"name\": \"fay\"}')", durable=ALWAYS,
        learns=lambda rows: [Fact("worker", rows[0])], **on,
    )  # fmt: skip
    fay = rows[0][0]
    it.step("update-worker", f'select pyworker.update_worker({fay}, \'{{"host": "h"}}\')', **on)
    it.step("hold-lock", f"select pyworker.hold_worker_lock({fay})", on="fay-beat")
    it.step("heartbeat", f"select pyworker.heartbeat({fay})", on="fay-beat")
    for _ in range(7):
        add(it, "add-low", "low")
    runs = it.step(
        "claim-jobs", f"select id, run from pyworker.claim_jobs({fay}, 7, '{{low}}')", **on,
        learns=lambda rows: [Fact("claimed", (fay, *row)) for row in rows],
    )  # fmt: skip

    def report(step: str, call: str, *ended: int) -> None:
        it.step(step, f"select pyworker.{call}", learns=lambda _: [Fact("accepted", runs[n]) for n in ended],
                **on)  # fmt: skip

    (a, ra), (b, rb), (c, rc), (d, rd), (e, re), (f, rf), _ = runs
    report("log-jobs", f'log_jobs(\'[{{"id": {a}, "run": {ra}, "message": "m"}}]\')')
    report("finish-jobs", f"finish_jobs('{{{a}}}', '{{{ra}}}', array['1'::jsonb])", 0)
    report("fail-jobs", f'fail_jobs(\'[{{"id": {b}, "run": {rb}, "error": "e"}}]\')', 1)
    report("snooze-job", f"snooze_job({c}, {rc}, '1 hour')", 2)
    report("snooze-jobs", f"snooze_jobs('{{{d}}}', '{{{rd}}}', '{{1 hour}}')", 3)
    report("release-jobs", f"release_jobs('{{{e}}}', '{{{re}}}')", 4)
    report("reconcile", f"reconcile({fay}, '{{{f}}}', '{{{rf}}}')", 6)
    it.step("unregister", f"select pyworker.unregister_worker({fay})", learns=closed(fay), **on)
    it.step("promote-jobs", "select pyworker.promote_jobs()", **on)
    it.step(
        "declare-schedules",
        "select action from pyworker.declare_schedules('{code:app}', "
        """'[{"name": "declared", "cron": "0 0 1 1 *", "identifier": "t"}]')""",
    )
    it.step(
        "schedule-of-query",
        "select name from pyworker.add_schedule('asked', '0 0 1 1 *', 'asked', query => 'select 7 priority')",
    )
    it.step("run-query", "select id from pyworker.run_schedule('asked')", learns=added)
    people = {"on": "operator"}
    it.step(
        "act-on-listed",
        "select first_audit, last_audit from pyworker.perform_on_listed('cancel', 'eve', tasks => '{asked}')",
        **people,
    )


def endings(it: Recorder, ada: Runner, bob: Runner) -> None:
    """Claims that are on no disk yet; dead workers; housekeeping."""
    cy = Runner(it, "cy")
    last_claims(it, cy)
    cy.turn("claim-and-close", 1, ["last"])
    it.step("close", f"select pyworker.close_worker({cy.id})", on="cy", learns=closed(cy.id))
    dan = Runner(it, "dan")
    dan.turn("claim-and-crash", 2, ["later", "people", "unique"])
    it.step("report-crash", f"select pyworker.report_crash({dan.id})", on="dan", learns=closed(dan.id))
    eve = Runner(it, "eve")
    eve.turn("claim-and-die", 2, ["people", "unique", "last"])
    advance(it, "15 s", ada, bob)
    advance(it, "15 s")
    it.step("sweep", "select pyworker.sweep_workers()", on="bob-beat", learns=closed(eve.id))
    it.step("maintain", "select pyworker.maintain()", on="bob")
    it.step("prune", "select pyworker.prune()", on="operator")
    ada.turn("claim-at-the-end", 2)
    it.step("remove-schedule", "select name from pyworker.remove_schedule('minutely')", on="operator")
    advance(it, "1 minute")


def last_claims(it: Recorder, cy: Runner) -> None:
    """Nothing of a claim and of its handler's transaction is on disk when the COMMIT is sent, and its answer
    may never come."""
    add(it, "add-last", "last")
    add(it, "add-last", "last")
    add(it, "add-last-charge", "charge")
    cy.turn("claim-last-charge", 1, ["charge"])
    (last, *_) = cy.turn("claim-last", 1, ["last"])
    book(cy, "last", last)


def advance(it: Recorder, interval: str, *alive: Runner) -> None:
    # In one statement: a sweep in between, which depends on real time, would take the second for dead.
    renewed = "".join(f", pyworker.heartbeat({runner.id})" for runner in alive)
    it.step("clock", f"select pyworker.advance_clock('{interval}'){renewed}")
    for runner in alive:
        runner.beat("beat")


def closed(worker: int) -> Any:
    return lambda _: [Fact("closed", (worker,))]  # type: ignore[misc]
