"""pyworker.django.testing: the guide's tests, and each promise, in a real test run of Django."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support import ROOT
from tests.support.orm import environment, python

pytest.importorskip("django")
pytestmark = pytest.mark.slow

GUIDE = (ROOT / "docs" / "django.md").read_text("utf-8")
TESTS = dict(re.findall(r"<!-- (\S+[.]py) -->\n```python\n(.*?)```", GUIDE, re.DOTALL))["shop/tests.py"]
MORE = """
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connection, transaction
import pyworker
from pyworker import task


@task(result=True)
def counts(payload):
    return Order.objects.count()


@task(result=True)
async def counts_async(payload):
    return await Order.objects.acount()


class MoreTests(JobsMixin, TransactionTestCase):
    def test_both_kinds_of_handler_see_what_the_test_has_committed(self):
        Order.objects.create(email="a@example.org")
        for one in (counts, counts_async):
            self.assertEqual(self.jobs.run_task(one), 1)

    def test_a_real_worker_runs_on_the_test_runs_database(self):
        order = Order.objects.create(email="a@example.org")
        pyworker.add_job(connection, "charge", {"order": order.pk})
        call_command("pyworker", "run", once=True)
        self.assertTrue(Order.objects.get().charged)

    def test_settings_of_queues_stay(self):
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from pyworker.queue_stats where queue_name = 'mail'")
            self.assertEqual(cursor.fetchone(), (1,))

    def test_an_open_transaction_is_refused(self):
        with transaction.atomic(), self.assertRaisesRegex(Exception, "use TransactionTestCase"):
            self.jobs.drain()


class RolledBack(JobsMixin, TestCase):
    def test_a_test_case_keeps_its_transaction(self):
        pyworker.add_job(connection, "charge", {"order": 1})
        self.jobs.assert_not_enqueued("charge")  # not committed
        with self.assertRaisesRegex(Exception, "use TransactionTestCase"):
            self.jobs.run_task("charge")
        self.assertEqual(Order.objects.count(), 0)
"""


def test_the_guides_tests_and_more_pass_in_a_project(empty_dsn: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "django", project)
    (project / "shop" / "tests.py").write_text(TESTS + MORE, "utf-8")
    given: dict[str, Any] = environment(empty_dsn)
    given |= {"DJANGO_SETTINGS_MODULE": "project.settings", "PYTHONPATH": f"{project}:{ROOT}"}
    try:
        python(project, given, "manage.py", "test", "--noinput", "-v", "1")
    finally:
        with psycopg.connect(empty_dsn, autocommit=True) as conn:
            name = conninfo_to_dict(empty_dsn)["dbname"]
            conn.execute(f'drop database if exists "test_{name}" with (force)')  # type: ignore[call-overload]
