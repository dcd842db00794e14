"""The harness itself: pyworker under the quick part of the menu, and the page of what came of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability import page
from tests.reliability.contenders import CONTENDERS
from tests.reliability.judge import PROMISES, History, figures, recoveries, verdicts
from tests.reliability.run import run

pytestmark = pytest.mark.slow

TIMELY = "a dead worker's jobs run in the documented time"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reliability")
    quick = ["kill", "producer", "server"]
    # It ends as soon as all jobs are done.
    run("pyworker", 38, seed="1", out=out, only=quick, drain=30, pace=0.15, haste=0.25)
    return out


def test_under_kills_and_a_crash_of_the_server_every_promise_is_judged_and_holds(recorded: Path) -> None:
    h = page.read(recorded)["pyworker"]
    found = {verdict.promise: verdict for verdict in verdicts(h)}
    assert found.keys() == PROMISES.keys()
    assert [verdict for verdict in found.values() if verdict.found] == []
    assert {promise for promise, verdict in found.items() if not verdict.judged} <= {TIMELY}  # too short
    assert {it.name for it in recoveries(h)} == {"kill", "producer", "server"}
    assert all(it.next_done for it in recoveries(h) if it.name != "producer")
    assert figures(h)["not done in the end"] == 0
    assert {h.phase(op) for op in h.adds} >= {"ok", "rolled back", "abandoned"}


def test_the_page_shows_each_promise_each_fault_and_the_digest_of_the_history(
    recorded: Path, tmp_path: Path
) -> None:
    written = tmp_path / "page.md"
    written.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write(recorded, written)
    text = written.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    for promise in PROMISES.keys() - {TIMELY}:
        assert f"| {promise} | held |" in text
    assert page.digest(recorded / "pyworker.jsonl.gz") in text


def test_the_committed_page_is_made_from_the_committed_histories() -> None:
    directory = page.PAGE.parent / "reliability"
    histories = page.read(directory)
    assert set(histories) <= set(CONTENDERS)
    made = page.report(page.found(directory), histories).strip()
    assert made in page.PAGE.read_text("utf-8"), "python -m tests.reliability page"


def test_a_history_names_its_contender_version_seed_and_command() -> None:
    for name, h in page.read(page.PAGE.parent / "reliability").items():
        assert isinstance(h, History)
        assert h.about["contender"] == name
        assert all(h.about[fact] for fact in ("version", "seed", "command", "settings", "postgres"))
