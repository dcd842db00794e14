"""The fixtures for tests of workers and commands."""

from tests.support.worker_fixtures import *  # noqa: F403
