"""The fixtures for tests of the SQL, and those for tests of workers."""

from tests.support.sql_fixtures import *  # noqa: F403
from tests.support.worker_fixtures import *  # noqa: F403
