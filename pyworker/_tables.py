"""Tables and colours in a terminal, by rich.

Only what prints them imports this, as it does so: rich takes a tenth of a command's start.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ._values import STYLES, line_of


class Screen(Console):
    """rich's console, which leaves a closed pipe to `_output.unwritten`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def text_of(value: Any) -> Text:
    return Text(line_of(value))


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    texts = [[text_of(value) for value in row.values()] for row in rows]
    widths = [max(len(name), *(text[at].cell_len for text in texts)) for at, name in enumerate(rows[0])]
    for at, name in enumerate(rows[0]):
        number = all(isinstance(row[name], int) for row in rows)
        # Only the last column shrinks when the terminal is narrow.
        width = None if at == len(rows[0]) - 1 else widths[at]
        table.add_column(
            name.replace("_", " "),
            justify="right" if number else "left",
            min_width=width,
            overflow="ellipsis",
            no_wrap=True,
        )
    for row, text in zip(rows, texts, strict=True):
        table.add_row(*text, style=STYLES.get(str(row.get("state"))))
    console = Screen(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.width = max(console.width, sum(width + 1 for width in widths[:-1]) + 20)
    console.print(table)
