"""The private server that the demo and all other tests stand on."""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pyworker._dev import postgres
from pyworker._dev.postgres import NoPostgres, Server, find_bindir, kept_server, temporary_server

pytestmark = pytest.mark.slow

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")


def ask(server, query):
    with psycopg.connect(server.url(), autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchone()[0] if cursor.description else None


def home_of(server):
    return Path(server.host).parent


def server_pid(server):
    return int(Path(server.host, "postmaster.pid").read_text().split()[0])


@contextmanager
def another_process(server, *, patience=60):
    """A second Python that keeps `server` (an expression) up until it is killed or its stdin ends."""
    code = (
        "import sys; from pyworker._dev.postgres import *\n"
        f"with {server} as server: print(server.host, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=patience)  # ends its stdin
        process.kill()
        process.wait()


def server_of(process):
    return Server(process.stdout.readline().strip())


@contextmanager
def awaiting_the_end_of(pid, *, patience=30):
    handle = os.pidfd_open(pid)  # before the deed: the number may be reused after it
    try:
        yield
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(patience * 1000), f"process {pid} is still there after {patience} s"
    finally:
        os.close(handle)


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path_factory):
    """A temporary directory of the test's own. pytest's tmp_path is closed to root's server account."""
    tmp_path_factory.getbasetemp()  # pytest makes its own before this one becomes the default
    with tempfile.TemporaryDirectory(prefix="pyworker-test-", dir="/tmp") as place:
        os.chmod(place, 0o711)
        monkeypatch.setattr(tempfile, "tempdir", place)
        monkeypatch.setenv("TMPDIR", place)  # for other processes
        yield Path(place)


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_temporary_server_answers_and_leaves_nothing_behind(in_memory, place):
    with temporary_server(in_memory=in_memory) as server:
        assert ask(server, "show server_version").startswith(server.version)
        assert ask(server, "select upper('ä') || current_setting('server_encoding')") == "ÄUTF8"
        home, pid = home_of(server), server_pid(server)
    assert not home.exists()
    assert list(place.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_no_other_user_can_reach_the_server():
    with temporary_server(in_memory=True) as server:
        assert ask(server, "show listen_addresses") == ""
        assert home_of(server).stat().st_mode & 0o067 == 0
        assert Path(server.host).stat().st_mode & 0o077 == 0


def test_settings_reach_the_server():
    with temporary_server(in_memory=True, settings={"max_connections": "17"}) as server:
        assert ask(server, "show max_connections") == "17"


def test_a_server_that_does_not_start_says_why_and_leaves_nothing_behind(place):
    with pytest.raises(NoPostgres, match=r'did not start: .*"no_such_setting"'):
        with temporary_server(settings={"no_such_setting": "1"}):
            pass
    assert list(place.iterdir()) == []


def test_a_kept_server_keeps_its_data_between_uses():
    with kept_server(fresh=True) as server:
        ask(server, "create table kept as select 42 as answer")
        pid = server_pid(server)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with kept_server() as again:
        assert again == server
        assert ask(again, "select answer from kept") == 42


def test_a_fresh_start_throws_the_old_data_away():
    with kept_server(fresh=True) as server:
        ask(server, "create table kept()")
    with kept_server(fresh=True) as server:
        assert ask(server, "select to_regclass('kept')") is None


def test_a_second_user_of_a_kept_server_joins_it_and_does_not_stop_it():
    with another_process("kept_server(fresh=True)") as first:
        host = server_of(first).host
        for _ in range(2):
            with kept_server() as joined:
                assert joined.host == host
                ask(joined, "select 1")
        pid = server_pid(joined)
    assert first.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_of_two_starters_one_starts_the_server_and_one_joins_it():
    with kept_server(fresh=True):
        pass
    with another_process("kept_server()") as one, another_process("kept_server()") as other:
        assert server_of(one) == server_of(other)
    assert (one.returncode, other.returncode) == (0, 0)


def test_data_in_use_are_not_thrown_away():
    with kept_server(fresh=True) as server:
        with pytest.raises(NoPostgres, match="in use"), kept_server(fresh=True):
            pass
        ask(server, "select 1")


def test_before_the_demo_there_is_nothing_to_connect_to():
    with pytest.raises(NoPostgres, match="run `pyworker demo` first"), kept_server():
        pass


def test_data_of_another_major_version_are_refused():
    with kept_server(fresh=True) as server:
        pass
    Path(server.host, "PG_VERSION").write_text("9\n")
    with (
        pytest.raises(NoPostgres, match=r"made by PostgreSQL 9.*\n.*`pyworker demo` makes a new one"),
        kept_server(),
    ):
        pass
    with kept_server(fresh=True) as server:
        ask(server, "select 1")


def test_a_directory_planted_by_another_user_is_refused(place, tmp_path):
    home = place / f"pyworker-demo-{os.geteuid()}"
    home.symlink_to(tmp_path)
    with pytest.raises(NoPostgres, match="is not ours"), kept_server(fresh=True):
        pass
    if os.geteuid() == 0:
        home.unlink()
        home.mkdir()
        os.chown(home, 65534, -1)
        with pytest.raises(NoPostgres, match="is not ours"), kept_server(fresh=True):
            pass


@linux
def test_the_server_dies_with_its_parent_and_the_next_start_sweeps_up():
    with another_process("temporary_server()") as parent:
        server = server_of(parent)
        with awaiting_the_end_of(server_pid(server)):
            parent.kill()
    with temporary_server(in_memory=True) as alive:
        assert not home_of(server).exists()
        with temporary_server(in_memory=True):
            ask(alive, "select 1")  # a sweep spares the living


@linux
def test_a_sweep_spares_a_server_that_outlives_its_parent():
    with another_process("temporary_server()") as parent:
        server = server_of(parent)
        pid = server_pid(server)
        with awaiting_the_end_of(pid):
            os.kill(pid, signal.SIGSTOP)  # it cannot end before we let it
            parent.kill()
            parent.wait()
            with temporary_server(in_memory=True):
                survived = Path(server.host, "PG_VERSION").exists()
            os.kill(pid, signal.SIGCONT)
    assert survived


@linux
def test_kept_data_survive_a_killed_process():
    with another_process("kept_server(fresh=True)") as parent:
        server = server_of(parent)
        ask(server, "create table kept as select 42 as answer")
        with awaiting_the_end_of(server_pid(server)):
            parent.kill()
    with kept_server() as server:
        assert ask(server, "select answer from kept") == 42


def test_the_terminals_interrupt_does_not_reach_the_server():
    with temporary_server(in_memory=True) as server:
        assert os.getsid(server_pid(server)) != os.getsid(0)


def test_a_bad_PYWORKER_PG_BIN_is_named_in_the_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PYWORKER_PG_BIN", str(tmp_path))
    with pytest.raises(NoPostgres, match=f"PYWORKER_PG_BIN={tmp_path} has no initdb"):
        find_bindir()


def test_no_postgres_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.delenv("PYWORKER_PG_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "SYSTEM", tmp_path)
    monkeypatch.setattr(postgres, "WHEELS", ())
    with pytest.raises(
        NoPostgres, match=r"DATABASE_URL .* install 'pyworker-pg\[embedded\]'.* PYWORKER_PG_BIN"
    ):
        find_bindir()


def test_programs_in_a_private_directory_serve_root_as_well(monkeypatch, tmp_path):
    prefix = find_bindir().parent
    if not (prefix / "share").is_dir():
        pytest.skip("these programs cannot be moved: they came from the system, not from a wheel")
    package = tmp_path / prefix.parent.name
    shutil.copytree(prefix, package / prefix.name, symlinks=True)
    with suppress(FileNotFoundError):
        shutil.copytree(f"{prefix.parent}.libs", f"{package}.libs")
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PYWORKER_PG_BIN", str(package / prefix.name / "bin"))
    with temporary_server(in_memory=True) as server:
        assert server.bindir.is_relative_to(tmp_path)
        ask(server, "select 1")


def test_a_long_temporary_directory_is_passed_over(monkeypatch, tmp_path):
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with temporary_server() as server:
        assert not home_of(server).is_relative_to(deep)


def test_a_url_copes_with_odd_names():
    server = Server("/tmp/a b&c")
    assert conninfo_to_dict(server.url("o dd?/#"))["host"] == server.host
    assert conninfo_to_dict(server.url("o dd?/#"))["dbname"] == "o dd?/#"
