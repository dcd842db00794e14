"""What a program's call reads does not depend on what has come and gone, while an old snapshot keeps vacuum
from removing it."""

from __future__ import annotations

import psycopg
import pytest

from tests.rows import crowds
from tests.rows.growth import MANY, grown
from tests.rows.measure import Place
from tests.rows.verbs import PROGRAMS

# A session remembers a walk along an index if it read more than this.
SHORT = 3000
# A session has just taken all that was ready except for two jobs, and so walked past all that has gone.
A_TURN_BEFORE = """
    select from pyworker.add_jobs('[{"identifier": "available"}, {"identifier": "available"}]');
    select from pyworker.work(%(worker)s, null, null, null, null, (
        select count(*)::integer - 2 from pyworker.live_jobs j
        where j.ready_at is not null and j.state = 'available'));
    select from pyworker.promote_jobs(); select from pyworker.beat(%(worker)s, '{}', '{}')"""


def under_an_old_snapshot(place: Place, names: list[str], few: int, many: int) -> list[str]:
    with psycopg.connect(place.dsn) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select from pyworker.jobs")
        place.old = old.info.backend_pid
        place.before_each = A_TURN_BEFORE
        return grown(place, names, few, many, PROGRAMS, SHORT)


def test_no_call_of_a_program_reads_what_has_expired_under_an_old_snapshot(place: Place) -> None:
    found = under_an_old_snapshot(place, ["gone: expired"], 40, 9000)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("crowd", crowds.GONE)
def test_no_call_of_a_program_reads_what_has_gone_under_an_old_snapshot(place: Place, crowd: str) -> None:
    found = under_an_old_snapshot(place, [crowd], MANY // 20, MANY)
    assert not found, "\n".join(found)
