"""What may read more beside a crowd: verb, crowd (empty: any), how many rows and pages more, and why."""

from __future__ import annotations

from tests.rows.crowds import GONE

_FEW = 30_000  # more than any crowd here has, and what these functions say that they read at most
_ALL = 10_000_000

ALLOWED: list[tuple[str, str, int, str]] = [
    ("doctor", "", _ALL, "it checks what must always hold, in up to 250,000 rows of each table"),
    ("problems", "", 10 * _FEW, "it reads some 100,000 rows at most"),
    ("metrics", "", 8 * _FEW, "it counts up to max_rows of a kind"),
    ("overview", "", 8 * _FEW, "it counts jobs, as count_jobs does"),
    ("count_jobs", "", 8 * _FEW, "it counts up to 10,000 jobs of a kind"),
    ("waiting_queues", "", 8 * _FEW, "it looks for the oldest jobs of queues"),
    ("explain_job: the last one", "", _FEW, "it counts up to 10,000 jobs that come first"),
    ("explain_job: of a sequence", "of one sequence", _FEW, "it counts up to 10,000 jobs that come first"),
    ("list_jobs", "", 3000, "it reads the 500 newest jobs in four ways"),
    ("list_jobs: of a state", "", 8 * _FEW, "it reads about 20,000 rows at most"),
    ("list_jobs: of a task", "", 8 * _FEW, "it reads about 20,000 rows at most"),
    ("list_jobs: with a key", "", 8 * _FEW, "it reads about 20,000 rows at most"),
    ("count_listed_jobs", "", 8 * _FEW, "it reads about 20,000 rows at most"),
    ("perform_on_listed", "", 8 * _FEW, "it finds the jobs as list_jobs does"),
    ("list_tasks", "tasks", _FEW, "it lists them"),
    ("list_sequences", "", _FEW, "it counts up to 1,000 jobs of each sequence of a page"),
    ("list_workers", "", 3 * _FEW, "it counts the running jobs of each"),
    ("throughput", "", _FEW, "it reads a sample of what has ended in the last hour"),
    ("activity", "", _FEW, "it reads a sample of what has ended in the last hour"),
    ("list_queues", "", _FEW, "it counts up to 1,000 jobs of each queue of a page, and their starts"),
    ("beat: that sweeps", "", 3000, "it looks whether other sessions lock the first 1,000 ready jobs"),
    ("maintain", "", 2 * _FEW, "it reads 20,000 rows of each partition of which jobs expire today"),
    ("prune", "", _ALL, "it removes all that has expired, and reads where that may be"),
    ("set_queue: a rate", "", _FEW, "it looks for the earlier starts of the queue in 20,000 jobs of history"),
    ("work: of one task", "", 8 * _FEW, "a session passes the ready jobs of other tasks, at intervals"),
    ("claim_jobs: of one task", "", 8 * _FEW, "a session passes the ready jobs of other tasks, at intervals"),
    ("claim_jobs: of one queue", "", 8 * _FEW, "a session passes the ready jobs of others, at intervals"),
    # A claim leaves jobs in the index of ready ones until they end. There are as many as workers hold.
    *(
        (verb, crowd, 6 * _FEW, "it passes the running jobs, at intervals")
        for verb in ("claim_jobs", "work", "work: that reports", "beat: that sweeps")
        for crowd in ("running", "with logs")
    ),
    *(
        (verb, crowd, 8000, "a promotion handles some 100 queues, and some 300 jobs of a rate")
        for verb in ("claim_jobs", "work", "promote_jobs", "set_queue", "pause_queue", "resume_queue")
        for crowd in (
            "of many queues", "of many sequences", "of a family that takes turns", "completed of a rate"
        )
    ),
    ("job_graph", "", 2 * _FEW, "a plan of a small table reads all edges until ANALYZE"),
    # Under an old snapshot.
    *((verb, crowd, 4500, "no session remembers a walk along requests of less than half a millisecond")
      for verb in ("work", "claim_jobs", "promote_jobs", "seconds_until_due", "maintain") for crowd in GONE),
    # Each of these jobs left a request. In half a millisecond a fast machine passes some 12,000 of them.
    *((verb, crowd, 12_000 * walks, "no session remembers a walk of less than half a millisecond")
      for verb, walks in (("work", 5), ("claim_jobs", 5), ("promote_jobs", 1), ("seconds_until_due", 1),
                          ("maintain", 1))
      for crowd in ("gone: of many queues", "gone: of many sequences", "gone: that waited for one job")),
    ("dependency_results", "gone: that waited for one job", _FEW, "a plan reads the edges of a parent that"
     " are gone"),
    *(("beat: that sweeps", crowd, 2 * _FEW, "once a second, one session looks from the first ready job")
      for crowd in GONE),
    *((verb, crowd, 2 * _FEW, "the look for the next scheduled job passes those that are gone")
      for verb in ("work", "claim_jobs", "seconds_until_due")
      for crowd in ("gone: deleted", "gone: retried")),
    *((verb, "gone: of a limited queue", 2 * _FEW, "a queue's first job stands behind those that are gone")
      for verb in ("add_job", "add_jobs", "work", "claim_jobs", "finish_job", "promote_jobs")),
    # Plans of small tables hold until the first ANALYZE, and there are as many tasks as the code has.
    *((verb, "tasks", 2 * _FEW, "a plan of a small table reads all tasks until ANALYZE") for verb in (
        "add_job", "add_jobs", "add_batch", "extend_batch", "define_task", "fail_jobs", "run_schedule",
        "add_schedule", "declare_schedules")),
    # Their plans must not be pinned: the queries of schedules would have the settings, too.
    *((verb, "schedules", _FEW, "it may read all schedules") for verb in (
        "run_schedules", "maintain", "declare_schedules", "add_schedule", "remove_schedule",
        "pause_schedule", "resume_schedule", "run_schedule")),
]  # fmt: skip
