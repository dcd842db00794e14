"""For each mutant that takes a lock, a second look or a notification away: a case whose schedules notice it.

`mutants.py` tries this case first, and others only if it notices nothing any more.

PUT_BACK are faults of the first version, each put back by a mutant, with the id of a schedule that shows it.
The schedule is right without the mutant.
"""

NOTICED = {
    "an end leaves no request for a queue whose next job is locked":
        "finish-one+cancel-queued/running/rc/commit-rollback",
    "a sequence whose next job is locked is not looked at again":
        "finish-one+cancel-waiter/running/rc/commit-rollback",
    "fail_jobs ignores a request to stop": "fail+cancel/running/rc/commit-commit",
    "a keyed add locks nothing": "add-keyed+add-keyed-all/waiting/rc/commit-commit",
    "a bulk add takes the rows in another order than a completion":
        "add-many-turned+complete/fresh/rc/commit-commit",
    "a bulk add takes new keys in any order": "add-two+add-two-turned/slots/rc/commit-commit",
    "a bulk add waits for a row that came in between": "add-two+add-key-two/waiting/rc/commit-commit",
    "remove_job does not look again": "add-keyed+remove/running/rc/commit-commit",
    "_lock_job locks nothing": "finish+cancel/graph/rc/commit-commit",
    "promote_jobs waits for what is due and in somebody's hand":
        "claim-queue+idle/waiting/rc/commit-rollback",
    "a unique add does not hold the key": "add-unique-live+add-unique-live/ended/rc/commit-commit",
    "a unique add does not look again": "add-unique-live+add-unique-live/ended/rc/commit-commit",
    "bulk calls take unique keys in any order": "add-many-turned+add-uniques/waiting/rc/commit-commit",
    "a key that somebody holds is waited for to be released":
        "add-unique-live+delete-unique/ended/rc/commit-commit",
    "an old snapshot judges which keys are free": "add-unique-live+delete-unique/ended/rr/commit-commit",
}  # fmt: skip
PUT_BACK = {
    # Two bulk retries took the halts of two sequences in opposite orders.
    "retry_jobs locks as it goes": "retry-waiters+retry-waiters-turned/ended/rc/commit-commit/A.A5",
}  # fmt: skip
