"""What a limit that does not bind costs pyworker, pgqueuer and pg-boss: each against itself, in one run.

    python bench/limit_peers.py [--jobs 20000] [--rounds 3] [--limit 10000]

CPU of worker and server per job of a drain, without a limit and with one over all workers that never
binds: `set_queue` (a concurrency, and a rate), pgqueuer's `concurrency_limit`, pg-boss'
`groupConcurrency`. The others have none in their open editions: Graphile Worker (a named queue is
serial), River and Oban for Python (global and rate limits are in their paid editions), procrastinate
and Chancy (a lock, or a limit of each worker). pgqueuer 1 and pg-boss have no rates over all workers.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import replace
from pathlib import Path

from contenders import CONTENDERS, JOBS, PAYLOAD, SPEC, install
from stage import stage
from workloads import drain

QUEUED = f'{SPEC} || \'{{"queue_name": "q"}}\''
GROUPED = f"insert into pgboss.job (name, data, group_id) select %(task)s, {PAYLOAD}::jsonb, 'q' from {JOBS}"
SETTINGS = {
    "pyworker, queue without a limit": "select pyworker.set_queue('q', null)",
    "pyworker, concurrency": "select pyworker.set_queue('q', {limit})",
    "pyworker, rate": "select pyworker.set_queue('q', null, 1000000, '1 s')",
}


def cases(limit: int) -> list[tuple[str, str, str]]:
    """What is measured, by which contender, and the limit that its program reads."""
    ours, boss = CONTENDERS["pyworker"], CONTENDERS["pg-boss"]
    for name, setting in SETTINGS.items():
        CONTENDERS[name] = replace(
            ours, name=name, fill=ours.fill.replace(SPEC, QUEUED), setup=(setting.format(limit=limit),)
        )
    CONTENDERS["pg-boss, groups"] = replace(boss, name="pg-boss, groups", fill=GROUPED)
    return [
        *((name, name, "") for name in ("pyworker", *SETTINGS, "pgqueuer")),
        ("pgqueuer, concurrency_limit", "pgqueuer", str(limit)),
        ("pg-boss", "pg-boss", ""),
        ("pg-boss, groupConcurrency", "pg-boss, groups", str(limit)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "limits")
    options = parser.parse_args()
    for name, why in install(["pgqueuer", "pg-boss"]).items():
        print(f"{name}: {why}")
    with stage(options.out.resolve()) as one:
        print(f"PostgreSQL {one.settings['server_version']}, load {os.getloadavg()[0]:.1f}")
        found: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for what, name, limit in cases(options.limit):
                os.environ["BENCH_LIMIT"] = limit  # programs read it
                with one.site(name) as site:
                    found.setdefault(what, []).append(drain(site, options.jobs)["cpu"] * 1000)
        print("                                us a job, worker and server")
        for what, figures in found.items():
            print(f"{what:32} {statistics.median(figures):8.1f}   ({min(figures):.1f} to {max(figures):.1f})")


if __name__ == "__main__":
    main()
