"""Where the statements of a PL/pgSQL body begin.

PostgreSQL's own parser (pglast.parse_plpgsql) tells the lines of statements, not their columns, and
a line may hold two. So this reads the tokens; `check` compares the outcome with PostgreSQL's tree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pglast
from pglast.parser import scan


@dataclass(frozen=True)
class Statement:
    """`text` is what runs before any other statement: of an `if` its condition, of a loop its query."""

    kind: str  # declare, elsif, if, case, loop, while, for, foreach, block, or the first word
    start: int
    line: int
    text: str


@dataclass(frozen=True)
class Token:
    word: str
    start: int
    end: int


def tokens(body: str) -> list[Token]:
    """Without comments. `scan` wants SQL's tokens, which PL/pgSQL shares."""
    found = []
    for token in scan(body):
        if token.name not in ("SQL_COMMENT", "C_COMMENT"):
            found.append(Token(body[token.start : token.end + 1].lower(), token.start, token.end + 1))
    return found


class Reader:
    """Reads one body from its first token to its last."""

    def __init__(self, body: str) -> None:
        self.body = body
        self.tokens = tokens(body)
        self.at = 0
        self.label: int | None = None  # the position of the label of the statement that comes
        self.found: list[Statement] = []

    @property
    def word(self) -> str:
        return self.tokens[self.at].word

    def words(self, n: int) -> list[str]:
        return [token.word for token in self.tokens[self.at : self.at + n]]

    def add(self, kind: str, first: int, last: int, from_word: int | None = None) -> None:
        """`first` to `last` are the tokens of its text; it begins at `from_word`, or at the first."""
        begin = self.tokens[first if from_word is None else from_word].start
        if self.label is not None:
            begin, self.label = self.tokens[self.label].start, None
        text = self.body[self.tokens[first].start : self.tokens[last - 1].end] if last > first else ""
        line = self.body.count("\n", 0, self.tokens[first if from_word is None else from_word].start) + 1
        self.found.append(Statement(kind, begin, line, text))

    def until(self, *ends: str) -> int:
        """The position of the next of these words that is in no parenthesis and no expression's case."""
        depth = cases = 0
        for n in range(self.at, len(self.tokens)):
            word = self.tokens[n].word
            if depth == 0 and cases == 0 and word in ends:
                return n
            depth += (word in "([") - (word in ")]")
            cases += (word == "case") - (word == "end" and cases > 0)
        raise ValueError(f"no {ends} after {self.body[self.tokens[self.at].start :][:60]!r}")

    def simple(self, kind: str) -> None:
        end = self.until(";")
        self.add(kind, self.at, end)
        self.at = end + 1

    def condition(self, kind: str, *ends: str) -> None:
        """A word, an expression or a query, and the word that ends it."""
        begin, self.at = self.at, self.at + 1
        end = self.until(*ends)
        self.add(kind, self.at, end, begin)
        self.at = end + 1

    def statements(self, *ends: str) -> None:
        while self.word not in ends:
            self.statement()

    def statement(self) -> None:
        if self.word == "<<":
            self.label = self.at
            self.at += 3
        word = self.word
        if word in ("declare", "begin"):
            self.block()
        elif word == "if":
            self.condition("if", "then")
            self.statements("elsif", "else", "end")
            while self.word == "elsif":
                self.condition("elsif", "then")
                self.statements("elsif", "else", "end")
            self.finally_("if")
        elif word == "case":
            begin, self.at = self.at, self.at + 1
            end = self.until("when")
            self.add("case", self.at, end, begin)
            self.at = end
            while self.word == "when":
                self.at = self.until("then") + 1
                self.statements("when", "else", "end")
            self.finally_("case")
        elif word in ("loop", "while", "for", "foreach"):
            self.condition(word, "loop") if word != "loop" else self.bare_loop()
            self.statements("end")
            self.finally_("loop")
        elif word == "null":
            self.at += 2
        else:
            self.simple(word)

    def bare_loop(self) -> None:
        self.add("loop", self.at, self.at + 1)
        self.at += 1

    def finally_(self, of: str) -> None:
        if self.word == "else":
            self.at += 1
            self.statements("end")
        if self.words(2) != ["end", of]:
            raise ValueError(f"no end {of}: {self.words(5)}")
        self.at += 2
        self.at = self.until(";") + 1  # a label may stand there

    def block(self) -> None:
        if self.word == "declare":
            self.at += 1
            while self.word != "begin":
                self.simple("declare")
        self.add("block", self.at, self.at + 1)
        self.at += 1
        self.statements("end", "exception")
        if self.word == "exception":
            self.at += 1
            while self.word == "when":
                self.at = self.until("then") + 1
                self.statements("when", "end")
        self.at += 1
        if self.at < len(self.tokens) and self.word == ";":
            self.at += 1


def statements(body: str) -> list[Statement]:
    reader = Reader(body)
    while reader.word == "#":  # #variable_conflict use_variable
        reader.at += 3
    reader.statement()
    if reader.at != len(reader.tokens):
        raise ValueError(f"text after the end: {reader.words(5)}")
    return reader.found


def lines_of_tree(definition: str) -> list[int]:
    """The lines of the statements that PostgreSQL's parser finds in `create function …`."""

    def walk(node: Any) -> Iterator[int]:
        if isinstance(node, list):
            for child in node:
                yield from walk(child)
        elif isinstance(node, dict):
            for name, child in node.items():
                if (name.startswith("PLpgSQL_stmt_") or name == "PLpgSQL_if_elsif") and "lineno" in child:
                    yield child["lineno"]
                yield from walk(child)

    tree = pglast.parse_plpgsql(definition)
    tree = json.loads(tree) if isinstance(tree, str) else tree
    return sorted(walk(tree[0]["PLpgSQL_function"]["action"]))


def check(definition: str, body: str, schema: str, rows: set[str]) -> None:
    """Raises ValueError unless PostgreSQL's parser finds statements at the same lines.

    libpg_query knows no schema of ours, and no array of `rows`, the schema's composite types.
    """
    definition = re.sub(rf"\b({'|'.join(rows)})\[\]", "text[]", definition.replace(f"{schema}.", ""))
    ours = sorted(s.line for s in statements(body) if s.kind != "declare")
    theirs = lines_of_tree(definition)
    if ours != theirs:
        raise ValueError(f"statements at {ours}, PostgreSQL has them at {theirs}")
