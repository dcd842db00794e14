"""The queue in plain Python, written from what is promised."""

from __future__ import annotations

from typing import Any

from tests.model.adds import Adds
from tests.model.people import People
from tests.model.runs import Runs


class Model(Adds, Runs, People):
    def maintain(self) -> int:
        self.prune()
        return self.sweep()

    def placed(self) -> set[tuple[int, str | None]]:
        """The jobs that have joined their sequences."""
        return {(job.id, job.sequence) for job in self.jobs if job.place}

    def follow(self, heads: dict[str, int], placed: set[tuple[int, str | None]]) -> None:
        """Which of two jobs that join a sequence by one call becomes its head is no promise; but none
        passes a job that had its place before."""
        for sequence, job_id in heads.items():
            ours, job = self.head(sequence), self.get(job_id)
            if job and job is not ours:
                passed = [j for j in self.waiting(sequence) if j.id < job.id] + ([ours] if ours else [])
                assert not [j for j in passed if (j.id, sequence) in placed]
                if ours:
                    ours.place = "waiting"
                    self.wait(ours)
                job.place = "head"
                self.wait(job)

    # What the views show

    def sequences(self) -> dict[str, Any]:
        shown = {}
        for s in {j.sequence for j in self.jobs if j.place} | {s for s, _ in self.halts}:
            waiting, head = self.waiting(s), self.head(s)
            halts = [
                h for h in sorted(h for t, h in self.halts if t == s) if not waiting or h < waiting[0].id
            ]
            halted = not head and (not waiting or waiting[0].place == "waiting")
            shown[s] = (head.id if head else None, len(waiting), halts[0] if halted and halts else None)
        return shown
