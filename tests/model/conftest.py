"""The fixtures for tests of the SQL."""

from tests.support.sql_fixtures import *  # noqa: F403
