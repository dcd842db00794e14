"""The fixtures for tests of the SQL in several sessions."""

from typing import Any

import pytest

from tests.support.sql_fixtures import *  # noqa: F403


@pytest.fixture
def claimed(api: Any, worker: int) -> Any:
    """A job that runs, with key k."""
    api.add_job("t", "[1]", job_key="k")
    return api.claim(worker)
