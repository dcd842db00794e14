"""`pyworker ui` under attack, over raw sockets: forged forms, headers, paths, bodies, slow clients."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.pages import Reader
from tests.support.site import SECURITY, Answer, Site, read_all

BASIC = "Basic " + base64.b64encode(b"ada:secret").decode()


def form(site: Site, job: Any, **headers: str) -> tuple[str, str]:
    """The token of a confirmation page, and its cookie."""
    page = site.ask(f"/confirm?action=cancel&target={job.id}", **headers)
    token = re.search(r'name="csrf" value="([^"]+)"', page.text)[1]  # type: ignore[index]
    return token, f"pyworker_csrf={token}"


def filled(token: str, job: Any, action: str = "cancel") -> str:
    return urlencode({"csrf": token, "action": action, "target": job.id, "back": "/"})


# -- forged requests -----------------------------------------------------------------------------------


def test_a_forged_form_does_nothing_and_a_right_one_does(attacked: Any, queue: Any) -> None:
    """Every action, with each thing that a page of another site cannot have or cannot hide."""
    site, job = attacked(), queue.add_job("t")
    token, cookie = form(site, job)
    other = "a" * 32
    for action in ("retry", "cancel", "force_cancel", "delete", "pause_queue", "set_queue"):
        right = filled(token, job, action)
        forged: list[tuple[str, dict[str, str]]] = [
            (right, {}),  # without the cookie, which is SameSite=Strict
            (filled("", job, action), {"cookie": cookie}),
            (filled(other, job, action), {"cookie": cookie}),
            (filled(token[:-1], job, action), {"cookie": cookie}),
            (filled(token + "x", job, action), {"cookie": cookie}),
            (filled("é" * 40, job, action), {"cookie": cookie}),
            (filled("short", job, action), {"cookie": "pyworker_csrf=short"}),
            (filled("", job, action), {"cookie": "pyworker_csrf="}),
            *((right, {"cookie": cookie, "origin": origin}) for origin in (
                "null", "http://elsewhere.example", "http://127.0.0.1",
                f"http://127.0.0.1:{site.port}.evil.example",
                f"http://localhost:{site.port}", "https://", "x",
            )),
            *((right, {"cookie": cookie, "sec_fetch_site": kind}) for kind in (
                "cross-site", "same-site", "", "SAME-ORIGIN ", "x",
            )),
        ]  # fmt: skip
        for body, headers in forged:
            assert site.ask("/act", "POST", body, **headers).status == 403, (action, body, headers)
        for kind in (
            "text/plain",
            "application/json",
            "",
            "multipart/form-data",
            "multipart/form-data; boundary=x",
        ):
            answer = site.ask("/act", "POST", right, cookie=cookie, content_type=kind)
            assert answer.status in (400, 403), (action, kind)
    assert queue.rows("select * from pyworker.audit") == []
    origin = f"http://127.0.0.1:{site.port}"
    done = site.ask(
        "/act", "POST", filled(token, job), cookie=cookie, origin=origin, sec_fetch_site="same-origin"
    )
    assert done.status == 303
    assert queue.get_job(job.id).state == "cancelled"


def test_another_method_does_nothing(attacked: Any, queue: Any) -> None:
    site, job = attacked(), queue.add_job("t")
    token, cookie = form(site, job)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "act", "G\x00T"):
        for path in ("/act", "/", "/jobs", f"/confirm?action=cancel&target={job.id}", "/static/ui.css"):
            answer = site.ask(path, method, filled(token, job), cookie=cookie)
            assert answer.status in (400, 405), (method, path, answer.status)
            assert "access-control-allow-origin" not in answer.headers
    assert queue.get_job(job.id).state == "available"


def test_head_has_no_body_and_changes_nothing(attacked: Any, queue: Any) -> None:
    site, job = attacked(), queue.add_job("t")
    for path in (
        "/",
        "/jobs",
        f"/jobs/{job.id}",
        f"/confirm?action=cancel&target={job.id}",
        "/static/ui.css",
    ):
        answer = site.ask(path, "HEAD")
        assert (answer.status, answer.body) == (200, b""), path
    assert site.ask("/act", "HEAD").status == 405


# -- who may come in -----------------------------------------------------------------------------------

WRONG = [
    "", "Basic", "Basic ", "basic " + base64.b64encode(b"ada:Secret").decode(), "Bearer secret",
    "Basic ada:secret",
    "Basic " + base64.b64encode(b"ada").decode(), "Basic " + base64.b64encode(b"ada:secret\x00").decode(),
    "Basic " + base64.b64encode(b"ADA:secret").decode(), "Basic " + base64.b64encode(b"\xff:secret").decode(),
    "Basic  " + base64.b64encode(b"ada:secret").decode() + "=", "Basic " + "A" * 10000, "Negotiate x",
    "Basic \x80",
    "Basic " + base64.b64encode(b":").decode(), "Digest username=ada", BASIC + ",", BASIC[:-1], "\tBasic x",
]  # fmt: skip


def test_without_the_right_password_nothing_is_answered(attacked: Any, queue: Any) -> None:
    site = attacked(PYWORKER_UI_AUTH="ada:secret", ends_with={"authorization": BASIC})
    job = queue.add_job("t")
    token, cookie = form(site, job, authorization=BASIC)
    for wrong in WRONG:
        for path in ("/", "/jobs", "/static/ui.css", "/nothing", "//", "/act"):
            answer = site.ask(path, authorization=wrong)
            assert answer.status in (400, 401), (path, wrong)
            assert "<html" not in answer.text
        assert site.ask("/act", "POST", filled(token, job), cookie=cookie, authorization=wrong).status in (
            400,
            401,
        )
    # Two headers: the one that counts for us is the one that a proxy may have left in front, or none.
    two = f"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: x\r\nAuthorization: {BASIC}"
    assert site.raw(f"{two}\r\n\r\n".encode()).status == 401
    assert queue.get_job(job.id).state == "available"


def test_no_client_but_the_proxy_says_who_it_is(attacked: Any, queue: Any) -> None:
    site = attacked("--auth-header", "X-Forwarded-User", "--proxy", "192.0.2.1", status=401)
    behind = attacked("--auth-header", "X-Forwarded-User", ends_with={"x_forwarded_user": "ada"})
    spoofs: list[dict[str, str]] = [
        {}, {"x_forwarded_for": "192.0.2.1"}, {"forwarded": "for=192.0.2.1"}, {"x_real_ip": "192.0.2.1"},
        {"x_forwarded_for": "192.0.2.1, 192.0.2.1"}, {"x_forwarded_proto": "https",
        "x_forwarded_for": "192.0.2.1"},
    ]  # fmt: skip
    for spoof in spoofs:
        assert site.ask("/", x_forwarded_user="ada", **spoof).status == 401
    for name in ("", " ", "\t"):
        assert behind.ask("/", x_forwarded_user=name).status == 401
    two = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Forwarded-User: ada"
    assert behind.raw(f"{two}\r\n\r\n".encode()).status == 200
    two += "\r\nx-forwarded-user: eve"
    assert behind.raw(f"{two}\r\n\r\n".encode()).status == 401
    page = behind.ask("/", x_forwarded_user="<script>alert(1)</script>")
    assert page.status == 200
    assert "<script>alert" not in page.text


def test_who_may_only_look_acts_by_no_way(attacked: Any, queue: Any) -> None:
    bob = "Basic " + base64.b64encode(b"bob:other").decode()
    directory = Path(os.environ.get("TMPDIR", "/tmp"))
    users = directory / f"users-{os.getpid()}"
    users.write_text("ada:secret\nbob:other\n")
    try:
        site = attacked("--auth-file", str(users), "--operator", "ada", ends_with={"authorization": BASIC})
    finally:
        users.unlink()
    job = queue.add_job("t")
    token, cookie = form(site, job, authorization=BASIC)
    for more in ({}, {"x_forwarded_user": "ada"}, {"x_remote_user": "ada"}, {"remote_user": "ada"}):
        for path in ("/act", "/act?user=ada", "/act?pyworker.user=ada"):
            answer = site.ask(path, "POST", filled(token, job), cookie=cookie, authorization=bob, **more)
            assert answer.status == 403, (path, more)
    assert queue.get_job(job.id).state == "available"


HOSTS = [
    "", "evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "[::1", "[", "localhost.",
    "LOCALHOST.evil"
]  # fmt: skip


def test_another_name_of_this_machine_is_refused(attacked: Any) -> None:
    site = attacked()
    for host in HOSTS:
        answer = site.ask("/jobs", host=host)
        assert answer.status in (400, 421), host
        assert "<table" not in answer.text


# -- paths, headers, bodies ----------------------------------------------------------------------------

PATHS = [
    "//", "//evil.example/", "/..", "/../etc/passwd", "/static/../../app.py", "/static/..%2f..%2fapp.py",
    "/static/%2e%2e/%2e%2e/app.py", "/static/..\\..\\app.py", "/static//etc/passwd", "/static/%00",
    "/static/ui.css%00.png",
    "/%00", "/jobs/%00", "/jobs/%2e%2e", "/jobs/-1", "/jobs/0", "/jobs/1e3", "/jobs/9223372036854775808",
    "/jobs/" + "9" * 4999, "/" + "a" * 8000, "/static/" + "a" * 5000, "/%ff%fe", "/%u0000", "/jobs/%D9%A3",
    "/;", "/jobs;x",
    "/jobs/1/", "/JOBS", "/jobs/1.json", "/static", "/static/", "/static/.", "/ui.css", "/act", "/confirm",
    "*",
    "http://evil.example/jobs", "/jobs?after=" + "9" * 5000, "/jobs?after=-1", "/jobs?after=%D9%A3",
    "/jobs?after=1&after=x",
    "/jobs?search=%00", "/jobs?search=%ff", "/jobs?search=%ED%A0%80", "/jobs?search=" + "%25" * 2000,
    "/jobs?state=%27",
    "/jobs?state=", "/jobs?state=x", "/jobs?sort=x", "/jobs?sort=payload&order=up", "/jobs?from=x",
    "/jobs?from=99999-01-01",
    "/jobs?from=0001-01-01T00:00%2B23:59", "/jobs?before=9999-12-31T23:59-23:59", "/jobs?show=x",
    "/jobs?key=%00",
    "/audit?before=x", "/audit?before=" + "1" * 30, "/?range=x", "/?range=1h&range=x", "/queues?after=%00",
    "/sequences?after=%ff&halted=2", "/confirm?action=x", "/confirm?action=cancel",
    "/confirm?action=cancel&target=x",
    "/confirm?action=cancel&target=" + "9" * 5000, "/confirm?action=retry&target=1);drop+table+x",
    "/jobs?done=1-1-1",
    "/confirm?action=set_queue&target=q&concurrency=x",
    "/confirm?action=set_queue&target=%252%24s&concurrency=1",
    "/confirm?action=cancel&all=1&after=x", "/confirm?action=cancel&all=1&last_id=" + "9" * 5000,
    "/?done=0-0", "/?done=x",
    "/?done=" + "9" * 5000 + "-1", "/confirm?action=pause_queue&target=q&back=//evil.example",
    "/jobs?" + "a=1&" * 3000,
    "/confirm?action=pause_queue&target=q&back=javascript:alert(1)",
    "/confirm?" + "target=1&" * 2000 + "action=cancel",
    "/?done=9223372036854775807-9223372036854775807", "/jobs?__proto__=x", "/jobs?search[]=x",
    "/health?x=%0d%0aSet-Cookie:a=b",
]  # fmt: skip


def test_no_path_leads_out_or_breaks_a_page(attacked: Any, queue: Any) -> None:
    site = attacked()
    queue.add_job("t")
    for path in PATHS:
        answer = site.ask(path)
        assert answer.status in (200, 307, 400, 404, 405, 414, 431), (
            path[:80],
            answer.status,
            answer.text[:300],
        )
        if answer.status == 307:
            location = answer.headers["location"]
            assert re.match(rf"http://127\.0\.0\.1:{site.port}/", location), location
        assert "root:" not in answer.text
        assert "import annotations" not in answer.text
        assert "set-cookie" not in answer.headers or answer.headers["set-cookie"].startswith("pyworker_csrf=")
        if answer.text.startswith("<!doctype"):
            scripts = [a for tag, a in Reader(answer.text).elements if tag == "script"]
            assert scripts == [{"src": "/static/ui.js", "defer": None}], path[:80]
        if answer.status not in (400, 414, 431) or answer.text.startswith("<!doctype"):
            assert SECURITY.items() <= answer.headers.items(), path[:80]


POST = b"POST /act HTTP/1.1\r\nHost: localhost\r\n"
RAW = [
    b"", b"\x00", b"\r\n" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n X: folded\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX\x00: y\r\n\r\n",
    POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Content-Length: -1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    POST + b"Content-Length: 1e9\r\n\r\n",
    b"GET / HTTP/1.1\nHost: localhost\n\n",
    POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    POST + b"Transfer-Encoding: x\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
]  # fmt: skip


def test_no_malformed_request_is_taken_for_a_right_one(attacked: Any) -> None:
    site = attacked()
    for data in RAW:
        with site.connect() as conn:
            with contextlib.suppress(OSError):  # it may have hung up before the end, also between these two
                conn.sendall(data)
                conn.shutdown(socket.SHUT_WR)
            answer = Answer(read_all(conn))
        assert answer.status in (0, 200, 400, 403, 404, 405, 413, 414, 421, 426, 431), (
            data[:80],
            answer.status,
        )
        if answer.status == 200:
            assert b"Host: localhost" in data, data[:80]
            assert b"evil" not in data, data[:80]


def test_requests_in_one_packet_are_answered_each_for_itself(attacked: Any, queue: Any) -> None:
    """The body of one is not read as the next, and a refused one does not let the next in."""
    site = attacked(PYWORKER_UI_AUTH="ada:secret", ends_with={"authorization": BASIC})
    inner = f"GET /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: {BASIC}\r\n\r\n"
    outer = (
        f"POST /act HTTP/1.1\r\nHost: x\r\nContent-Length: {len(inner)}\r\nConnection: close\r\n\r\n{inner}"
    )
    assert site.raw(outer.encode()).status == 401
    first = f"GET /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: {BASIC}\r\n\r\n"
    second = "GET /audit HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with site.connect() as conn:
        conn.sendall((first + second).encode())
        data = read_all(conn)
    assert re.findall(rb"HTTP/1\.1 (\d+)", data) == [b"200", b"401"]
    assert b"Audit</h1>" not in data
