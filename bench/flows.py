"""What jobs cost that wait for jobs, steps and signals, and what the others pay for them, on one PostgreSQL.

    python bench/flows.py [edges] [fan-in] [plain] [steps] [rivals] [--before OTHER/sql [--after OTHER/sql]]
                          [--rounds N]

It starts a PostgreSQL of its own, or uses DATABASE_URL, as bench/run.py does. What is compared takes turns.
--before: the sql/ of a checkout of 50e0378, which has no dependencies: plain jobs are compared with it.
--after: that of the version which is compared with it, this one unless told. b6243fa is the first one with
all that jobs wait for; what has come since has changed what plain jobs cost, too.
--members: of the large fan-in. Figures are medians; README.md tells how each is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import contenders
from flow_costs import HERE, WITH_EDGES, Base, base, edges, plain, specs, steps
from flow_workers import by_handlers, by_workers, fan_in
from stage import Stage, stage

TABLES_OF_EDGES = {"edges", "watches", "promotion_requests", "vanished_parents"}
Row = tuple[str, str, str]  # what, the figure, the target


def spread(values: list[float], unit: str) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered):,.2f} {unit} ({ordered[0]:,.2f} to {ordered[-1]:,.2f})"


def longest(ms: list[float]) -> str:
    return f"median {statistics.median(ms):.1f}, largest {max(ms):.1f} ms"


def listed(waits: Counter[str]) -> str:
    return ", ".join(f"{what} {many}" for what, many in waits.most_common()) or "0"


def of_edges(one: Stage, options: argparse.Namespace) -> Iterator[Row]:
    with base(one, "flows_edges") as db:
        few, many = 4 * options.rounds, options.rounds
        for members, rounds, on in (
            (1000, few, "end"), (1000, few, "success"), (options.members, many, "end")
        ):  # fmt: skip
            found = edges(db, members, rounds, on)
            for what, target in (("add", ""), ("end", ""), ("both", "≤ 4 µs")):
                yield (
                    f"an edge of a fan-in of {members:,}, on {on}: {what}",
                    spread(found[what], "µs"),
                    target,
                )


def of_fan_in(one: Stage, options: argparse.Namespace) -> Iterator[Row]:
    with base(one, "flows_fan_in") as db:
        found = fan_in(one, db, options.members, options.rounds, options.sessions)
    title = f"fan-in of {options.members:,}, {options.sessions} sessions"
    if locks := found["locks"]:
        ours = sum(many for what, many in locks["edges"].items() if what in TABLES_OF_EDGES)
        yield f"{title}: lock waits over 10 ms for rows of edges", str(ours), "0"
        yield "all lock waits over 10 ms", listed(locks["edges"]), "0"
        yield "all, of as many jobs without edges", listed(locks["none"]), ""
        yield "the sessions wait for a CPU, of each ms on one", spread(found["starved"], "ms"), ""
    yield f"{title}: last end to callback", longest(found["ms"]), "≤ 50 ms"


def others_edges(db: Base) -> None:
    """100,000 open edges of jobs that nothing claims here."""
    for _ in range(10):
        db.conn.execute(  # type: ignore[call-overload]
            WITH_EDGES, [specs(10_000).replace('"t"', '"other"'), '{"identifier": "other"}']
        )
    db.conn.execute("update live_jobs set ready_at = null, due_at = 'infinity', state = 'scheduled' where "
                    "task_identifier = 'other' and state = 'available'")  # fmt: skip


def of_plain(one: Stage, options: argparse.Namespace) -> Iterator[Row]:
    with ExitStack() as stack:
        kinds: dict[str, Base] = {}
        if options.before:
            kinds["50e0378"] = stack.enter_context(base(one, "flows_before", options.before.resolve()))
        for number, name in enumerate(("never used", "no edge open", "100,000 edges open")):
            kinds[name] = stack.enter_context(base(one, f"flows_plain_{number}", options.after.resolve()))
        kinds["no edge open"].add_for("edges", 10)
        kinds["no edge open"].drain(10)
        others_edges(kinds["100,000 edges open"])
        taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for turn in range(4 * options.rounds + 1):
            for name in kinds if turn % 2 else reversed(kinds):
                kinds[name].vacuum()
                for what, cost in plain(kinds[name]).items():
                    if turn:
                        taken[what][name].append(cost)
        control = next(iter(kinds))
        for what, costs in taken.items():
            yield f"{what}, {control}", spread(costs[control], "µs"), ""
            for name in list(kinds)[1:]:
                ratios = [cost / before for cost, before in zip(costs[name], costs[control], strict=True)]
                yield f"{what}, {name}", spread(ratios, "x"), "1 x" if name == "never used" else ""


def of_steps(one: Stage, options: argparse.Namespace) -> Iterator[Row]:
    taken: dict[str, list[float]] = defaultdict(list)
    with base(one, "flows_steps") as db:
        for turn in range(options.rounds + 1):
            db.vacuum()
            for what, cost in steps(db).items():
                if turn:
                    taken[what].append(cost)
    for what, costs in taken.items():
        unit, target = ("", "≤ 1") if "transactions" in what else ("µs", "")
        yield f"{what}, by SQL alone", spread(costs, unit), target
    with one.site("pyworker") as site:
        found = by_handlers(site, 500, options.rounds)
    yield "a job with 5 steps, pyworker run: CPU in all", spread(found["with"], "µs"), ""
    yield "a job without", spread(found["without"], "µs"), ""
    yield "transactions that write, of a step", spread(found["writes"], ""), "≤ 1"


def of_rivals(one: Stage, options: argparse.Namespace) -> Iterator[Row]:
    missing = contenders.install(["pg-boss"])
    for name in ("pyworker", "pg-boss"):
        if name in missing:
            yield name, missing[name], ""
            continue
        with one.site(name) as site:
            found = by_workers(site, 20, 1000, options.rounds)
        both = [sum(costs) for costs in zip(found["client"], found["server"], strict=True)]
        yield f"{name}, fan-in of 1,000: CPU of an edge, in all", spread(both, "µs"), ""
        yield f"{name}: of the server", spread(found["server"], "µs"), ""
        yield f"{name}: a job with its edge, in all", spread(found["with"], "µs"), ""
        yield f"{name}: a job without, in all", spread(found["without"], "µs"), ""
        yield f"{name}: last member to callback", longest(found["ms"]), ""


PARTS: dict[str, Callable[[Stage, argparse.Namespace], Iterator[Row]]] = {
    "edges": of_edges,
    "fan-in": of_fan_in,
    "plain": of_plain,
    "steps": of_steps,
    "rivals": of_rivals,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="edges, fan-in, plain, steps, rivals; all if none is named")
    parser.add_argument("--before", type=Path, help="the sql/ of a checkout of 50e0378")
    parser.add_argument("--after", type=Path, default=HERE, help="the sql/ of what is compared with it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--members", type=int, default=100_000, help="of the large fan-in")
    parser.add_argument("--sessions", type=int, default=8, help="that end its members")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "flows")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {min(unknown)}; there are {', '.join(PARTS)}")
    with stage(options.out.resolve()) as one:
        print(f"PostgreSQL {one.settings['server_version']}, load {os.getloadavg()[0]:.1f}", flush=True)
        for name in options.parts or PARTS:
            for what, figure, target in PARTS[name](one, options):
                print(f"{what:62} {figure:38} {target}".rstrip(), flush=True)
        print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
