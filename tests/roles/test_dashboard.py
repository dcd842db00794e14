"""The dashboard and `top` as a member of each of the four roles."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the client announces its successor
    from starlette.testclient import TestClient

from pyworker._db.rights import COMMANDS
from pyworker.ui import create_app
from tests.roles.conftest import GROUPS, Logins, one_role, state
from tests.support.commands import command
from tests.support.site import Site

PAGES = [
    "/", "/jobs", "/jobs?state=discarded", "/jobs/{waiting}", "/jobs/{discarded}", "/queues", "/sequences",
    "/schedules", "/workers", "/health", "/audit", "/confirm?action=retry&target={waiting}",
]  # fmt: skip


@pytest.fixture
def as_a(people: Logins) -> Iterator[Callable[..., TestClient]]:
    """as_a("reader", show_payloads=True): a dashboard of that role."""
    opened: list[TestClient] = []

    def make(group: str, **settings: Any) -> TestClient:
        app = create_app(people.dsn_of(people.of[group]), **settings)
        opened.append(TestClient(app).__enter__())
        return opened[-1]

    yield make
    for client in opened:
        client.__exit__(None, None, None)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_there_for_readers_and_admins_and_names_their_role_to_others(
    db: Any, zoo: dict[str, int], as_a: Any, people: Logins, path: str, group: str
) -> None:
    answer = as_a(group).get(path.format(**zoo))
    if group in COMMANDS["ui"] or (path, group) == ("/workers", "worker"):
        assert answer.status_code == 200
        assert "xyzzy" not in answer.text
    else:
        assert answer.status_code == 403
        assert one_role(main_of(answer.text)) == "reader"


def main_of(html: str) -> str:
    found = re.search(r"<main.*?</main>", html, re.DOTALL)
    assert found
    return found[0]


def test_a_jobs_page_has_for_a_reader_what_it_has_for_an_admin(
    db: Any, zoo: dict[str, int], as_a: Any
) -> None:
    worker = zoo["worker"]
    (run,) = db.execute("select run from pyworker.claim_jobs(%s, 1, '{t}')", [worker]).fetchone()
    db.execute("select pyworker.save_step(%s, %s, 'a step', '\"xyzzy\"')", [zoo["waiting"], run])
    db.execute("select pyworker.set_progress(%s, %s, 0.4, 'page 4')", [zoo["waiting"], run])
    db.execute("select pyworker.log_job(%s, %s, 'a line')", [zoo["waiting"], run])
    for group in ("reader", "admin"):
        text = as_a(group).get(f"/jobs/{zoo['waiting']}").text
        for words in ("a step", "early", "page 4", "a line", "Current run", "Hidden, because"):
            assert words in text, (group, words)
        assert "xyzzy" not in text
    assert as_a("admin", show_payloads=True).get(f"/jobs/{zoo['waiting']}").text.count("xyzzy") == 3


def test_payloads_and_actions_name_the_role_that_they_need(db: Any, zoo: dict[str, int], as_a: Any) -> None:
    answer = as_a("reader", show_payloads=True).get(f"/jobs/{zoo['waiting']}")
    assert (answer.status_code, one_role(main_of(answer.text))) == (403, "admin")
    before = state(db)
    client = as_a("reader")
    page = client.get(f"/confirm?action=cancel&target={zoo['waiting']}").text
    csrf = re.search(r'name="csrf" value="([^"]+)"', page)
    assert csrf
    form = {"csrf": csrf[1], "action": "cancel", "target": str(zoo["waiting"]), "back": "/jobs"}
    answer = client.post("/act", data=form, headers={"origin": "http://testserver"})
    assert (answer.status_code, one_role(main_of(answer.text))) == (403, "admin")
    assert state(db) == before


@pytest.mark.parametrize("group", GROUPS)
def test_pyworker_ui_starts_for_who_may_look(
    db: Any, zoo: dict[str, int], people: Logins, tmp_path: Path, group: str
) -> None:
    dsn = people.dsn_of(people.of[group])
    if group in COMMANDS["ui"]:
        site = Site(dsn, tmp_path)
        try:
            assert site.ask(f"/jobs/{zoo['waiting']}").status == 200
            assert site.ask("/health").status == 200
        finally:
            site.close()
    else:
        done = command("ui", "--port", "0", DATABASE_URL=dsn)
        assert done.returncode == 1
        assert one_role(done.stderr.replace(people.of[group], "")) == "reader"
