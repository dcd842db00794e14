"""The screens that `pyworker top` opens over its tables: a confirmation, and one job."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.events import Key, Mount
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from .._db.database import Database
from .._db.rows import JobRow
from .._escape import shown
from .._tables import text_of
from .._values import STYLES
from .pages import Row

EVERY = 2.0  # seconds between refreshes
UNREAD = 0.3  # seconds that it takes to read a question

Answer = tuple[JobRow | None, list[Row], list[Row]]  # the job, its errors, why it waits


class Ask(ModalScreen[bool]):
    """Asks for confirmation; only y confirms, unless it came with the key that asked, as pasted text does."""

    BINDINGS: ClassVar = [Binding("n,escape,q,enter", "dismiss(False)", "No", key_display="n")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question
        self.asked = math.inf

    def on_mount(self, event: Mount) -> None:
        self.asked = event.time

    def compose(self) -> ComposeResult:
        yield Static(
            Text.assemble(shown(self.question), "\n\n", ("y", "bold"), " yes    ", ("n", "bold"), " no"),
            id="ask",
        )

    def key_y(self, event: Key) -> None:
        if event.time > self.asked + UNREAD:
            self.dismiss(True)


class JobPage(ModalScreen[None]):
    """One job: its fields, why it is not running, and the errors of its attempts.

    The payload is hidden until you press v.
    """

    BINDINGS: ClassVar = [
        Binding("r", "act('retry')", "Retry"), Binding("c", "act('cancel')", "Cancel"),
        Binding("C", "act('force_cancel')", "Force", show=False), Binding("d", "act('delete')", "Delete"),
        Binding("v", "reveal", "Payload"), Binding("escape,q,enter", "dismiss", "Back", key_display="esc"),
    ]  # fmt: skip

    def __init__(
        self,
        job_id: int,
        ask: Callable[[Callable[[Database], Answer], str], Awaitable[Answer | None]],
        ask_back: Callable[[str, str, str, Callable[[], Any]], None],
    ) -> None:
        super().__init__()
        self.job_id = job_id
        self.ask, self.ask_back = ask, ask_back
        self.revealed = False

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="page"):
            yield Static(id="job")
        yield Footer()

    async def on_mount(self) -> None:
        await self.look()
        self.set_interval(EVERY, self.look)

    async def look(self) -> None:
        def question(db: Database) -> Answer:
            job = (db.get_job if self.revealed else db.show_job)(self.job_id)
            return job, db.job_errors(self.job_id), db.explain_job(self.job_id) if job else []

        answer = await self.ask(question, "admin" if self.revealed else "reader")
        if answer is None:
            self.revealed = False
            return
        job, errors, reasons = answer
        self.query_one("#job", Static).update(
            self._text(job, errors, reasons) if job else Text(f"there is no job {self.job_id} any more")
        )

    def _text(self, job: JobRow, errors: list[Row], reasons: list[Row]) -> Text:
        text = Text()
        for name, value in asdict(job).items():
            hidden = name == "payload" and not self.revealed  # the result as well
            if (value is None and not hidden) or name in ("last_error", "deduplicated"):
                continue
            cell = text_of(
                json.dumps(value, ensure_ascii=False)
                if name in ("payload", "meta", "flags", "result")
                else value
            )
            if hidden:
                cell = Text("not shown; v shows it", "dim")
            text.append(f"{name:20}", "bold").append_text(cell).append("\n")
            if name == "state":
                text.stylize(STYLES.get(job.state, ""), len(text) - len(cell) - 1)
        text.append("\nwhy\n", "bold underline")
        for row in reasons:
            text.append(row["reason"], "bold").append(shown(f": {row['detail']}\n"))
            if row["remedy"]:
                text.append(shown(f"   → {row['remedy']}\n"))
        for error in errors:
            text.append(f"\nattempt failed {text_of(error['at'])} on worker {error['worker']}\n", "yellow")
            text.append(shown(f"{error['error'].rstrip()}\n"))
        return text

    def action_act(self, action: str) -> None:
        self.ask_back(action, str(self.job_id), "job", self.look)

    async def action_reveal(self) -> None:
        self.revealed = not self.revealed
        await self.look()
