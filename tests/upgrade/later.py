"""A later version, as a release makes it: a copy of this tree with one more migration, and with a function
of another name. It is a program of its own: nothing of it is loaded here."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyworker._db.migrations import newest
from pyworker._dev.postgres import find_bindir
from tests.support import DEADLINE, ROOT
from tests.support.commands import process

VERSION = newest() + 1
NAME = f"{VERSION:04d}_notes"
# It changes tables in another order than calls take them.
MIGRATION = """-- A later version: notes.
-- breaking: no

alter table workers add column note text;
alter table steps add column note text;
alter table queues add column note text;
alter table finished_jobs add column note text;
alter table live_jobs add column note text;
update live_jobs set note = 'of old';
create table notes (job_id bigint primary key, note text not null);
"""
# By it, a test holds the upgrade in the middle of the migration.
GATE = """set local lock_timeout = 0;
select pg_advisory_xact_lock(86);
set local lock_timeout = '5s';
"""
BLOCK = f"""select not exists (select from migrations where version = {VERSION}) as pending \\gset
\\if :pending
  \\ir migrations/{NAME}.sql
  insert into migrations (version, name, breaking) values ({VERSION}, '{NAME}', false);
\\endif

-- Functions, views"""


@dataclass(frozen=True)
class Later:
    """What upgrades a database to the later version."""

    tree: Path

    def by_command(self, dsn: str) -> subprocess.CompletedProcess[str]:
        return process(self.tree, "migrate", DATABASE_URL=dsn)

    def by_psql(self, dsn: str) -> subprocess.CompletedProcess[str]:
        psql = find_bindir() / "psql"
        program = str(psql) if psql.exists() else shutil.which("psql")
        if not program:
            pytest.skip("psql is not here")
        command = [program, "-X", "-q", "-d", dsn, "-f", str(self.tree / "sql" / "install.sql")]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        path = self.tree / "sql" / name
        text = path.read_text("utf-8")
        path.write_text(change(text), "utf-8")
        assert path.read_text("utf-8") != text


def renamed(text: str) -> str:
    """`beat` calls a function of a new name. The one of the old name stays for one version more."""
    (old,) = re.findall(r"(?ms)^create or replace function _sweep_is_due\(.*?;$", text)
    return f"{text.replace('_sweep_is_due', '_is_sweep_due')}\n-- For calls that are under way.\n{old}\n"


def make(tree: Path) -> Later:
    for name in ("pyworker", "sql"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "sql" / "migrations" / f"{NAME}.sql").write_text(MIGRATION, "utf-8")
    later = Later(tree)
    later.edit(
        "install.sql",
        lambda text: text.replace("-- Functions, views", BLOCK).replace(
            f"'pyworker.newest', '{newest()}'", f"'pyworker.newest', '{VERSION}'"
        ),
    )
    later.edit("heart/beat.sql", renamed)
    return later
