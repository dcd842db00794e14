"""The benchmark runs: all of it but the rivals, who need other languages."""

import json
import re
import subprocess
import sys

import pytest

from tests.support import ROOT

BENCH = ROOT / "bench"


@pytest.mark.torture
def test_the_benchmark_measures_and_reports_every_scenario(tmp_path):
    options = "--jobs 1000 --rounds 1 --only pyworker,table,functions --out".split()
    command = [sys.executable, BENCH / "run.py", *options, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [run for run in runs if "error" in run] == []
    report = (tmp_path / "report.md").read_text()
    assert {run["scenario"] for run in runs} == set("ABCDEFGHIJKLMNS")
    assert all(f"\n## {letter}. " in report for letter in "ABCDEFGHIJKLMNS")
    assert (tmp_path / "summary.svg").exists() == ("\n## At one look\n" in report)
    assert all(run.get("jobs_s", run.get("p50", run.get("child", run.get("idle", 0)))) > 0 for run in runs)


@pytest.mark.torture
def test_the_anatomy_of_a_drain_names_what_each_part_takes():
    command = [sys.executable, BENCH / "anatomy.py", "--jobs", "2000", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {line[:60].strip(): float(line[60:68]) for line in done.stdout.splitlines()}
    wanted = {
        "server: work, claims",
        "server: work, reports, with history",
        "worker: noop, from rows to outcomes",
    }
    assert all(found[what] > 0 for what in wanted), done.stdout


@pytest.mark.torture
def test_what_once_was_slow_is_measured_beside_another_checkout():
    sql = BENCH.parent / "sql"
    command = [sys.executable, BENCH / "faults.py", "slow-query", "--rounds", "1", "--sql", sql]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "finish_jobs beside maintain(), the longest, ms" in done.stdout


@pytest.mark.torture
def test_what_is_dearer_than_a_plain_job_is_measured_beside_it(tmp_path):
    options = "--jobs 1000 --beside 1000 --rounds 1 --out".split()
    done = subprocess.run(
        [sys.executable, BENCH / "corners.py", *options, tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = {line[:46].strip(): line[46:].split() for line in done.stdout.splitlines()[2:]}
    assert float(rows["a report of 500 jobs that failed"][4]) > 1  # times one that completed
    assert float(rows["doctor, ms"][0]) > 0


@pytest.mark.torture
def test_what_jobs_that_wait_for_jobs_cost_is_measured_beside_another_checkout(tmp_path):
    options = "edges fan-in plain steps --rounds 1 --members 2000 --before".split()
    command = [sys.executable, BENCH / "flows.py", *options, BENCH.parent / "sql", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for what in ("a fan-in of 2,000, on end: both", "last end to callback", "never used", "a step, by SQL"):
        assert what in done.stdout


@pytest.mark.torture
def test_the_bench_of_limits_finds_no_window_with_more_starts_than_the_rate():
    command = [sys.executable, BENCH / "limits.py", "window=3", "many=3000"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    _, *rows, many = [line.split() for line in done.stdout.splitlines()]
    assert len(rows) == 4
    for limit, *_, starts, _, fullest, _, _ in rows:
        assert 0 < int(fullest) <= min(int(limit), int(starts))
    fullest = re.search(r"fullest window (\d+)", " ".join(many))
    assert 0 < int(fullest[1]) <= 300
