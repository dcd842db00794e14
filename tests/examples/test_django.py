"""examples/django against the real Django, with a real worker; django.tasks where Django has them,
otherwise their own package."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import psycopg
import pytest

pytestmark = pytest.mark.slow

django = pytest.importorskip("django")
if django.VERSION < (6, 0):
    pytest.importorskip("django_tasks")


def python(project: Any, code: str) -> Any:
    """The value of `result` after this code, run in the project."""
    program = (
        f"import json, django\ndjango.setup()\n{textwrap.dedent(code)}\n"
        f"print(json.dumps(result, default=str))"
    )
    printed = project.python("-c", program, DJANGO_SETTINGS_MODULE="project.settings")
    return json.loads(printed.splitlines()[-1])


CLIENT = "from django.test import Client\nclient = Client(raise_request_exception=False)\n"
RECEIPT = (
    "from shop.tasks import *\nfrom shop.models import Order\norder = Order.objects.create(email='a@b.c')\n"
)


def run(project: Any) -> str:
    return project.python("manage.py", "pyworker", "run", "--once", "--log-level", "warning")


def test_migrate_installs_pyworker_and_leaves_the_search_path_alone(project: Any) -> None:
    assert project.rows("select count(*) from django_migrations where app = 'pyworker'") == [(2,)]
    assert project.rows(
        "select relnamespace::regnamespace::text from pg_class where relname = 'shop_order'"
    ) == [("public",)]
    assert project.python("manage.py", "pyworker", "doctor").startswith("ok ")
    assert project.rows("select concurrency from pyworker.queue_stats where queue_name = 'mail'") == [(None,)]


def test_the_migration_does_nothing_where_pyworker_is_and_prints_its_sql(project: Any) -> None:
    project.python("manage.py", "migrate", "pyworker", "0001", "--fake", "-v", "0")
    printed = project.python("manage.py", "sqlmigrate", "pyworker", "0001")
    assert "create or replace function add_job(" in printed
    before = project.rows("select applied_at from pyworker.migrations")
    code = """
        from django.db import connection
        from pyworker.django import RunPyworker
        with connection.schema_editor() as editor:
            RunPyworker().database_forwards("pyworker", editor, None, None)
        result = RunPyworker(schema="other", roles=True).deconstruct()
    """
    assert python(project, code) == ["RunPyworker", [], {"schema": "other", "roles": True}]
    assert project.rows("select applied_at from pyworker.migrations") == before


def test_no_model_lacks_a_migration(project: Any) -> None:
    assert "No changes" in project.python("manage.py", "makemigrations", "--check", "--dry-run")


ADMIN = """
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
import re, html

User.objects.create_superuser("ann", password="x")
reader = User.objects.create_user("bob", password="x", is_staff=True)
reader.user_permissions.set(Permission.objects.filter(codename__in=["view_job", "view_endedjob"]))
client = Client()

def get(name, *args, **query):
    answer = client.get(reverse(f"admin:pyworker_{name}", args=args), query)
    return html.unescape(re.sub(r"\\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode())))

def act(model, action, *ids):
    form = {"action": action, "_selected_action": ids}
    answer = client.post(reverse(f"admin:pyworker_{model}_changelist"), form, follow=True)
    return re.findall(r'<li class="(?:success|warning)">(.*?)</li>', answer.content.decode())
"""
JOBS = """
    select pyworker.add_job('charge', '{"secret": 1}', job_key := 'k 1');
    select pyworker.add_job('charge', queue_name := 'mail', run_at := '2100-01-01');
    select pyworker.cancel_job((pyworker.add_job('remind')).id);
    select pyworker.permanently_fail_jobs(array[(pyworker.add_job('remind')).id], 'no <b>paper</b>')
"""


def test_the_admin_lists_jobs_and_shows_each_without_its_payload(project: Any) -> None:
    with psycopg.connect(project.dsn) as conn:
        conn.execute(JOBS)
        conn.execute(
            "with mine as materialized (select * from pyworker.claim_jobs(pyworker.register_worker(), 1)) "
            "select pyworker.log_job(id, run, 'half <i>way</i>', 'warning') from mine"
        )
    code = """
        client.login(username="bob", password="x")
        result = [
            get("job_changelist"), get("job_changelist", q="k 1"), get("job_changelist", q="2"),
            get("job_changelist", state="discarded"), get("endedjob_changelist"),
            get("job_change", 1), get("job_change", 4), get("endedjob_change", 3),
        ]
    """
    everything, by_key, by_id, by_state, ended, first, failed, cancelled = python(
        project, ADMIN + textwrap.dedent(code)
    )
    assert "3 jobs" in everything
    for words in ("running", "scheduled", "discarded", "mail", "k 1", "0 of 25"):
        assert words in everything
    for one in (by_key, by_id, by_state):
        assert "1 job" in one
    assert "remind cancelled" in ended
    assert "half <i>way</i>" in first
    assert "warning" in first
    assert "no <b>paper</b>" in failed
    assert "discarded" in failed
    assert "cancelled" in cancelled
    assert "secret" not in first


def test_who_may_operate_retries_and_cancels_in_the_admin_and_is_recorded(project: Any) -> None:
    with psycopg.connect(project.dsn) as conn:
        conn.execute(JOBS)
    code = """
        client.login(username="bob", password="x")
        pages = [reverse("admin:pyworker_job_add"), reverse("admin:pyworker_job_delete", args=[1])]
        refused = [act("job", "cancel", 1), "Cancel" in get("job_changelist")]
        refused += [client.get(page).status_code for page in pages]
        client.login(username="ann", password="x")
        result = [refused, act("job", "cancel", 1, 4), act("job", "retry", 2, 4), act("endedjob", "retry", 3)]
        result += [client.get(page).status_code for page in pages]
    """
    refused, *done = python(project, ADMIN + textwrap.dedent(code))
    assert refused[1:] == [False, 403, 403]
    assert done == [
        ["Job 4: it was already discarded", "1 job: 1 cancelled"],
        ["2 jobs: 2 available, 4 available"],
        ["1 job: 3 available"],
        403,
        403,
    ]
    assert project.rows("select id, state from pyworker.jobs order by id") == [
        (2, "available"), (3, "available"), (4, "available")
    ]  # fmt: skip
    assert project.rows("select distinct actor from pyworker.audit") == [("ann",)]


def test_backwards_it_is_gone(project: Any) -> None:
    project.python("manage.py", "migrate", "shop", "zero", "-v", "0")
    project.python("manage.py", "migrate", "pyworker", "zero", "-v", "0")
    assert project.rows("select from pg_namespace where nspname = 'pyworker'") == []


def test_a_requests_jobs_come_with_its_transaction_and_run(project: Any) -> None:
    answer = python(project, CLIENT + "result = client.post('/orders/', {'email': 'ada@example.org'}).json()")
    assert project.rows(
        "select task_identifier, queue_name, max_attempts from pyworker.jobs order by id"
    ) == [
        ("charge", None, 25),
        ("shop.tasks.send_receipt", "mail", 5),
    ]
    assert "receipt to ada@example.org" in run(project)
    assert project.rows("select charged from shop_order") == [(True,)]
    state = python(project, CLIENT + f"result = client.get('/receipts/{answer['receipt']}/').json()")
    assert state == {"status": "SUCCESSFUL", "result": {"sent to": "ada@example.org"}}


def test_a_request_that_fails_leaves_nothing(project: Any) -> None:
    answer = python(
        project, CLIENT + "result = client.post('/orders/', {'email': 'x@y.z', 'fail': 1}).status_code"
    )
    assert answer == 500
    assert project.rows("select from pyworker.jobs") == project.rows("select from shop_order") == []


def test_an_asynchronous_view_adds_and_asynchronous_tasks_run(project: Any) -> None:
    code = """
        import asyncio
        from django.test import AsyncClient
        result = asyncio.run(AsyncClient().post('/orders/async/', {'email': 'bob@example.org'})).json()
    """
    answer = python(project, code)
    assert project.rows("select task_identifier, priority from pyworker.jobs order by id") == [
        ("shop.tasks.remind", 0),
        ("shop.tasks.send_receipt", -50),
    ]
    run(project)
    code = (
        f"from shop.tasks import *\nimport asyncio\n"
        f"result = asyncio.run(remind.aget_result('{answer['reminder']}')).return_value"
    )
    assert python(project, code) == "attempt 1 to remind bob@example.org"


def test_options_of_a_task_become_those_of_its_job(project: Any) -> None:
    code = """
        from datetime import datetime, UTC
        later = datetime(2100, 1, 1, tzinfo=UTC)
        r = send_receipt.using(priority=-7, queue_name='default', run_after=later).enqueue(order.pk)
        result = [r.status, r.is_finished, r.attempts, r.args]
    """
    assert python(project, RECEIPT + textwrap.dedent(code)) == ["READY", False, 0, [1]]
    assert project.rows(
        "select priority, queue_name, state, run_at = '2100-01-01 00:00+00', "
        "(pyworker.get_job(id)).payload::text from pyworker.jobs"
    ) == [(7, None, "scheduled", True, '{"args": [1], "kwargs": {}}')]


def test_a_result_says_how_attempts_failed(project: Any) -> None:
    given = python(project, RECEIPT + "result = send_receipt.using(queue_name='default').enqueue(999).id")
    run(project)
    code = f"""
        r = send_receipt.get_result('{given}')
        raised = [e.exception_class_path for e in r.errors]
        result = [r.status, r.attempts, raised, 'Traceback' in r.errors[0].traceback]
    """
    assert python(project, "from shop.tasks import *\n" + textwrap.dedent(code)) == [
        "READY", 1, ["shop.models.Order.DoesNotExist"], True
    ]  # fmt: skip
    project.rows(f"select pyworker.permanently_fail_jobs('{{{given}}}', 'given up')")
    assert (
        python(project, f"from shop.tasks import *\nresult = send_receipt.get_result('{given}').status")
        == "FAILED"
    )


def test_a_result_that_is_not_there_is_djangos_error(project: Any) -> None:
    code = """
        from shop.tasks import send_receipt
        result = []
        for wrong in ("nonsense", "99999", "-1", "9" * 30):
            try:
                result.append(send_receipt.get_result(wrong))
            except Exception as error:
                result.append(type(error).__name__)
    """
    assert python(project, code) == ["TaskResultDoesNotExist"] * 4


def test_signals_are_sent_where_tasks_run(project: Any) -> None:
    code = """
        from pyworker.django import _tasks
        told = []
        for signal in (_tasks.task_started, _tasks.task_finished):
            signal.connect(
                lambda task_result, **_: told.append([task_result.status, task_result.attempts]), weak=False
            )
        from types import SimpleNamespace as N
        from pyworker.tasks import load
        handler = load(['shop.tasks'])[send_receipt.module_path]
        def run(pk):
            payload = {'args': [pk], 'kwargs': {}}
            handler(payload, N(id=1, created_at=None, attempts=2, payload=payload))
        run(order.pk)
        try:
            run(99)
        except Order.DoesNotExist:
            told.append('raised')
        result = told
    """
    assert python(project, RECEIPT + textwrap.dedent(code)) == [
        ["RUNNING", 2], ["SUCCESSFUL", 2], ["RUNNING", 2], ["FAILED", 2], "raised"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "missing", "words"),
    [
        ("TasksBackend", ["django", "asgiref"], " install 'pyworker-pg[django]'"),
        ("RunPyworker", ["django"], " install 'pyworker-pg[django]'"),
        ("TasksBackend", ["django.tasks", "django_tasks"], "pip install django-tasks"),
    ],
)
def test_without_django_it_says_what_to_install(name: str, missing: list[str], words: str) -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); from pyworker.django import {name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")
    assert words in done.stderr.splitlines()[-1]
