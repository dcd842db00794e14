"""Where doctor, explain and errors of commands name a call for which there is a command, they offer that."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.cli import call as call

NAMES = ["plain", "two words", "it's", "\\", '$HOME `date` "x"', "'); drop table x; --", "%s"]


def commands_in(output: str) -> list[str]:
    """What a person copies of each remedy: up to the words after it."""
    offered = [line[5:] for line in output.splitlines() if line.startswith("   → pyworker ")]
    return [re.split(r" (?:lets one|doubles|sends it) ", line)[0] for line in offered]


@pytest.fixture
def in_shell(dsn: str) -> Any:
    def run(command: str) -> str:
        # As `pyworker` finds it in PATH.
        script = f'pyworker() {{ {sys.executable} -m pyworker "$@"; }}\n{command}'
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "DATABASE_URL": dsn}
        done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), (command, done)
        return done.stdout

    return run


@pytest.mark.parametrize("name", NAMES)
def test_the_command_that_doctor_offers_does_it_in_a_shell_whatever_the_name(
    db: Any, dsn: str, cli: Any, in_shell: Any, name: str
) -> None:
    db.execute("select pyworker.pause_queue(%s), pyworker.add_job('t', queue_name => %s)", [name, name])
    (command,) = commands_in(cli("doctor", DATABASE_URL=dsn).stdout)
    assert command.startswith("pyworker queues resume ")
    assert in_shell(command) == f"queue {name} resumed\n"


def test_a_halted_sequence_and_a_full_queue_name_their_commands(db: Any, call: Any, in_shell: Any) -> None:
    db.execute("""
        select pyworker.add_job('s', sequence_policy => '{"key": "a b"}'), pyworker.add_job('s',
            sequence_policy => '{"key": "a b"}');
        select pyworker.permanently_fail_jobs('{1}', 'boom');
        select pyworker.set_queue('it''s', 1, 10, '1 minute');
        select pyworker.add_job('runs', queue_name => 'it''s') from generate_series(1, 2)""")
    db.execute("select pyworker.register_worker()")
    db.execute("select * from pyworker.claim_jobs(1, 1, array['runs'])")
    told = call("explain", "2")
    assert "   → pyworker retry 1 runs that job again; pyworker sequences resume 'a b' goes on " in told
    command = next(c for c in commands_in(call("explain", "4")) if "queues set" in c)
    assert command == "pyworker queues set 'it'\"'\"'s' 2 --rate 10/1min"
    in_shell(command)
    assert db.execute("select concurrency from pyworker.list_queues() where queue_name = 'it''s'").fetchone()


def test_an_error_of_a_command_offers_a_command(db: Any, dsn: str, cli: Any) -> None:
    db.execute("select pyworker.add_job('t')")
    db.execute("select * from pyworker.claim_jobs(pyworker.register_worker(), 1)")
    said = cli("delete", "1", DATABASE_URL=dsn).stderr
    assert said == (
        "pyworker: delete_job: job 1 is running. pyworker cancel ID --force first, or wait for its end.\n"
    )


def test_programs_get_the_sql(db: Any, call: Any) -> None:
    db.execute("select pyworker.add_job('t', run_at => '2100-01-01')")
    assert "select * from pyworker.retry_job(1) " in call("explain", "1", "--json")[0]["remedy"]


def test_in_another_schema_the_command_names_it(fresh: Any, fresh_dsn: str, cli: Any) -> None:
    assert cli("migrate", "--schema", "two words", DATABASE_URL=fresh_dsn).returncode == 0
    fresh.execute("""select "two words".add_job('t', run_at => '2100-01-01')""")
    told = cli("explain", "1", "--schema", "two words", DATABASE_URL=fresh_dsn).stdout
    assert "   → pyworker --schema 'two words' retry 1 lets it run now\n" in told
