"""What is dearer than a plain job, and how many times: by SQL alone, in one database.

    python bench/corners.py [--rounds 5] [--jobs 20000] [--beside 1000000]

It starts a PostgreSQL of its own, or uses DATABASE_URL, as bench/run.py does. Figures are microseconds of
the backend's CPU for each job, medians with the least and the largest. The ratios are those within a round,
in which each corner follows the plain jobs that it is compared with. At last so many jobs wait, and the
figures of explain_job and doctor are milliseconds that pass.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from flow_costs import FINISHED, WITHOUT, Base, Run, base
from stage import stage

TURN = "select kind, id, run from work(%s, %s::bigint[], %s::bigint[], null, '[]', %s)"
PLAIN, COMPLETES = "plain jobs, add to end", "a report of 500 jobs that completed"
# The figure, with what it is compared, the target.
CORNERS = [
    ("a report of 500 jobs that failed", COMPLETES, "≤ 3"),
    ("10 serial queues, add to end", PLAIN, "≤ 2"),
    ("each job in a new queue, add to end", PLAIN, "≤ 3"),
    ("one sequence, add to end", PLAIN, ""),
    ("retry_jobs of 10,000 discarded jobs", "", "≤ 100 us"),
    ("explain_job, ms", "", "≤ 5"),
    ("doctor, ms", "", "≤ 1000"),
]
found: dict[str, list[float]] = defaultdict(list)


def added(db: Base, jobs: int, **more: object) -> float:
    """Adds jobs, 1,000 a call: microseconds. A text in `more` is formatted with the job's number."""
    spent = 0.0
    for start in range(0, jobs, 1000):
        specs = [{"identifier": "t", "payload": {"n": n}} for n in range(start, min(start + 1000, jobs))]
        for n, spec in enumerate(specs, start):
            spec.update((name, v.format(n) if isinstance(v, str) else v) for name, v in more.items())
        spent += db.timed(WITHOUT, json.dumps(specs))
    return spent


def drained(db: Base, batch: int = 500) -> float:
    """Drains the queue by turns, each of which reports and claims: microseconds."""
    began = db.clock()
    run: Run = ([], [])
    while True:
        rows = db.conn.execute(TURN, [db.worker, *run, batch]).fetchall()
        jobs = [row[1:] for row in rows if row[0] == "job"]
        if not (jobs or run[0]):
            return db.clock() - began
        run = ([job[0] for job in jobs], [job[1] for job in jobs])


def failed(db: Base, run: Run, **more: object) -> float:
    items = [{"id": job, "run": number, "error": "!", **more} for job, number in zip(*run, strict=True)]
    return db.timed("select count(*) from fail_jobs(%s::jsonb)", json.dumps(items))


def afresh(db: Base) -> None:
    db.empty()
    db.conn.execute("truncate errors")
    db.vacuum()
    added(db, 200)
    drained(db, 50)  # after a vacuum a session plans its statements again


def compare(db: Base, jobs: int) -> None:
    """One round."""
    for what, count, more in (
        (PLAIN, jobs, {}),
        ("each job in a new queue, add to end", jobs, {"queue_name": "q{}"}),
        ("one sequence, add to end", jobs // 10, {"sequence_policy": {"key": "s"}}),
    ):
        afresh(db)
        found[what].append((added(db, count, **more) + drained(db)) / count)
    afresh(db)
    spent = sum(added(db, jobs // 10, queue_name=f"q{queue}") for queue in range(10))
    found["10 serial queues, add to end"].append((spent + drained(db)) / jobs)
    afresh(db)
    added(db, 1000)
    found[COMPLETES].append(db.timed(FINISHED, *db.claim(500)[1]) / 500)
    found["a report of 500 jobs that failed"].append(failed(db, db.claim(500)[1]) / 500)


def retry(db: Base) -> None:
    afresh(db)
    added(db, 10_000)
    ids: list[int] = []
    for _ in range(20):
        run = db.claim(500)[1]
        failed(db, run, discard=True)
        ids += run[0]
    took = db.timed("select count(*) from retry_jobs(%s)", ids) / len(ids)
    found["retry_jobs of 10,000 discarded jobs"].append(took)


def look(db: Base, beside: int, rounds: int) -> None:
    added(db, beside)
    db.vacuum()
    for statement, what in (
        ("select count(*) from explain_job((select max(id) from live_jobs))", "explain_job, ms"),
        ("select count(*) from doctor()", "doctor, ms"),
    ):
        for _ in range(rounds):
            began = time.perf_counter()
            db.conn.execute(statement)  # type: ignore[call-overload]
            found[what].append((time.perf_counter() - began) * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20_000, metavar="N", help="jobs of a drain")
    parser.add_argument("--beside", type=int, default=1_000_000, metavar="N", help="jobs that wait")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("bench/results/corners"), metavar="DIR")
    options = parser.parse_args()
    with stage(options.out.absolute()) as one, base(one, "corners") as db:
        print(f"PostgreSQL {one.settings['server_version']}, load {os.getloadavg()[0]:.1f}")
        for _ in range(options.rounds):
            compare(db, options.jobs)
            retry(db)
        look(db, options.beside, options.rounds)
    print(f"{'':46} {'median':>9} {'least to largest':>20} {'ratio':>7}   target")
    for what, base_of, target in [(PLAIN, "", ""), (COMPLETES, "", ""), *CORNERS]:
        figures = found[what]
        ratios = [a / b for a, b in zip(figures, found[base_of], strict=True)] if base_of else []
        ratio = f"{statistics.median(ratios):.1f}" if ratios else ""
        spread = f"{min(figures):,.1f} to {max(figures):,.1f}"
        print(f"{what:46} {statistics.median(figures):9,.1f} {spread:>20} {ratio:>7}   {target}")


if __name__ == "__main__":
    main()
