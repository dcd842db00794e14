"""Who gets in, and what is done on whose word."""

from __future__ import annotations

import base64
import re
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from pyworker.cli import main


def token_of(client, **asked):
    return re.search(r'name="csrf" value="([^"]+)"', client.get("/confirm", params=asked).text)[1]


def act(client, action, *targets, **more):
    form = {
        "csrf": token_of(client, action=action, target=targets),
        "action": action,
        "target": list(targets),
        "back": "/",
        **more,
    }
    return client.post("/act", data=form)


def state_of(queue, job):
    return queue.get_job(job.id).state


# -- acts ------------------------------------------------------------------------------------------


def test_an_act_is_asked_back_then_done_and_written_down(client, queue):
    job = queue.add_job("t", run_at="2100-01-01")
    c = client(users={"ada": "secret"})
    c.auth = ("ada", "secret")
    asked = c.get("/confirm", params={"action": "retry", "target": job.id})
    assert f"Retry job {job.id}?" in asked.text
    assert state_of(queue, job) == "scheduled"
    done = act(c, "retry", str(job.id))
    assert "Retry: 1 done" in done.text
    assert state_of(queue, job) == "available"
    entry = queue.rows("select * from pyworker.audit")[0]
    assert (entry.actor, entry.action, entry.target, entry.outcome) == (
        "ada",
        "retry",
        str(job.id),
        "available",
    )
    assert "ada" in c.get("/audit").text


def test_of_many_each_tells_what_came_of_it(client, queue, worker):
    waiting, running = queue.add_job("t"), queue.add_job("u")
    queue.run(worker, "u")
    text = act(client(), "delete", str(waiting.id), str(running.id)).text
    assert "Delete: 1 done, 1 refused" in text
    assert "is running" in text
    assert [(entry.target, entry.ok) for entry in queue.rows("select * from pyworker.audit order by id")] == [
        (str(waiting.id), True),
        (str(running.id), False),
    ]


def test_queues_sequences_and_schedules_are_acted_on_by_name(client, queue, worker):
    c = client()
    act(c, "pause_queue", "a <queue>")
    assert ">paused<" in c.get("/queues").text
    act(c, "resume_queue", "a <queue>")
    assert ">paused<" not in c.get("/queues").text
    queue.add_job("head", sequence_policy={"key": "s"})
    queue.add_job("tail", sequence_policy={"key": "s"})
    queue.run(worker, "head", "boom", discard=True)
    act(c, "resume_sequence", "s")
    assert queue.rows("select * from pyworker.list_sequences(true)") == []
    queue.add_schedule("nightly", "0 4 * * *", "report")
    assert "added job" in act(c, "run_schedule", "nightly").text
    act(c, "pause_schedule", "nightly")
    assert queue.rows("select paused from pyworker.schedules") == [(True,)]


@pytest.mark.parametrize(
    "changed",
    [
        {"data": {"csrf": ""}},
        {"data": {"csrf": "x" * 32}},
        {"headers": {"origin": "http://elsewhere.example"}},
        {"headers": {"sec-fetch-site": "cross-site"}},
        {"headers": {"sec-fetch-site": "same-site"}},
        {"headers": {"origin": "null"}},
        {"cookies": {"pyworker_csrf": ""}},
        {"cookies": {"pyworker_csrf": "short"}, "data": {"csrf": "short"}},
    ],
    ids=repr,
)
def test_a_form_of_another_site_does_nothing(client, queue, changed):
    job = queue.add_job("t")
    c = client()
    data = {
        "csrf": token_of(c, action="cancel", target=job.id),
        "action": "cancel",
        "target": str(job.id),
        **changed.get("data", {}),
    }
    if "cookies" in changed:
        c.cookies.clear()
        c.cookies.update(changed["cookies"])
    response = c.post("/act", data=data, headers=changed.get("headers"))
    assert response.status_code == 403
    assert state_of(queue, job) == "available"
    assert queue.rows("select * from pyworker.audit") == []


def test_nothing_is_done_by_a_link(client, queue):
    job = queue.add_job("t")
    c = client()
    assert (
        c.get(
            f"/act?action=cancel&target={job.id}&csrf={token_of(c, action='cancel', target=job.id)}"
        ).status_code
        == 405
    )
    assert state_of(queue, job) == "available"


def test_the_cookie_is_for_this_site_and_no_script(client):
    cookie = client().get("/").headers["set-cookie"].lower()
    assert "samesite=strict" in cookie
    assert "httponly" in cookie
    assert "secure" in client(base_url="https://testserver").get("/").headers["set-cookie"].lower()


def test_read_only_it_offers_no_act_and_does_none(client, queue):
    job = queue.add_job("t")
    token = token_of(c := client(), action="cancel", target=job.id)
    looking = client(read_only=True)
    looking.cookies.update(dict(c.cookies))
    for path in ("/", "/jobs", f"/jobs/{job.id}", "/queues", "/schedules"):
        assert "/confirm" not in looking.get(path).text.replace('<form action="/confirm">', "")
        assert 'name="action"' not in looking.get(path).text
    assert looking.get(f"/confirm?action=cancel&target={job.id}").status_code == 403
    assert (
        looking.post("/act", data={"csrf": token, "action": "cancel", "target": str(job.id)}).status_code
        == 403
    )
    assert state_of(queue, job) == "available"


@pytest.mark.parametrize(
    "back",
    [
        "//elsewhere.example",
        "https://elsewhere.example",
        "/\\elsewhere.example",
        "javascript:alert(1)",
        "/\n/x",
    ],
)
def test_the_way_back_leads_nowhere_else(client, queue, back):
    page = client().get("/confirm", params={"action": "pause_queue", "target": "q", "back": back}).text
    assert re.search(r'<a href="([^"]*)"[^>]*>No, go back', page)[1] == "/"


@pytest.mark.parametrize(("action", "targets"), [("destroy", ["1"]), ("retry", []), ("retry", ["x"])])
def test_a_mistaken_act_is_explained(client, queue, action, targets):
    c = client()
    token = token_of(c, action="retry", target="1")
    assert c.post("/act", data={"csrf": token, "action": action, "target": targets}).status_code == 400
    assert queue.rows("select * from pyworker.audit") == []


def test_a_role_that_may_only_look_is_told_so(client, queue, dsn, db):
    db.execute("drop role if exists looks; create role looks login; grant pyworker_reader to looks")
    job = queue.add_job("t", queue_name="mails")
    try:
        from psycopg.conninfo import make_conninfo

        from pyworker.ui import create_app

        c = client(app=create_app(make_conninfo(dsn, user="looks")))
        for path in ("/", "/jobs", "/queues", "/sequences", "/schedules", "/workers", "/audit"):
            assert c.get(path).status_code == 200, path
        assert ">mails</a>" in c.get("/").text  # a queue that waits
        response = act(c, "cancel", str(job.id))
        assert response.status_code == 403
        assert "pyworker_admin" in response.text
    finally:
        db.execute("revoke pyworker_reader from looks; drop role looks")


# -- the door --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [None, ("ada", "wrong"), ("eve", "secret"), ("ada", ""), ("", ""), ("ada", "secret2"), ("bob", "secret")],
)
def test_without_the_right_name_and_password_no_request_gets_in(client, given):
    c = client(users={"ada": "secret", "bob": "other:with colon"})
    for path in ("/", "/jobs", "/static/ui.css", "/nothing"):
        response = c.get(path, auth=given)
        assert response.status_code == 401
        assert "basic" in response.headers["www-authenticate"].lower()
    assert c.post("/act", auth=given).status_code == 401


def test_with_the_right_name_and_password_one_gets_in(client):
    c = client(users={"ada": "secret", "bob": "other:with colon", "zoë": "påss"})
    assert c.get("/", auth=("ada", "secret")).status_code == 200
    assert c.get("/", auth=("bob", "other:with colon")).status_code == 200
    assert (
        c.get(
            "/", headers={"authorization": "Basic " + base64.b64encode("zoë:påss".encode()).decode()}
        ).status_code
        == 200
    )


@pytest.mark.parametrize(
    "header",
    ["Basic", "Basic !!!", "Basic /w==", "Bearer " + base64.b64encode(b"ada:secret").decode(), "Basic YWRh"],
)
def test_a_malformed_authorization_is_none(client, header):
    assert client(users={"ada": "secret"}).get("/", headers={"authorization": header}).status_code == 401


@pytest.mark.parametrize(
    "host", ["elsewhere.example", "elsewhere.example:8686", "", "127.0.0.1.elsewhere.example", "[::2]:8686"]
)
def test_a_name_that_others_made_mean_this_machine_is_refused(client, host):
    c = client(hosts=["localhost", "127.0.0.1", "[::1]"])
    assert c.get("/jobs", headers={"host": host}).status_code == 421
    for own in ("localhost", "127.0.0.1:8686", "[::1]:8686"):
        assert c.get("/jobs", headers={"host": own}).status_code == 200


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_beyond_this_machine_it_wants_a_password_first(host):
    done = CliRunner(env={"PYWORKER_UI_AUTH": ""}).invoke(main, ["ui", "--host", host])
    assert done.exit_code == 2
    assert "--auth-file" in done.output


@pytest.mark.parametrize("content", ["", "# nobody\n", "ada\n", ":secret\n", "ada:\n"])
def test_a_password_file_without_a_password_is_refused(tmp_path, content):
    (tmp_path / "auth").write_text(content)
    done = CliRunner(env={"PYWORKER_UI_AUTH": ""}).invoke(main, ["ui", "--auth-file", str(tmp_path / "auth")])
    assert done.exit_code == 2
    assert "NAME:PASSWORD" in done.output


def test_the_command_serves_until_it_is_stopped(dsn, db):
    command = [sys.executable, "-m", "pyworker", "ui", "--port", "0", "--dsn", dsn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline()
        host, port = re.search(r"http://([\d.]+):(\d+)/", said).groups()
        assert host == "127.0.0.1"
        with socket.create_connection((host, int(port))) as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: conn.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200")
        process.send_signal(2)
        assert process.wait(20) in (0, -2, 130)


def test_without_its_extra_the_command_names_it():
    code = (
        "import sys; sys.modules['starlette'] = None; sys.argv = ['pyworker', 'ui']; "
        "from pyworker.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert " install 'pyworker-pg[web]'" in done.stderr
