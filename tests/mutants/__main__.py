"""Tries the mutants, on a copy of the checkout and one PostgreSQL.

    python -m tests.mutants [name …]     all of them, or those whose name begins so

A mutant that is not killed is a rule that nothing tests. One that does not install, or has
statements that do not even run, counts as broken, not as killed.

Left out, as no test can tell them from the original: _claim without `materialized` (PostgreSQL never
inlines a CTE that locks rows); _claim and _open_queues without the id in their `order by` (the index they
are pinned to has it); _lock_for_adds without the order of its rows (an index gives them in that order
anyway; another order will not do); work and claim_jobs, each without its pins (the other has enough of
them); _prune and _rate_room with < for <= (time never stands still for it); _lanes_of and _was_let_in that
do not look for a pause (it is a new version of the settings); _pass that answers timers before their time,
and _set_kinds_aside without its timer (a pass asks again for each queue that has room and in which jobs
wait). A keyed add that leaves a running job its key never ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import MUTANTS, SQL, Mutant, refusals

CHECKOUT = SQL.parent
SECONDS = 120  # for one mutant; its tests end by themselves long before, unless it hangs
# What a mutant may not die of: it does not install, or has a statement that could never have run.
BROKEN = re.compile(
    r"in _install\n|psycopg\.errors\."
    r"(?:UndefinedColumn|UndefinedFunction|UndefinedTable|SyntaxError|Ambiguous\w+).*"
)


@dataclass(frozen=True)
class Place:
    """Where mutants are tried."""

    copy: Path
    url: str

    def python(self, *arguments: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYWORKER_TEST_DATABASE_URL": self.url,
        }
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.copy, env=environment, timeout=seconds, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def pytest(self, tests: list[str], *options: str, seconds: float | None = None) -> tuple[int, str]:
        self.clean()
        nodes = [f"tests/{test}" for test in tests]
        ran = self.python(
            "-m", "pytest", "-n", "0", "-q", "-m", "not torture", "-p", "no:cacheprovider",
            *options, *nodes, seconds=seconds,
        )  # fmt: skip
        return ran.returncode, ran.stdout

    def clean(self) -> None:
        """Drop what a run that was ended has left behind."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as conn:
            for (name,) in conn.execute(
                "select datname from pg_database where datname ~ '^pyworker_test'"
            ).fetchall():
                conn.execute(f'alter database "{name}" is_template false')
                conn.execute(f'drop database "{name}" with (force)')


@contextmanager
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="pyworker-mutants-") as directory:
        copy = Path(directory)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=CHECKOUT, check=True, text=True, stdout=subprocess.PIPE,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (CHECKOUT / name).is_file():  # not deleted
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(CHECKOUT / name, copy / name)
        sys.path.insert(0, directory)
        from pyworker._dev.postgres import temporary_server
        from pyworker._files import directory as directory_of

        with temporary_server(in_memory=True, settings={"max_prepared_transactions": "4"}) as server:
            here = Place(copy, server.url())
            # The tests, too, must find the copy's SQL.
            found = here.python(
                "-c", "import pytest, pyworker._files as f; print(f.directory('sql'))"
            ).stdout.strip()
            if {Path(found), directory_of("sql")} != {(copy / "sql").resolve()}:
                sys.exit(f"the SQL that would be tested is {found}, not the copy's")
            yield here


def judged(here: Place, mutant: Mutant) -> tuple[str, str]:
    """killed, SURVIVED or broken; and by whom, or why."""
    ((source, start, end),) = mutant.places()
    path = here.copy / source.relative_to(CHECKOUT)
    original = path.read_text("utf-8")
    path.write_text(original[:start] + mutant.put + original[end:], "utf-8")
    try:
        try:
            code, output = here.pytest(mutant.tests, "-x", "--tb=short", seconds=SECONDS)
        except subprocess.TimeoutExpired:
            return ("killed", "it hangs") if mutant.waits else ("broken", f"no end within {SECONDS} seconds")
        if os.environ.get("MUTANTS_VERBOSE"):
            print(output)
        if code == 0:
            return "SURVIVED", " ".join(mutant.tests)
        if code != 1:
            return "broken", f"pytest ended with {code}: {output.strip().splitlines()[-1:]}"
        if broken := BROKEN.search(output):
            return "broken", broken[0]
        by = re.search(r"(?m)^(?:FAILED|ERROR) \S*?::(.*?)(?: - .*)?$", output)
        return "killed", by[1] if by else "?"
    finally:
        path.write_text(original, "utf-8")


def main(names: list[str]) -> int:
    chosen = [m for m in MUTANTS if not names or any(m.name.startswith(name) for name in names)]
    if not chosen:
        sys.exit(f"there is no mutant {names}")
    if problems := refusals(chosen):
        sys.exit("\n".join(problems))
    begun = time.monotonic()
    with place() as here:
        code, output = here.pytest(sorted({test for mutant in chosen for test in mutant.tests}))
        if code:
            sys.exit(f"{output}\nThe tests must pass as long as nothing is missing.")
        print(f"no mutant: {output.strip().splitlines()[-1]}", flush=True)
        verdicts: list[tuple[str, str]] = []
        for mutant in chosen:
            verdict, why = judged(here, mutant)
            verdicts.append((verdict, mutant.name))
            print(f"{verdict:8}  {mutant.name}  ({why})", flush=True)
    counts = {
        verdict: [v for v, _ in verdicts].count(verdict) for verdict in ("killed", "SURVIVED", "broken")
    }
    print(
        ", ".join(f"{n} {verdict}" for verdict, n in counts.items()),
        f"in {time.monotonic() - begun:.0f} seconds",
    )
    return counts["killed"] < len(verdicts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
