"""How the machine calls the model and the database alike, and which jobs, runs and times it names."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import psycopg

from tests.model.model import Model
from tests.model.state import HOUR, Refused

NAMES = {
    "task": "identifier", "queue": "queue_name", "key": "job_key", "mode": "job_key_mode",
    "unique": "unique_policy",
    "sequence": "sequence_policy",
}  # fmt: skip


class Calls:
    api: Any
    model: Model
    theme: str | None
    runs: list[tuple[int, int]]

    def both(self, ours: Callable[[Model], Any], theirs: Callable[[], Any]) -> tuple[Any, Any]:
        """What the model and the database say to the same call: a result, or an SQLSTATE."""
        before = deepcopy(self.model)
        self.model.now = self.api.at()
        try:
            got = theirs()
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith("PW"):
                raise
            got = error.sqlstate
        try:
            expected = ours(self.model)
        except Refused as refused:
            self.model, expected = before, str(refused)
        return expected, got

    def same(self, ours: Callable[[Model], Any], theirs: Callable[[], Any]) -> Any:
        expected, got = self.both(ours, theirs)
        assert got == expected
        return got

    def any_job(self, number: int, last: int | None = None) -> int:
        """The id of a job, one of the last; now and then of none."""
        jobs = self.model.jobs[-last:] if last else self.model.jobs
        return jobs[number % len(jobs)].id if jobs and number % 23 else 10**6

    def run(self, number: int) -> tuple[int, int]:
        """A run to speak of: mostly one that goes on, else an earlier one of the same job, or any
        that there has been."""
        now = [(job.id, job.run) for job in self.model.live("running")]
        runs = now if number % 4 else [(job_id, run - 1) for job_id, run in now] if number % 8 else self.runs
        return runs[number // 8 % len(runs)] if runs else (10**6, 1)

    def arguments(self, spec: dict[str, Any]) -> dict[str, Any]:
        named = {NAMES.get(k, k): v for k, v in spec.items()}
        for name in {"run_at", "expires_at", "max_wait"} & set(spec):
            named[name] = str(spec[name])
        on_unmet = named.pop("on_unmet", None)
        if "depends_on" in spec:
            jobs = [
                p if on == "success" else {"ref" if isinstance(p, str) else "id": p, "on": on}
                for p, on in spec["depends_on"]
            ]
            named["depends_on"] = jobs if on_unmet is None else {"jobs": jobs, "on_unmet": on_unmet}
        return named

    def timed(self, spec: dict[str, Any], refs: list[str] | None = None) -> dict[str, Any]:
        """With the jobs that it waits for and its times, and with the sequence, the queue or the key that
        this is about."""
        spec = dict(spec)
        if "after" in spec:
            spec["depends_on"] = self.parents(spec.pop("after"), refs or [])
        if self.theme == "sequence":
            spec["sequence"] = {**spec.get("sequence", {}), "key": "s"}
        elif self.theme == "queue":
            spec["queue"] = "q"
        elif self.theme == "key" and "unique" not in spec:
            spec["key"] = "a"
        for name in {"run_at", "expires_at"} & set(spec):
            spec[name] = self.api.at(f"{spec[name]} hours")
        wait = spec.pop("max_wait", None)
        if wait is not None and spec.get("key"):
            spec["max_wait"] = wait * HOUR
        return spec

    def added(self, expected: Any, got: Any) -> None:
        if isinstance(expected, str) or isinstance(got, str):
            assert got == expected
            return
        newest = max((job.id for job in self.model.jobs if job.id < 10**9), default=0)
        for row, (job, deduplicated) in zip(got, expected, strict=True):
            if job.id >= 10**9:
                assert row.id > newest
                job.id = newest = row.id
            assert (row.id, row.deduplicated) == (job.id, deduplicated)

    def parents(self, after: list[tuple[int, str]], refs: list[str]) -> list[tuple[int | str, str]]:
        """The jobs of `after`: refs of the same call, or jobs that are there; where this is about
        dependencies, the last ones."""
        found: list[tuple[int | str, str]] = []
        for number, condition in after:
            if number % 29 == 0:
                parent: int | str = "of no job"
            elif refs and number % 3:
                parent = refs[number // 3 % len(refs)]
            else:
                parent = self.any_job(number // 3, 4 if self.theme == "dependency" else None)
            found.append((parent, condition))
        return found

    def call(self, many: list[dict[str, Any]], forwards: bool) -> list[dict[str, Any]]:
        """The specs of one call, which refer to later ones or to earlier ones, seldom to any."""
        refs = [f"r{n}" for n in range(len(many))]
        known = [
            refs if sum(number for number, _ in spec.get("after", [])) % 31 == 30
            else refs[n + 1 :] if forwards else refs[:n]
            for n, spec in enumerate(many)
        ]  # fmt: skip
        many = [self.timed(spec, known[n]) for n, spec in enumerate(many)]
        named = {parent for spec in many for parent, _ in spec.get("depends_on", [])}
        return [{**spec, "ref": r} if r in named or n % 2 else spec for n, (r, spec) in
                enumerate(zip(refs, many, strict=True))]  # fmt: skip
