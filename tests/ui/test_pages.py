"""What each page of the dashboard shows, and what it must not."""

from __future__ import annotations

import re

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from pyworker.ui import create_app
from tests.support.pages import Reader, read

PAGES = ["/", "/jobs", "/queues", "/sequences", "/schedules", "/workers", "/health", "/audit"]


def ids(response):
    return [int(number) for number in re.findall(r'name="target" value="(\d+)"', response.text)]


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_there_with_an_empty_queue(client, path):
    page = read(client().get(path))
    assert ("main", {"id": "main", "tabindex": "-1"}) in page.elements


@pytest.mark.parametrize("path", PAGES)
def test_no_page_needs_anything_from_elsewhere_or_runs_inline_script(client, path):
    response = client().get(path)
    for tag, attributes in read(response).elements:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert not re.match(
            r"(?i)(https?:)?//|javascript:|data:", attributes.get("src") or attributes.get("href") or ""
        )
        assert tag != "script" or attributes["src"].startswith("/static/")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["cache-control"] == "no-store"


def test_the_overview_shows_counts_and_what_needs_a_look(client, queue, worker):
    queue.add_job("head", sequence_policy={"key": "s"})
    queue.add_job("tail", sequence_policy={"key": "s"})
    queue.run(worker, "head", "boom", discard=True)
    queue.pause_queue("slow queue")
    text = " ".join(read(client().get("/")).text.split())
    assert "halted sequences: s by job" in text
    assert "select pyworker.resume_sequence('s')" in text
    assert "discarded in the last hour: 1 job: head (1, boom)" in text
    assert "Paused slow queue" in text
    queue.add_job("t", queue_name="slow queue")
    assert "jobs wait in paused queues: slow queue" in read(client().get("/")).text
    assert "1 discarded" in text
    assert "1 pending" in text
    assert "1 worker alive" in text
    assert "No worker is alive" not in text


def test_a_job_page_tells_its_life_its_errors_and_why_it_is_not_running(client, queue, worker):
    job = queue.add_job("mail", job_key="k", meta={"tenant": "acme"}, queue_name="q")
    queue.run(worker, "mail", "Traceback\nValueError: no such card")
    text = " ".join(read(client().get(f"/jobs/{job.id}")).text.split())
    for words in (
        "retryable",
        "waits for its retry",
        "created",
        "failed",
        "ValueError: no such card",
        "acme",
        "1 of 25",
    ):
        assert words in text


@pytest.mark.parametrize("path", ["/jobs/1", "/jobs/99999999999999999999", "/nothing", "/jobs/x"])
def test_what_is_not_there_is_said_to_be_so(client, path):
    assert "no such" in read(client().get(path), 404).text.lower()


@pytest.mark.parametrize(
    "query", ["state=nonsense", "from=nonsense", "after=-1", "after=9999999999999999999", "search=%00"]
)
def test_a_mistaken_filter_is_explained(client, query):
    assert "Not possible" in (text := read(client().get(f"/jobs?{query}"), 400).text) or "No such" in text


def test_payloads_and_results_are_shown_only_where_that_was_allowed(client, queue, worker):
    job = queue.add_job("mail", {"password": "hunter2"})
    claimed = queue.run(worker, "mail")
    queue.rows(
        "select pyworker.finish_jobs(array[%s::bigint], array[%s], array['\"swordfish\"'::jsonb])",
        [job.id, claimed.run],
    )
    closed, open_ = (
        client().get(f"/jobs/{job.id}").text,
        client(show_payloads=True).get(f"/jobs/{job.id}").text,
    )
    assert "hunter2" not in closed
    assert "swordfish" not in closed
    assert "hunter2" in open_
    assert "swordfish" in open_


def test_filters_find_jobs_by_state_task_queue_key_text_and_time(client, queue, worker):
    plain = queue.add_job("mail", job_key="a key").id
    queued = queue.add_job("charge", queue_name="q").id
    failed = queue.add_job("fail").id
    queue.run(worker, "fail", "no such card")
    c = client()
    assert ids(c.get("/jobs")) == [failed, queued, plain]
    for query, expected in {
        "state=retryable": [failed], "task=charge": [queued], "queue=q": [queued], "key=a+key": [plain],
        "search=CARD": [failed],
        "from=2020-01-01T00:00": [failed, queued, plain], "before=2020-01-01T00:00": [],
        "state=available&task=mail": [plain],
    }.items():  # fmt: skip
        assert ids(c.get(f"/jobs?{query}")) == expected, query


def test_pages_lead_on_and_back_without_a_gap(client, queue):
    queue.rows("select pyworker.add_job('t') from generate_series(1, 120)")
    c = client()
    link = lambda response, rel: re.search(rf'rel="{rel}" href="([^"]+)"', response.text)  # noqa: E731
    first = c.get("/jobs")
    second = c.get("/jobs" + link(first, "next")[1].replace("&amp;", "&"))
    third = c.get("/jobs" + link(second, "next")[1].replace("&amp;", "&"))
    assert ids(first) + ids(second) + ids(third) == list(range(120, 0, -1))
    assert link(third, "next") is None
    assert ids(c.get("/jobs" + link(third, "prev")[1].replace("&amp;", "&"))) == ids(second)


def test_mounted_below_a_path_it_stays_below_it(client, queue, dsn):
    job = queue.add_job("t")
    c = client(app=Starlette(routes=[Mount("/admin/jobs", create_app(dsn))]))
    for path in [*PAGES, f"/jobs/{job.id}", f"/confirm?action=retry&target={job.id}"]:
        for tag, attributes in read(c.get(f"/admin/jobs{path}")).elements:
            for name in ("href", "src", "action", "hx-get"):
                value = attributes.get(name, "") if tag not in ("input", "button") else ""
                assert not value.startswith("/") or value.startswith("/admin/jobs/"), (path, tag, value)
    token = re.search(
        r'name="csrf" value="([^"]+)"', c.get(f"/admin/jobs/confirm?action=cancel&target={job.id}").text
    )[1]
    done = c.post(
        "/admin/jobs/act", data={"csrf": token, "action": "cancel", "target": str(job.id), "back": "/"}
    )
    assert "1 done" in done.text


def test_it_mounts_beside_django(client, queue, dsn):
    import django
    from django.conf import settings
    from django.core.asgi import get_asgi_application

    if not settings.configured:
        settings.configure(ROOT_URLCONF=[], SECRET_KEY="x", ALLOWED_HOSTS=["*"])
        django.setup()
    c = client(app=Starlette(routes=[Mount("/jobs", create_app(dsn)), Mount("/", get_asgi_application())]))
    assert "Overview" in c.get("/jobs/").text
    assert "Nothing runs until one is started" in c.get("/jobs/").text


def test_a_database_that_is_away_is_said_to_be_so(client):
    c = client(app=create_app("host=127.0.0.1 port=1 connect_timeout=1"))
    c.app.routes[0].endpoint.__self__.pool.timeout = 0.5
    assert "The database cannot be reached" in read(c.get("/"), 503).text


def test_a_database_without_pyworker_is_said_to_be_so(client):
    assert "pyworker migrate" in read(client(schema="nowhere").get("/jobs"), 503).text


# -- hostile text ----------------------------------------------------------------------------------

_CORES = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    '" onmouseover="alert(1)',
    "' onfocus='alert(1)' autofocus='",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "--><script>alert(1)</script>",
    "<![CDATA[<script>alert(1)</script>",
    "javascript:alert(1)",
    "<a href=javascript:alert(1)>x</a>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<math><mi xlink:href=javascript:alert(1)>",
    "<body onload=alert(1)>",
    "<details open ontoggle=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<style>@import'//x'</style>",
    "<base href=//x/>",
    "<meta http-equiv=refresh content='0;url=//x'>",
    "<form action=//x><button>",
    "{{ 7 * 7 }}",
    "{% import 'os' %}",
    "${7*7}",
    "<object data=//x>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    '"><script>alert(1)</script>',
    "'><img src=x onerror=alert(1)>",
    "<p hx-get=//x hx-trigger=load>",
    "</pre><script>alert(1)</script>",
    "\\u003cscript\\u003ealert(1)",
    "</option></select><script>alert(1)</script>",
    "<ScRiPt>alert(1)</sCrIpT>",
    "<script/src=//x>",
    "<<script>alert(1)//<</script>",
    "<img/src=x/onerror=alert(1)>",
    "`onmouseover=alert(1)",
    "<isindex action=javascript:alert(1)>",
    "<video><source onerror=alert(1)>",
    "<x onclick=alert(1)>x",
    "</time><script>alert(1)</script>",
]
XSS = [
    template.format(core) for core in _CORES for template in ("{}", "{} x", "\u202e{}", "a\tb{}", "日本{}é")
]


def test_there_are_two_hundred_hostile_strings():
    assert len(set(XSS)) == 200
    assert max(map(len, XSS)) <= 128


@pytest.fixture
def hostile(queue, worker):
    """Every field that a person may fill has one of them, and each of them is in every field of some job."""
    queue.rows(
        "select pyworker.update_worker(%s, %s)",
        [worker, __import__("json").dumps({"host": XSS[1], "modules": XSS})],
    )
    jobs = []
    for number, text in enumerate(XSS):
        job = queue.add_job(
            text,
            {text: text},
            queue_name=text,
            job_key=text,
            sequence_policy={"key": f"{text} {number}"},
            meta={text: text},
            flags=[text],
        )
        queue.run(worker, text, f"{text}\n{text}", discard=True)
        jobs.append(job.id)
        queue.add_schedule(text, "0 4 * * *", text)
    queue.rows("select pyworker.perform_action('pause_queue', %s, %s)", [XSS, XSS[3]])
    return jobs


SHOWN = {
    "script",
    "style",
    "iframe",
    "object",
    "base",
    "math",
    "video",
    "source",
    "body",
    "isindex",
    "x",
    "img",
    "meta",
}


def only_ours(html, known):
    """The page consists of the elements and attributes that it has for harmless text, too."""
    for tag, attributes in Reader(html).elements:
        assert tag in known, tag
        assert set(attributes) <= known[tag], (tag, attributes)
        for name in ("href", "src", "action", "hx-get"):
            value = attributes.get(name) or ""
            assert not re.match(r"(?i)\s*(javascript|data|https?):|//", value), value


@pytest.mark.slow
def test_two_hundred_hostile_strings_are_text_in_every_field_of_every_page(client, queue, worker, hostile):
    """Compared with the same pages for harmless text: no element and no attribute is there that is
    not there for that."""
    c = client(show_payloads=True)
    known = {}
    paths = [
        *PAGES,
        "/jobs?state=discarded",
        f"/jobs/{hostile[0]}",
        "/confirm?action=pause_queue&target=a",
        "/sequences?halted=1",
    ]
    harmless = queue.add_job(
        "harmless", queue_name="h", job_key="h", sequence_policy={"key": "h"}, meta={"a": 1}, flags=["f"]
    )
    queue.run(worker, "harmless", "boom", discard=True)
    plain_paths = [
        *PAGES,
        "/jobs?search=harmless&state=discarded",
        f"/jobs/{harmless.id}",
        "/confirm?action=retry&target=1&target=2",
        "/jobs?after=3",
    ]
    for path in plain_paths:
        for tag, attributes in Reader(c.get(path).text).elements:
            known.setdefault(tag, set()).update(attributes)
    assert {"script", "meta", "body"} == SHOWN & set(known), (
        "what hostile text would like to be, and what a page has anyway"
    )
    assert not any(name.startswith("on") for names in known.values() for name in names)

    for job_id, text in zip(hostile, XSS, strict=True):
        html = c.get(f"/jobs/{job_id}").text
        only_ours(html, known)
        assert Reader(html).text.count(text) >= 5, text
        assert html.count("<script") == 1
    for path in paths:
        only_ours(c.get(path).text, known)
    seen = ""
    link = "/jobs"
    while link:
        html = c.get(link).text
        only_ours(html, known)
        seen += Reader(html).text
        following = re.search(r'rel="next" href="([^"]+)"', html)
        link = following and "/jobs" + following[1].replace("&amp;", "&")
    assert [text for text in XSS if text not in seen] == []
    schedules = Reader(c.get("/schedules").text).text
    assert [text for text in XSS if text not in schedules] == []
    assert XSS[3] in Reader(c.get("/audit").text).text


@pytest.mark.parametrize("name", ["task", "queue", "key", "search", "state", "from", "after"])
def test_hostile_text_in_a_query_is_text_in_the_answer(client, name):
    c = client()
    for text in XSS:
        response = c.get("/jobs", params={name: text})
        assert response.status_code in (200, 400)
        page = Reader(response.text)
        assert sum(tag == "script" for tag, _ in page.elements) == 1
        assert not any(
            attribute.startswith("on") for _, attributes in page.elements for attribute in attributes
        )


def test_hostile_targets_are_text_where_they_are_asked_back(client):
    c = client()
    for text in XSS:
        page = Reader(c.get("/confirm", params={"action": "pause_queue", "target": text, "back": text}).text)
        assert text in page.text
        assert sum(tag == "script" for tag, _ in page.elements) == 1
        assert not any(
            attribute.startswith("on") for _, attributes in page.elements for attribute in attributes
        )
        assert {attributes["href"] for tag, attributes in page.elements if tag == "a"} <= {
            "#main", "/", "/jobs", "/queues", "/sequences", "/schedules", "/workers", "/health", "/audit"
        }  # fmt: skip


def test_what_is_no_time_is_refused_as_the_period_of_a_rate(client, queue):
    queue.set_queue("q", 2)
    asked = {"action": "set_queue", "target": "q", "rate_limit": "10", "rate_period": "soon"}
    answer = client().get("/confirm", params=asked)
    assert answer.status_code == 400
    assert "rate_period must be an interval such as &#39;1 minute&#39;, got &#39;soon&#39;" in answer.text
