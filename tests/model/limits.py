"""The machine for limits, rates and turns."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.model.machine import Machine
from tests.model.strategies import LIMITED, numbers, specs


class Limits(Machine):
    """All jobs in queues with limits, rates and turns, which few of the other examples have."""

    # What has little to do with it.
    define_task = once = resume_sequence = step_or_signal = add_batch = None  # type: ignore[assignment]
    extend_batch = let_a_job_go_on = end_what_others_wait_for = remove_job = start = finish_one = None  # type: ignore[assignment]
    add_schedule = change_a_schedule = schedules_tick = run_schedule = None  # type: ignore[assignment]
    many = delete = change_a_worker = None  # type: ignore[assignment]

    @initialize(
        many=st.lists(specs, min_size=6, max_size=12),
        theme=st.sampled_from([None, None, "sequence"]),
        claims=st.integers(0, 2),
    )
    def begin(self, many: list[dict[str, Any]], theme: str | None, claims: int) -> None:
        super().begin(many, theme, claims)

    def timed(self, spec: dict[str, Any], refs: list[str] | None = None) -> dict[str, Any]:
        """Many jobs of one kind, in few queues."""
        gone = ("after", "on_unmet", "expires_at", "max_wait", "key", "mode", "unique")
        spec = {k: v for k, v in spec.items() if k not in gone}
        number = len(self.model.jobs) + 7 * len(spec)
        if number % 4:
            spec = {k: v for k, v in spec.items() if k not in ("run_at", "flags")} | {"task": "t"}
        if spec.get("queue") not in LIMITED:
            spec["queue"] = LIMITED[number % len(LIMITED)]
        return super().timed(spec, refs)

    @rule(number=numbers, limit=st.sampled_from([1, 2, 3, 9]))
    def claim_more(self, number: int, limit: int) -> None:
        self.claim(number, limit)

    @rule(number=numbers, limit=st.sampled_from([1, 2, 3]))
    def finish_all_and_claim(self, number: int, limit: int) -> None:
        runs = [(job.id, job.run) for job in self.model.live("running")]
        if runs:
            ended = [list(column) for column in zip(*runs, strict=True)]
            self.same(lambda m: m.finish(runs), lambda: sorted(self.api.finish_jobs(*ended)))
        self.claim(number, limit)
