"""The fixtures for tests of the SQL."""

from tests.support.plans import watched  # noqa: F401
from tests.support.sql_fixtures import (  # noqa: F401
    _kept,
    _sessions,
    actor,
    api,
    clean,
    db,
    job_in,
    own,
    session,
)
