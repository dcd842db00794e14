"""For each mutant that takes a lock, a second look or a notification away: a case whose schedules notice it.

`mutants.py` tries this case first, and others only if it notices nothing any more.
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
