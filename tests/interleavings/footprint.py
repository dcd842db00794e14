"""What a statement touches that another session can see: tables, registers, advisory locks.

This reads names, not plans, so it may say too much, never too little: an exploration that believes
it tries a schedule too many.

    read    sees what is committed, by the statement's snapshot
    add     inserts rows; others see them after the commit, or wait if a unique index is in the way
    lock    updates, deletes or locks rows, or takes an advisory lock
    get/set a register: a sequence that sessions read without a snapshot
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.interleavings.plpgsql import Token, tokens

Footprint = frozenset[tuple[str, str]]  # (how, what)

# What sessions see of each other's transactions at once, before any commit.
TRANSACTIONS = {
    "pg_locks", "pg_stat_activity", "pg_snapshot_xmin", "pg_snapshot_xmax", "pg_current_snapshot",
}  # fmt: skip
CATALOG = """
    select p.oid, p.proname, l.lanname, p.provolatile, p.prosrc, pg_get_functiondef(p.oid),
        p.oid::regprocedure::text
    from pg_proc p join pg_language l on l.oid = p.prolang
    where p.pronamespace = %s::regnamespace and p.prokind = 'f' order by p.oid::regprocedure::text
"""
RELATIONS = """
    select c.relname, c.relkind, case when c.relkind = 'v' then pg_get_viewdef(c.oid) end,
        -- An add can wait for another one only at a unique index of values that no sequence makes.
        exists (select from pg_index i join pg_attribute a on a.attrelid = c.oid and a.attnum = any (i.indkey)
                where i.indrelid = c.oid and i.indisunique and a.attidentity = ''
                  and pg_get_expr((select d.adbin from pg_attrdef d
                                   where d.adrelid = c.oid and d.adnum = a.attnum), c.oid) is null)
    from pg_class c where c.relnamespace = %s::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
"""
ROWS = "select t.typname from pg_type t where t.typnamespace = %s::regnamespace and t.typtype = 'c'"


@dataclass(frozen=True)
class Function:
    oid: int
    name: str
    language: str
    volatile: bool
    body: str
    definition: str
    signature: str

    @property
    def steps(self) -> bool:
        """Each of its statements takes a snapshot of its own."""
        return self.language == "plpgsql" and self.volatile


@dataclass
class Catalog:
    schema: str
    functions: list[Function]
    kinds: dict[str, str]
    views: dict[str, str]
    unique: set[str]
    rows: set[str]  # the names of composite types
    inlined: dict[str, Footprint] = field(default_factory=dict)

    @classmethod
    def read(cls, conn: Any, schema: str) -> Catalog:
        functions = [
            Function(oid, name, language, volatility == "v", source, definition, signature)
            for oid, name, language, volatility, source, definition, signature in conn.execute(
                CATALOG, [schema]
            )
        ]
        relations = conn.execute(RELATIONS, [schema]).fetchall()
        return cls(
            schema,
            functions,
            {name: kind for name, kind, _, _ in relations},
            {name: text for name, _, text, _ in relations if text},
            {name for name, _, _, unique in relations if unique},
            {name for (name,) in conn.execute(ROWS, [schema])},
        )

    def of(self, text: str) -> Footprint:
        """The footprint of a statement, without that of functions that step themselves."""
        words = tokens(text) if text else []
        # Dynamic SQL is not read: it makes and drops tables.
        found = {("lock", "dynamic")} if words and words[0].word == "execute" else set[tuple[str, str]]()
        locks = any(
            a.word == "for" and b.word in ("update", "share", "no", "key") for a, b in pairwise(words)
        )
        for n, token in enumerate(words):
            found |= self.of_word(words, n, token, locks)
        return frozenset(found)

    def of_word(self, words: list[Token], n: int, token: Token, locks: bool) -> set[tuple[str, str]]:
        name = token.word.strip("'")
        before = words[n - 1].word if n else ""
        further = words[n - 2].word if n > 1 else ""
        after = words[n + 1].word if n + 1 < len(words) else ""
        if token.word.startswith("'"):
            return self.of_register(words, n, name)
        if after == "." and name == self.schema:
            return set()
        if before == "." and further == self.schema:
            before, further = (words[n - 3].word if n > 2 else ""), (words[n - 4].word if n > 3 else "")
        if after == "(" and before != "into":
            if "advisory" in name:
                return {("lock", "advisory")}
            if name == "pg_current_xact_id":
                return {("begin", "transactions")}
            return {("get", "transactions")} if name in TRANSACTIONS else set(self.of_function(name))
        if name in TRANSACTIONS and before in ("from", "join"):
            return {("get", "transactions")}
        kind = self.kinds.get(name)
        if kind is None or before not in ("from", "join", "into", "update", "only"):
            return set()
        if kind == "v":
            return set(self.of_view(name))
        if kind == "S":
            return {("get", name)}
        if before == "into" and further == "insert":
            upsert = any(w.word == "conflict" for w in words) and any(w.word == "do" for w in words)
            return {("add", name), ("read", name)} if upsert else {("add", name)}
        if before == "update" or (before == "from" and further == "delete") or locks:
            return {("lock", name), ("read", name)}
        return {("read", name)}

    def of_register(self, words: list[Token], n: int, name: str) -> set[tuple[str, str]]:
        name = name.rpartition(".")[2]
        if self.kinds.get(name) != "S":
            return set()
        call = words[n - 2].word if n > 1 else ""
        sets = call in ("nextval", "setval")
        if sets and name.endswith(("_ids", "_id_seq")):
            return set()  # the number itself means nothing to others
        return {("set" if sets else "get", name)}

    def of_function(self, name: str) -> Footprint:
        """What a call touches, if the function runs by its caller's snapshot; all of that name."""
        if name not in self.inlined:
            self.inlined[name] = frozenset()  # for a function that calls itself
            self.inlined[name] = frozenset().union(
                *(self.of(f.body or f.definition) for f in self.functions if f.name == name and not f.steps)
            )
        return self.inlined[name]

    def of_view(self, name: str) -> Footprint:
        if f"view {name}" not in self.inlined:
            self.inlined[f"view {name}"] = frozenset()
            self.inlined[f"view {name}"] = self.of(self.views[name])
        return self.inlined[f"view {name}"]


def writes(footprint: Footprint) -> frozenset[str]:
    return frozenset(what for how, what in footprint if how in ("add", "lock"))


def meet(a: Footprint, b: Footprint, unique: set[str]) -> bool:
    """Can it matter which of two statements of open transactions runs first?"""
    for how, what in a:
        for other, thing in b:
            if what != thing:
                continue
            if {how, other} == {"lock"}:
                return True
            if {how, other} <= {"add", "lock"} and what in unique:
                return True
            if "set" in (how, other) or {how, other} == {"get", "begin"}:
                return True
    return False


def shown_by(footprint: Footprint, ended: frozenset[str]) -> bool:
    """Can it matter whether a statement runs before or after the end of a transaction that wrote `ended`?"""
    return any(
        what in ended or what == "transactions"
        for how, what in footprint
        if how in ("read", "add", "lock", "get")
    )
