"""For each mutant that takes a lock, a second look or a notification away: a case whose schedules notice it.

`mutants.py` tries this case first, and others only if it notices nothing any more.

PUT_BACK are faults of the first version, each put back by a mutant, with the id of a schedule that shows it.
The schedule is right without the mutant.
"""

NOTICED = {
    "claim_jobs waits for locked rows": "claim+reschedule/waiting/rc/commit-commit",
    "claim_jobs locks nothing": "claim+claim-one/waiting/rc/commit-commit",
    "fail_jobs ignores a request to stop": "fail+cancel/running/rc/commit-commit",
    "a keyed add locks nothing": "add-keyed+add-keyed-all/waiting/rc/commit-commit",
    "a bulk add takes the rows in another order than a completion":
        "add-many-turned+complete/fresh/rc/commit-commit",
    "a bulk add takes new keys in any order": "add-two+add-two-turned/slots/rc/commit-commit",
    "a bulk add waits for a row that came in between": "add-two+add-key-two/waiting/rc/commit-commit",
    "remove_job does not look again": "add-keyed+remove/running/rc/commit-commit",
    "a claim with an old snapshot takes the lane of a queue with a rate":
        "claim+claim-kind/rated/rr/commit-commit",
    "claims of one queue with a rate come at the same time": "add-keyed-moved+work/rated/rc/commit-commit",
    "the limit of a queue with a rate does not count":
        "add-sequenced-claim+add-keyed-moved/fresh/rc/rollback-commit",
    "_lock_job locks nothing": "finish+cancel/graph/rc/commit-commit",
    "promote_jobs waits for what is due and in somebody's hand":
        "claim-queue+idle/waiting/rc/commit-rollback",
    "wake-ups are deleted after the fill, too": "finish-one+add-queued-claim/slots/rc/commit-commit",
    "promote_jobs without the lane": "finish-one+add-queued-claim/slots/rc/commit-commit",
    "an old snapshot judges a lane": "claim+claim-kind/rated/rr/commit-commit",
    "requests stay": "add-other-key+maintain/waiting/rc/rollback-commit",
    "_promote_idle_sequences does not ask who has the head locked":
        "finish-one+add-sequenced-claim/slots/rc/commit-commit",
    "_promote_idle_sequences keeps the head's lock": "finish-one+promote/slots/rc/commit-commit",
    "_promote_idle_sequences waits for the head's lock": "finish-one+promote/slots/rc/commit-commit",
    "_promote_next waits for what is in somebody's hand": "finish-one+cancel-waiter/running/rc/commit-commit",
    "_promote_next forgets what was in somebody's hand":
        "finish-one+cancel-waiter/running/rc/commit-rollback",
    "an old snapshot says whose turn it is": "finish-one+add-sequenced-claim/slots/rr/commit-commit",
    "_fill_queues forgets what another session has locked":
        "finish-one+cancel-queued/running/rc/commit-rollback",
    "_fill_by_kind forgets what another session has locked": "promote+reschedule/fresh/rc/commit-rollback",
    "a serial queue forgets what another session has locked":
        "finish-one+cancel-queued/running/rc/commit-rollback",
    "a unique add does not hold the key": "add-unique-live+add-unique-live/ended/rc/commit-commit",
    "a unique add does not look again": "add-unique-live+add-unique-live/ended/rc/commit-commit",
    "bulk calls take unique keys in any order": "add-many-turned+add-uniques/waiting/rc/commit-commit",
    "a key that somebody holds is waited for to be released":
        "add-unique-live+delete-unique/ended/rc/commit-commit",
    "an old snapshot judges which keys are free": "add-unique-live+delete-unique/ended/rr/commit-commit",
}  # fmt: skip
PUT_BACK = {
    # A queue's slot was given to a job that no worker took, and the jobs of other tasks waited for it.
    "one kind of job has candidates": "claim-kind+promote/fresh/rc/commit-commit/A",
    # An add kept silent beside an open transaction that had notified, which then was rolled back.
    "adds are silent while another one that has notified is open": "add+add/running/rc/rollback-commit/A.A5",
    # A transaction that was open when a worker began to wait was never announced.
    "no worker looks for adds that saw none wait": "add+idle/running/rc/commit-commit/A.A4",
    # The head of a sequence ended while its first waiter was locked, and nothing came back to it.
    "_promote_next forgets what was in somebody's hand":
        "finish-one+cancel-waiter/running/rc/commit-rollback/B.B4",
    # Two bulk retries took the halts of two sequences in opposite orders.
    "retry_jobs locks as it goes": "retry-waiters+retry-waiters-turned/ended/rc/commit-commit/A.A5",
    # A claim that began after a pause was committed started a job that had its slot from before.
    "a slot that was given before a change counts":
        "promote-delete+pause-claim/fresh/rc/commit-commit/A.A23.B21",
}  # fmt: skip
