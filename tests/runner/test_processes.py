"""The processes that run handlers: what they can import, with which options of Python, and what happens
where none can be started."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import zipapp
from pathlib import Path
from typing import Any

import pytest

from tests.support import DEADLINE, PYTHONPATH, ROOT

TASK = "from pyworker import task\n\n@task\ndef mine(payload):\n    pass\n"
LAUNCH = "import mytasks\nfrom pyworker.cli import main\nmain(['run', '--once', 'mytasks'])\n"
LOOK = """
import json, os, subprocess, sys
from pyworker import task

@task(result=True)
def mine(payload):
    code = "import json, os; print(json.dumps([os.environ.get('PYTHONPATH'), os.getcwd()]))"
    return {
        "optimize": sys.flags.optimize, "dev": sys.flags.dev_mode, "safe": sys.flags.safe_path,
        "isolated": sys.flags.isolated, "no_bytecode": sys.flags.dont_write_bytecode,
        "x": sys._xoptions.get("mark"), "warns": "error::BytesWarning" in sys.warnoptions,
        "here": os.getcwd() in sys.path, "cwd": os.getcwd(),
        "program": json.loads(subprocess.check_output([sys.executable, "-c", code])),
    }
"""


def python(queue: Any, directory: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=directory, capture_output=True, text=True, timeout=DEADLINE,
        env={"PATH": os.environ["PATH"], "DATABASE_URL": queue.dsn, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("way", ["script", "zipapp"])
def test_handlers_import_what_the_program_that_starts_the_worker_imports(
    queue: Any, tmp_path: Path, way: str
) -> None:
    """Such as manage.py that cron starts in another directory: the script's own directory is in its path."""
    app, elsewhere = tmp_path / "app", tmp_path / "elsewhere"
    app.mkdir()
    elsewhere.mkdir()
    (app / "mytasks.py").write_text(TASK)
    (app / "__main__.py").write_text(LAUNCH)
    if way == "zipapp":
        zipapp.create_archive(app, tmp_path / "app.pyz")
    job_id = queue.add("mine")
    python(
        queue, elsewhere, str(app / "__main__.py" if way == "script" else "../app.pyz"), PYTHONPATH=str(ROOT)
    )
    assert queue.states(job_id) == ["completed"]


def test_handlers_run_with_the_options_and_the_environment_of_the_workers_python(
    queue: Any, tmp_path: Path
) -> None:
    (tmp_path / "mytasks.py").write_text(LOOK)
    first, second = queue.add("mine"), queue.add("mine")
    run = ("-m", "pyworker", "run", "--once", "mytasks")
    python(queue, tmp_path, *run, PYTHONDONTWRITEBYTECODE="1")
    result = queue.job(first).result
    assert result["program"] == [None, str(tmp_path)]
    assert (result["here"], result["cwd"], result["optimize"], result["no_bytecode"]) == (
        True, str(tmp_path), 0, 1,
    )  # fmt: skip
    assert queue.states(second) == ["completed"]
    third = queue.add("mine")
    options = ("-X", "dev", "-X", "mark=7", "-OO", "-P", "-B", "-W", "error::BytesWarning")
    python(queue, tmp_path, *options, *run, PYTHONPATH=f"{tmp_path}:{ROOT}")
    found = queue.job(third).result
    assert {name: found[name] for name in ("optimize", "dev", "safe", "no_bytecode", "x", "warns")} == {
        "optimize": 2, "dev": True, "safe": True, "no_bytecode": 1, "x": "7", "warns": True,
    }  # fmt: skip


def test_an_isolated_python_has_isolated_handlers(queue: Any, tmp_path: Path) -> None:
    (tmp_path / "mytasks.py").write_text(LOOK)
    (tmp_path / "launch.py").write_text(
        f"import sys\nsys.path += [{str(tmp_path)!r}, {str(ROOT)!r}]\n{LAUNCH}"
    )
    job_id = queue.add("mine")
    python(queue, tmp_path, "-I", "launch.py", PYTHONPATH="/nowhere")
    assert (queue.job(job_id).state, queue.job(job_id).result["isolated"]) == ("completed", 1)


def test_a_module_that_is_named_like_one_of_pythons_does_not_keep_processes_from_starting(
    queue: Any, tmp_path: Path
) -> None:
    for name in ("calendar", "selectors", "queue", "types"):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "mytasks.py").write_text(TASK)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/launch.py").write_text(LAUNCH.replace("import mytasks\n", ""))
    job_id = queue.add("mine")
    python(queue, tmp_path, "bin/launch.py", PYTHONPATH=str(ROOT))
    assert queue.states(job_id) == ["completed"]


def test_a_module_in_a_directory_that_is_no_package_is_named_in_the_log(queue: Any, tmp_path: Path) -> None:
    for folder in ("jobs/deep", "assets", "whole"):
        (tmp_path / "myapp" / folder).mkdir(parents=True)
    (tmp_path / "myapp/__init__.py").write_text(TASK)
    (tmp_path / "myapp/jobs/mail.py").write_text(TASK.replace("mine", "mail"))
    (tmp_path / "myapp/jobs/deep/sms.py").write_text(TASK.replace("mine", "sms"))
    (tmp_path / "myapp/assets/script.py").write_text("raise SystemExit('a script that must not run')\n")
    (tmp_path / "myapp/whole/__init__.py").write_text("")
    (tmp_path / "myapp/whole/own.py").write_text(TASK.replace("mine", "own"))
    jobs = [queue.add(name) for name in ("mine", "own", "mail", "sms")]
    first = queue.run_once(modules="myapp")
    assert queue.states(*jobs) == ["completed", "completed", "available", "available"]
    for name in ("myapp.jobs.mail", "myapp.jobs.deep.sms"):
        assert f"module {name} is not loaded: its directory has no __init__.py" in first.log
    assert "myapp.assets" not in first.log
    assert "myapp.whole" not in first.log
    second = queue.run_once(modules="myapp myapp.jobs.mail myapp.jobs.deep.sms")
    assert queue.states(*jobs) == ["completed"] * 4
    assert "is not loaded" not in second.log


@pytest.mark.parametrize("processes", [1, 2])
def test_while_no_process_can_be_started_the_worker_and_its_other_processes_go_on(
    queue: Any, processes: int
) -> None:
    worker = queue.start("--processes", str(processes), "--concurrency", "1").until_ready(processes)
    first = worker.children()[0]
    opened = len(os.listdir(f"/proc/{worker.pid}/fd"))
    soft, hard = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (opened, hard))  # no more files can be opened
    with queue.ends_of([first]):
        os.kill(first, signal.SIGKILL)
    worker.until_log("cannot start a worker process")
    job_id = queue.add("note")
    if processes == 2:
        queue.until_state("completed", job_id)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (soft, hard))
    queue.until_so("all processes run again", lambda: len(worker.children()) == processes)
    queue.until_state("completed", job_id)
    queue.until("select count(*) = %s from pyworker.live_workers", processes)
    assert worker.stop() == 0
    assert "Traceback" not in worker.log


def test_a_worker_without_room_for_its_first_process_waits_for_it(queue: Any, tmp_path: Path) -> None:
    """Here the interpreter is not there at first, as in the middle of an upgrade."""
    python_ = tmp_path / "python"
    (tmp_path / "launch.py").write_text(
        f"import sys\nsys.executable = {str(python_)!r}\n"
        "from pyworker.cli import main\nmain(['run', 'handlers'])\n"
    )
    job_id = queue.add("note")
    log = tmp_path / "launched.log"
    environment = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": queue.dsn,
        "PYTHONPATH": PYTHONPATH,
    }
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "launch.py"], cwd=tmp_path, stderr=output, env=environment
        ) as launched,
    ):
        try:
            queue.until_so("it is logged", lambda: "cannot start a worker process" in log.read_text())
            python_.symlink_to(sys.executable)
            queue.until_state("completed", job_id)
            launched.send_signal(signal.SIGTERM)
            assert launched.wait(DEADLINE) == 0
        finally:
            launched.kill()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("running", [0, 2])
@pytest.mark.parametrize("task", ["note", "deliver", "act_async"])
def test_jobs_for_which_no_thread_can_be_started_are_handed_back_and_disturb_no_other(
    queue: Any, running: int, task: str
) -> None:
    queue.close_gate(1)
    worker = queue.start("--concurrency", "5").until_ready()
    (child,) = worker.children()
    first = [queue.add("note", {"gate": 1}, max_attempts=1) for _ in range(running)]
    queue.until_waiting(1, running)
    used = int(Path(f"/proc/{child}/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.prlimit(child, resource.RLIMIT_AS)
    resource.prlimit(child, resource.RLIMIT_AS, (used + (4 << 20), hard))  # no room for a thread's stack
    later = [queue.add(task, {"gate": 1}, max_attempts=1) for _ in range(4)]
    worker.until_log("no thread can be started")
    queue.until(
        "select bool_or(run > 0 and state = 'available') from pyworker.jobs where id = any (%s)", later
    )
    resource.prlimit(child, resource.RLIMIT_AS, (soft, hard))
    worker.until_log("threads can be started again")
    queue.open_gate(1)
    queue.until_state("completed", *first, *later)
    assert [queue.job(job_id).attempts for job_id in (*first, *later)] == [1] * (running + 4)
    assert {len(queue.seen(job_id)) for job_id in (*first, *later)} == {1}
    assert worker.children() == [child]
    assert worker.stop() == 0
