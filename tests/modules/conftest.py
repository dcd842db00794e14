"""The fixtures for tests of the modules of the SQL."""

import pytest

from tests.support.sql_fixtures import *  # noqa: F403
from tests.support.states import ALL


@pytest.fixture
def one_of_each(api, worker, job_in):
    """A job in each state, under its name; and what it took to make them."""
    return {state: job_in(state, f"task {state}") for state in ALL}
