"""Users whom a proxy names, and users who may look but not act."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from pyworker.cli import main
from tests.support.pages import read

from .test_guard import act, state_of

PROXY = {"user_header": "X-Forwarded-User", "proxies": ["testclient"]}


def test_a_user_whom_the_proxy_names_acts_under_that_name(client, queue):
    job = queue.add_job("t")
    c = client(**PROXY)
    c.headers["x-forwarded-user"] = "ada"
    assert "Signed in as ada" in read(c.get("/")).text
    assert "Cancel: 1 done" in act(c, "cancel", str(job.id)).text
    assert queue.rows("select actor from pyworker.audit") == [("ada",)]


@pytest.mark.parametrize("header", [None, "", "  "])
def test_without_a_name_from_the_proxy_no_request_gets_in(client, header):
    c = client(**PROXY)
    headers = {} if header is None else {"x-forwarded-user": header}
    for path in ("/", "/jobs", "/static/ui.css"):
        assert c.get(path, headers=headers).status_code == 401


def test_the_header_of_another_machine_is_not_believed(client, queue):
    c = client(user_header="X-Forwarded-User", proxies=["192.0.2.1"])
    assert c.get("/", headers={"x-forwarded-user": "ada"}).status_code == 401


def test_a_user_who_is_no_operator_looks_and_does_not_act(client, queue):
    job = queue.add_job("t")
    c = client(users={"ada": "secret", "bob": "other"}, operators=["ada"])
    c.auth = ("bob", "other")
    for path in ("/", "/jobs", f"/jobs/{job.id}", "/queues", "/schedules"):
        page = c.get(path)
        assert page.status_code == 200
        assert 'action="/confirm"' not in page.text
        assert "Read-only." in page.text
    assert "ask an operator" in read(c.get(f"/confirm?action=cancel&target={job.id}"), 403).text
    c.auth = ("ada", "secret")
    assert "Cancel: 1 done" in act(c, "cancel", str(job.id)).text


def test_a_form_of_an_operator_does_nothing_for_another_user(client, queue):
    job = queue.add_job("t")
    c = client(users={"ada": "secret", "bob": "other"}, operators=["ada"])
    c.auth = ("ada", "secret")
    c.get("/")
    token = c.cookies["pyworker_csrf"]
    c.auth = ("bob", "other")
    form = {"csrf": token, "action": "cancel", "target": str(job.id), "back": "/"}
    assert c.post("/act", data=form).status_code == 403
    assert state_of(queue, job) == "available"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--operator", "ada"], "--operator needs users"),
        (["--auth-header", "X-User", "--auth-file", "FILE"], "either names and passwords or --auth-header"),
        (["--auth-file", "FILE", "--operator", "eve"], "--operator 'eve' has no password"),
        (["--host", "192.0.2.1"], "--auth-header NAME"),
    ],
)
def test_access_that_makes_no_sense_is_refused_before_it_serves(tmp_path, options, words):
    (tmp_path / "auth").write_text("ada:secret\n")
    given = [str(tmp_path / "auth") if option == "FILE" else option for option in options]
    done = CliRunner(env={"PYWORKER_UI_AUTH": ""}).invoke(main, ["ui", *given])
    assert done.exit_code == 2
    assert words in done.output
