"""Django's admin with text of others in every field, with forged forms, and asked for nonsense."""

from __future__ import annotations

import textwrap
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from .test_django import ADMIN, python

pytestmark = pytest.mark.slow

EVIL = "<script>alert(1)</script>\"><img src=x onerror=alert(1)>' onfocus='x"


def planted(conn: psycopg.Connection[Any], word: str) -> None:
    """A failed job and a cancelled one with this word in each field, and in a line of the log."""
    named = "queue_name => %(w)s, meta => %(j)s, flags => array[%(w)s], sequence_policy => %(s)s"
    given = {"w": word, "j": Jsonb({word: word}), "s": Jsonb({"key": word})}
    conn.execute(
        f"select pyworker.add_job(%(w)s, %(j)s::jsonb, job_key => %(w)s, max_attempts => 1, {named})", given
    )
    conn.execute("select pyworker.cancel_job((pyworker.add_job(%(w)s, job_key => 'c')).id)", given)
    worker = conn.execute("select pyworker.register_worker(%s)", [Jsonb({"name": word})]).fetchone()[0]  # type: ignore[index]
    conn.commit()  # a claim in a transaction that has written lets in no job of a queue
    job, run = conn.execute("select id, run from pyworker.claim_jobs(%s, 1)", [worker]).fetchone()  # type: ignore[misc]
    conn.execute("select pyworker.log_job(%s, %s, %s)", [job, run, word])
    conn.execute("select pyworker.set_progress(%s, %s, 0.5, %s)", [job, run, word])
    conn.execute("select pyworker.fail_jobs(%s)", [Jsonb([{"id": job, "run": run, "error": word}])])


def test_no_text_of_a_job_becomes_an_element_of_the_admin(project: Any) -> None:
    with psycopg.connect(project.dsn) as conn:
        planted(conn, EVIL)
    code = """
        client.login(username="ann", password="x")
        pages = [reverse("admin:pyworker_job_changelist"), reverse("admin:pyworker_endedjob_changelist"),
                 reverse("admin:pyworker_job_change", args=[1]), reverse("admin:pyworker_endedjob_change",
                 args=[2])]
        result = [client.get(page).content.decode() for page in pages]
        form = {"action": "retry", "_selected_action": [1, 2]}
        done = client.post(pages[0], form, follow=True)
        result.append(done.content.decode())
    """
    pages = python(project, ADMIN + textwrap.dedent(code))
    for page in pages:
        assert "alert(1)" in page
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "' onfocus='" not in page


def test_the_admin_refuses_forged_forms_and_explains_nonsense(project: Any) -> None:
    with psycopg.connect(project.dsn) as conn:
        planted(conn, "t")
    code = """
        forged = Client(enforce_csrf_checks=True)
        forged.login(username="ann", password="x")
        page = reverse("admin:pyworker_job_changelist")
        form = {"action": "retry", "_selected_action": [1]}
        result = [forged.post(page, form).status_code, forged.post(page,
        form | {"csrfmiddlewaretoken": "x"}).status_code]
        client.login(username="ann", password="x")
        for query in ("?q=%25%00", "?q=" + "9" * 5000, "?state=%27", "?p=-1", "?p=99999999999999", "?o=99",
        "?nope=1",
                      "?q=%5C", "?state__exact=x&id__lt=x"):
            result.append(client.get(page + query).status_code)
        for key in ("0", "-1", "9" * 30, "x", "1%27"):
            result.append(client.get(page + key + "/change/").status_code)
        for chosen in ("9" * 30, "-1", "0"):  # what is no number, Django itself answers with 500
            result.append(client.post(page, {"action": "retry", "_selected_action": [chosen]}).status_code)
    """
    forged, wrong, *others = python(project, ADMIN + textwrap.dedent(code))
    assert (forged, wrong) == (403, 403)
    assert set(others) <= {200, 302, 400, 404}, others
    assert project.rows("select count(*) from pyworker.audit") == [(0,)]
