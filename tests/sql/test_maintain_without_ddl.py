"""maintain() in a database that forbids new tables."""

from __future__ import annotations

from typing import Any

from tests.support.history import end

FORBID = """
    create function public.forbid() returns event_trigger language plpgsql as
        $$ begin raise exception 'not in the middle of the day'; end $$;
    create event trigger no_table on ddl_command_start execute function public.forbid();
    create event trigger no_drop on sql_drop execute function public.forbid()"""


def days(api: Any) -> int:
    return api.value(
        "select count(*) from pg_inherits where inhparent = 'pyworker.finished_jobs'::regclass"
        " and inhrelid <> 'pyworker.finished_jobs_default'::regclass"
    )


def test_where_an_event_trigger_forbids_tables_maintenance_does_all_the_rest(own: Any) -> None:
    own.rows(FORBID)
    end(own, "completed", own.register_worker())
    later = own.add_job("t", run_at=own.at("10 days")).id
    own.rows("select set_config('pyworker.clock_offset', '11 days', false)")
    made = days(own)
    done = own.maintain()
    assert (done["promoted"], done["pruned"]) == (1, 1)
    assert own.get_job(later).state == "available"
    assert days(own) == made
    own.rows("drop event trigger no_table; drop event trigger no_drop")
    own.maintain()
    assert days(own) == 3  # the old ones are gone, and there are new ones
