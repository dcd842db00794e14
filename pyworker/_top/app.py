"""`pyworker top`: the queue in a terminal, refreshed every two seconds, with keys for actions."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, TypeVar, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from .._db.connect import connect, first_line
from .._db.database import Database
from .._db.rights import is_refusal
from .._escape import shown
from .._values import STATES, STYLES, span
from ..errors import PyworkerError, RoleMissing
from .pages import PAGES, ROWS, Page, Row, cell, filters, lately, packed
from .screens import EVERY, Ask, JobPage

T = TypeVar("T")

STATEMENT_TIMEOUT = 10  # seconds that a query may take; a search may take long


class Pages(TabbedContent):
    """Tabs that only keys switch: a late focus event must not."""

    def on_tab_pane_focused(self, event: TabPane.Focused) -> None:
        event.prevent_default()


class Top(App[None]):
    """The screen: an overview of a few lines, six tables, and the keys."""

    CSS = """
    Screen { overflow: hidden; }
    #overview { height: auto; max-height: 7; padding: 0 1; }
    #pages, #pages TabPane, #pages ContentSwitcher { height: 1fr; padding: 0; }
    #filter { height: 1; border: none; padding: 0 1; }
    DataTable { height: 1fr; }
    Ask { align: center middle; }
    #ask {
        width: auto; max-width: 80%; height: auto; padding: 1 3; background: $surface; border: round $warning;
    }
    #page { padding: 1 2; background: $surface; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        *(
            Binding(str(n), f"page('{name}')", page.title, show=False)
            for n, (name, page) in enumerate(PAGES.items(), 1)
        ),
        Binding("enter", "open", "Show"), Binding("e", "open", "Explain"),
        Binding("r", "act('retry')", "Retry"), Binding("c", "act('cancel')", "Cancel"),
        Binding("C", "act('force_cancel')", "Force", show=False), Binding("d", "act('delete')", "Delete"),
        Binding("p", "act('pause')", "Pause/resume"), Binding("g", "act('run')", "Run now"),
        # At once, before the keys that come with it.
        Binding("slash", "filter", "Filter", key_display="/", priority=True), Binding("n", "older", "Older"),
        Binding("b", "newest", "Newest"), Binding("escape", "table", "", show=False),
        Binding("q", "quit", "Quit"),
    ]  # fmt: skip

    def __init__(self, dsn: str, schema: str) -> None:
        super().__init__()
        self.dsn, self.schema = dsn, schema
        self.conn: psycopg.Connection[Any] | None = None
        self.turn = asyncio.Lock()
        self.ready = False
        self.rows: dict[str, dict[str, Row]] = {name: {} for name in PAGES}  # by page and key
        self.filters: dict[str, Any] = {}
        self.after: int | None = None  # the last job id of the previous page
        try:
            who = getpass.getuser()
        except (KeyError, OSError):
            who = "unknown"
        self.actor = f"{who}@{socket.gethostname()} (pyworker top)"

    def compose(self) -> ComposeResult:
        yield Static(id="overview")
        with Pages(id="pages"):
            for n, (name, page) in enumerate(PAGES.items(), 1):
                with TabPane(f"{n} {page.title}", id=name):
                    if name == "jobs":
                        yield Input(
                            placeholder="filter: state:STATE task:NAME queue:NAME key:KEY,"
                            " and words to look for",
                            id="filter",
                        )
                    yield DataTable[Text](id=f"{name}-table", cursor_type="row", zebra_stripes=True)
        yield Footer()

    async def on_mount(self) -> None:
        for name, page in PAGES.items():
            self._table(name).add_columns(*page.columns)
        await self.look()
        self.ready = True
        self.action_table()
        self.set_interval(EVERY, self.look)

    def on_unmount(self) -> None:
        if self.conn is not None:
            self.conn.close()

    def _table(self, name: str) -> DataTable[Text]:
        return cast("DataTable[Text]", self.query_one(f"#{name}-table"))

    @property
    def page(self) -> str:
        return self.query_one("#pages", TabbedContent).active or "jobs"

    # -- queries -----------------------------------------------------------------------------------

    async def ask(self, question: Callable[[Database], T], role: str = "reader") -> T | None:
        """Run one query at a time, in a thread; it needs this role.

        None if it failed; the overview shows the reason.
        """
        async with self.turn:
            try:
                return await asyncio.to_thread(self._answer, question)
            except PyworkerError as error:
                self._complain(f"{error}. {error.hint}" if error.hint else str(error))
            except psycopg.Error as error:
                if self.conn is not None and self.conn.broken:
                    self.conn.close()
                if is_refusal(error):
                    words = str(RoleMissing("this", f"{self.schema}_{role}"))
                    self.notify(shown(words), severity="error", markup=False)
                    self._complain(words)
                else:
                    self._complain(first_line(error))
        return None

    def _answer(self, question: Callable[[Database], T]) -> T:
        if self.conn is None or self.conn.closed:
            self.conn = connect(self.dsn)
        with self.conn.transaction():
            db = Database(self.conn, self.schema)
            db.limit_time(STATEMENT_TIMEOUT)
            return question(db)

    def _complain(self, words: str) -> None:
        self.query_one("#overview", Static).update(Text(shown(words), "bold red"))

    async def look(self) -> None:
        name = self.page
        page = PAGES[name]
        if name == "jobs":
            filters = {**self.filters, "after_id": self.after, "max_jobs": ROWS}
            answer = await self.ask(lambda db: (db.overview(), lately(db), db.job_page(**filters)[0]))
        else:
            answer = await self.ask(lambda db: (db.overview(), lately(db), page.rows(db)))
        if answer is None or not self.is_running:
            return
        overview, rates, rows = answer
        self.query_one("#overview", Static).update(self._overview(overview, rates))
        self.rows[name] = {str(row[page.key]): row for row in rows}
        self._fill(self._table(name), page)
        self.refresh_bindings()

    def _fill(self, table: DataTable[Text], page: Page) -> None:
        """Fill the table again. The cursor stays on its row, or else at its position."""
        rows = next(rows for name, rows in self.rows.items() if PAGES[name] is page)
        at, before = table.cursor_row, self._key(table)
        table.clear()
        for key, row in rows.items():
            table.add_row(*(cell(value(row), row) for value in page.columns.values()), key=key)
        if rows:
            table.move_cursor(
                row=list(rows).index(before) if before in rows else min(at, len(rows) - 1), animate=False
            )

    def _key(self, table: DataTable[Text]) -> str | None:
        if not table.is_valid_row_index(table.cursor_row):
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def _overview(self, told: Row, rates: Row) -> Text:
        where = conninfo_to_dict(self.dsn) if self.dsn else {}
        text = Text(f"pyworker  {where.get('dbname', '')}  schema {self.schema}  ", "bold")
        text.append(f"{datetime.fromisoformat(told['at']).astimezone():%H:%M:%S}\n", "dim")
        counts: list[Text] = []
        for state in STATES:
            count = told["states"][state]
            number = f"{'' if count['exact'] else '~'}{count['jobs']:,} "
            counts.append(Text(f"{state} ", "dim").append(number, STYLES.get(state, "bold")))
        exact = "" if rates["exact"] else "~"
        facts = [
            Text(f"{exact}{rates['completed']:,.0f}/min completed "),
            Text(f"{exact}{rates['failed']:,.0f}/min failed ", "red" if rates["failed"] else ""),
        ]
        if waiting := told["waiting"]:
            first = waiting[0]
            queue = "" if first["queue_name"] == "default" else f" of queue {shown(first['queue_name'])}"
            facts.append(Text(f"oldest waits {span(first['seconds'])} (job {first['job_id']}{queue}) "))
        facts.append(Text(f"workers {told['workers']} ", "" if told["workers"] else "bold red"))
        for words, number in (
            ("silent workers", told["silent_workers"]), ("halted sequences", told["halted_sequences"]),
            ("paused queues", len(told["paused_queues"])), ("schedules that failed", told["failed_ticks"]),
        ):  # fmt: skip
            if number:
                facts.append(Text(f"{words} {number} ", "yellow"))
        if tick := told["next_tick"]:
            at = datetime.fromisoformat(tick["at"]).astimezone()
            facts.append(Text(f"next {shown(tick['name'])} {at:%a %H:%M} "))
        width = self.size.width - 2
        return text.append_text(packed(counts, width)).append("\n").append_text(packed(facts, width))

    # -- keys --------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if isinstance(self.screen, ModalScreen):
            return False
        if action == "act":
            return parameters[0] in PAGES[self.page].keys if self.ready else True
        if action == "open":
            return PAGES[self.page].job is not None if self.ready else True
        if action == "filter" and isinstance(self.focused, Input):
            return False
        if action in ("filter", "older", "newest"):
            return self.page == "jobs" if self.ready else True
        return True

    def action_page(self, name: str) -> None:
        self.query_one("#pages", TabbedContent).active = name

    async def on_tabbed_content_tab_activated(self) -> None:
        if self.ready:
            await self.look()
            self.action_table()

    def action_table(self) -> None:
        self._table(self.page).focus()

    def action_filter(self) -> None:
        self.screen.set_focus(self.query_one("#filter", Input))

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        self.filters, self.after = filters(event.value), None
        self.action_table()
        await self.look()

    async def action_older(self) -> None:
        if len(self.rows["jobs"]) == ROWS:
            self.after = int(list(self.rows["jobs"])[-1])
            await self.look()

    async def action_newest(self) -> None:
        self.after = None
        await self.look()

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.action_open()

    def action_open(self) -> None:
        if row := self._row():
            job_of = PAGES[self.page].job
            if job_of and (job_id := job_of(row)):
                self.push_screen(JobPage(job_id, self.ask, self.ask_back))

    def _row(self) -> Row | None:
        return self.rows[self.page].get(self._key(self._table(self.page)) or "")

    def action_act(self, key: str) -> None:
        page, row = PAGES[self.page], self._row()
        if row and key in page.keys:
            self.ask_back(page.keys[key](row), str(row[page.key]), page.what, self.look)

    def ask_back(self, action: str, target: str, what: str, afterwards: Callable[[], Any]) -> None:
        verb = action.replace("_", " ").removesuffix(f" {what}")

        async def act() -> None:
            answer = await self.ask(lambda db: db.perform_action(action, [target], self.actor, {}), "admin")
            for told in answer or []:
                self.notify(
                    shown(f"{verb} {what} {target}: {told['outcome']}"),
                    severity="information" if told["ok"] else "error",
                    markup=False,
                )
            await afterwards()

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(act())

        self.push_screen(Ask(f"{verb.capitalize()} {what} {target}?"), answered)
