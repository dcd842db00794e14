"""examples/fastapi_sqlalchemy: requests by FastAPI's own test client, the dashboard mounted beside
them, jobs by a real worker."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest

for library in ("fastapi", "httpx", "sqlalchemy", "jinja2", "asyncpg"):
    pytest.importorskip(library)

CLIENT = """
import json
from fastapi.testclient import TestClient
from app import app
with TestClient(app, base_url="http://localhost") as client:
    answers = [client.post(path, json={"email": email}) for path in ("/orders", "/orders/sync")
               for email in ("ada@example.org", "nonsense")]
    page = client.get("/jobs/jobs").text
    elsewhere = client.get("/jobs/jobs", headers={"host": "example.org"}).status_code
assert "charge" in page and 'href="/jobs/' in page, page
assert elsewhere == 421, elsewhere
print(json.dumps([[answer.status_code, answer.json()] for answer in answers]))
"""


def test_orders_and_their_jobs_are_committed_together_or_not_at_all(example: Any) -> None:
    app = example("fastapi_sqlalchemy")
    app.python("-m", "pyworker", "migrate")
    answers = json.loads(app.python("-c", textwrap.dedent(CLIENT)))
    assert [code for code, _ in answers] == [200, 422, 200, 422]
    orders = [answer["order"] for code, answer in answers if code == 200]
    assert app.rows("select id from orders order by id") == [(order,) for order in orders]
    assert app.rows(
        "select (pyworker.get_job(id)).payload->>'order', key is not null from pyworker.jobs order by id"
    ) == [(str(orders[0]), True), (str(orders[1]), False)]
    app.python("-m", "pyworker", "run", "tasks", "--once")
    assert app.rows("select distinct charged from orders") == [(True,)]
    assert app.rows("select distinct state from pyworker.history") == [("completed",)]
