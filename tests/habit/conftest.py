from tests.support.worker_fixtures import *  # noqa: F403
