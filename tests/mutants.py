"""Mutants of the SQL: each takes one guard away, and a test that is named here has to notice.

    python tests/mutants.py [name …]     all of them, or those whose name begins so

A mutant that is not killed is a rule that nothing tests. One that does not install, or has statements that do not even
run, counts as broken, not as killed. All are tried on a copy of the checkout, on one PostgreSQL.

Left out, as nobody could tell them from the original: claim_jobs without `materialized` (PostgreSQL never inlines a CTE
that locks rows); claim_jobs and _fill_queues without the id in their `order by` (the index they are pinned to has it);
_add_specials without the order of its rows (an index gives them in that order anyway; another order will not do: see
below); _prune with < for <= (time never stands still for it). A keyed add that leaves a running job its key never ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SECONDS = 120  # for one mutant; its tests end by themselves long before, unless it hangs
# What a mutant may not die of: it does not install, or has a statement that could never have run.
BROKEN = re.compile(
    r"in _install\n|psycopg\.errors\.(?:UndefinedColumn|UndefinedFunction|UndefinedTable|SyntaxError|Ambiguous\w+).*"
)

# clock() that stands still in a transaction.
STILL = "(now() + coalesce(nullif(current_setting('pyworker.clock_offset', true), '')::interval, '0'::interval))"
# What follows in _insert_job, and in no other function.
LATE = """
    end if;
    if v_row.ready_at < v_now then
        perform _arrive_late(array[v_row.id]);
    end if;
    if v_row.id"""


@dataclass(frozen=True)
class Mutant:
    name: str  # what is missing
    file: str  # below sql/functions/
    old: str
    new: str
    tests: str  # below tests/, separated by blanks
    waits: bool = False  # its tests are about waiting: a mutant that makes them hang is killed


# fmt: off
MUTANTS = [
    # What code declares, against what the database defines.
    Mutant("_definitions_that_differ believes the dead", "10_tasks.sql",
           "where w.dead_at is null and w.expires_at >= clock() and jsonb_typeof(e.value)", "where jsonb_typeof(e.value)",
           "sql/test_doctor.py::test_code_that_declares_a_task_otherwise_than_the_database_defines_it"),
    Mutant("_definitions_that_differ takes default for a queue", "10_tasks.sql",
           """nullif(d.options -> 'queue_name', '"default"')""", "d.options -> 'queue_name'",
           "sql/test_doctor.py::test_code_that_declares_a_task_otherwise_than_the_database_defines_it"),
    Mutant("_definitions_that_differ passes over what is not defined", "10_tasks.sql",
           "left join tasks t on t.identifier = d.identifier\n    cross join lateral (values",
           "join tasks t on t.identifier = d.identifier\n    cross join lateral (values",
           "sql/test_doctor.py::test_code_that_declares_a_task_otherwise_than_the_database_defines_it"),
    Mutant("_definitions_that_differ takes any value for an object", "10_tasks.sql",
           " and jsonb_typeof(e.value) = 'object'", "",
           "sql/test_doctor.py::test_a_worker_may_say_of_its_tasks_what_it_likes"),
    # The fence: a word about a run that is over.
    Mutant("_close_jobs ends any run", "50_finish.sql",
           "(j.run = i.run and j.state = 'running'))", "j.state = 'running')",
           "sql/test_finish.py::test_finish_job_raises_when_the_claim_was_lost"),
    Mutant("_close_jobs ends what does not run", "50_finish.sql",
           "(j.run = i.run and j.state = 'running'))", "j.run = i.run)",
           "sql/test_finish.py::test_finish_job_raises_when_the_claim_was_lost"),
    Mutant("finish_job says nothing on a stale run", "50_finish.sql",
           "'completed') = '{}' then", "'completed') is null then",
           "sql/test_finish.py::test_finish_job_raises_when_the_claim_was_lost"),
    Mutant("the run is a counter", "40_claim.sql",
           "return case when last_run < new_run then new_run else last_run + 1 + (random() * 1000000000)::bigint end;",
           "return last_run + 1;", "runner/test_fence.py"),
    Mutant("a clock that was set back repeats runs", "40_claim.sql",
           "last_run + 1 + (random() * 1000000000)::bigint end;", "last_run + 1 end;",
           "sql/test_claim.py::test_the_run_grows_even_if_the_servers_clock_was_set_back"),
    Mutant("the run follows a clock that was set back", "40_claim.sql",
           "return case when last_run < new_run then new_run else", "return case when true then new_run else",
           "sql/test_claim.py::test_the_run_grows_even_if_the_servers_clock_was_set_back"),
    Mutant("tidying forgets what is still held", "00_core.sql",
           "h.seen from held h where h.job_ids is not null;", "h.seen from held h where false;",
           "sql/test_sweep.py::test_what_a_worker_holds_is_found_however_often_it_has_claimed_since"),
    Mutant("claims are never tidied", "40_claim.sql",
           "v_run between v_tidied[2] and v_tidied[3]) is not true then", "true) is not true then",
           "sql/test_sweep.py::test_what_a_worker_holds_is_found_however_often_it_has_claimed_since"),
    Mutant("the claims of the dead stay for ever", "70_workers.sql",
           "    perform _forget_claims(worker_ids);\n", "",
           "sql/test_sweep.py::test_nothing_is_left_of_the_claims_of_workers_that_ended"),
    Mutant("a locked job of a dead worker is forgotten", "00_core.sql",
           "and j.state = 'running' offset 0) r);", "and false offset 0) r);",
           "sql/test_sweep.py::test_a_sweep_passes_by_a_row_that_somebody_holds_and_comes_again", waits=True),
    Mutant("a malformed failure passes in silence", "60_fail.sql",
           "if v_malformed is not null then", "if false then",
           "sql/test_fail.py::test_a_malformed_item_is_told_in_a_warning_without_what_it_carries"),
    Mutant("a failure's payload has no limits", "60_fail.sql",
           "when octet_length(w.payload::text) > 200 then", "when false then",
           "sql/test_fail.py::test_a_payload_beyond_the_limits_is_left_out_and_the_job_fails_with_its_own"),
    Mutant("meta has no limits", "20_add.sql",
           "when octet_length(meta::text) > 200 then", "when false then",
           "sql/test_add.py::test_meta_has_the_limits_of_the_payload"),
    Mutant("fail_jobs halts no sequence", "60_fail.sql",
           "f.sequence_key is not null and not f.continue_on_discarded\n", "false\n",
           "sql/test_fail.py::test_a_batch_ends_each_job_in_its_own_way"),
    Mutant("fail_jobs leaves the head of a discarded job", "60_fail.sql",
           "sequence_head = case when f.why is null then j.sequence_head end", "sequence_head = j.sequence_head",
           "sql/test_fail.py::test_a_batch_ends_each_job_in_its_own_way"),
    Mutant("fail_jobs ignores a request to stop", "60_fail.sql",
           "i.cancel or j.superseded is not null or j.cancel_requested_at is not null as ends,", "i.cancel as ends,",
           "sql/test_races.py::test_cancelling_a_job_waits_for_an_open_claim_and_sees_what_became_of_it"),
    Mutant("retry_jobs locks as it goes", "80_admin.sql",
           "foreach v_id in array _lock_for_retry(job_ids) loop",
           "for v_id in select distinct i.id from unnest(job_ids) i(id) order by 1 loop",
           "sql/test_lock_order.py"),
    Mutant("jobs from history take their keys back by id", "80_admin.sql",
           "order by f.job_key, i.id); -- nulls last", "order by i.id);",
           "sql/test_lock_order.py::test_two_bulk_retries_of_finished_jobs_with_the_same_keys_never_deadlock"),
    Mutant("retries from a dashboard lock as they go", "92_act.sql",
           "v_order := _lock_for_retry(targets::bigint[]);", "null;",
           "sql/test_lock_order.py::test_retries_from_a_dashboard_and_from_sql_never_deadlock"),
    Mutant("sequences are resumed by name", "92_act.sql",
           "perform from sequence_halts h where h.sequence_key = any (targets) order by h.job_id for update;", "null;",
           "sql/test_lock_order.py::test_resuming_sequences_meets_a_bulk_retry_without_a_deadlock"),
    Mutant("a policy is taken unread", "15_unique.sql",
           "v_problem text := _unique_policy_refusal(policy);", "v_problem text;",
           "sql/test_unique_policy.py::test_no_setting_of_a_session_makes_a_policy_valid"),
    Mutant("a claim that could not see a limit breaks it", "86_invariants.sql",
           "and c.seen > coalesce(q.changed, '0'::xid8)))", "))",
           "sql/test_queues.py::test_what_was_claimed_before_a_queues_change_was_committed_is_within_its_limit"),
    Mutant("no claim breaks a limit", "86_invariants.sql",
           "and c.seen > coalesce(q.changed, '0'::xid8)))", "and false))",
           "sql/test_queues.py::test_what_was_claimed_after_a_limit_was_lowered_counts_against_it"),
    Mutant("fail_jobs takes any run", "60_fail.sql",
           "where j.id between i.id and i.id and j.run = i.run and j.state = 'running' for update) j),",
           "where j.id between i.id and i.id and j.state = 'running' for update) j),",
           "sql/test_fail.py::test_a_malformed_or_stale_item_is_left_out_and_harms_no_other"),
    Mutant("snooze_job takes any run", "60_fail.sql",
           "where j.id = job_id and j.run = snooze_job.run and", "where j.id = job_id and",
           "sql/test_release_snooze.py::test_a_stale_word_is_refused"),
    Mutant("release_jobs takes any run", "60_fail.sql",
           "j.id = v_item.id and j.run = v_item.run and", "j.id = v_item.id and",
           "sql/test_release_snooze.py::test_a_stale_word_is_refused"),
    Mutant("start_job takes any run", "45_start.sql",
           "and j.run = start_job.run and", "and",
           "sql/test_delivery.py::test_start_job_is_false_for_another_run"),
    Mutant("reconcile goes by the id alone", "70_workers.sql",
           "where k.id = v_job.id and k.run = v_job.run) then\n            v_held",
           "where k.id = v_job.id) then\n            v_held",
           "sql/test_workers.py::test_after_a_lost_connection_worker_and_database_agree_again"),
    Mutant("worker_died charges another run", "70_workers.sql",
           "where k.id = v_job.id and k.run = v_job.run) then\n            perform",
           "where k.id = v_job.id) then\n            perform",
           "sql/test_sweep.py::test_stale_runs_and_strangers_in_the_list_are_left_as_they_are"),
    Mutant("the run does not grow with a claim", "40_claim.sql",
           "run = _next_run(j.run, v_run),", "run = greatest(j.run, 1),",
           "sql/test_claim.py::test_the_run_grows_with_each_claim_even_where_the_attempt_is_given_back"),
    # At most once.
    Mutant("start_job is true twice", "45_start.sql",
           " and j.started_at is null\n", "\n",
           "sql/test_delivery.py::test_start_job_is_true_once"),
    Mutant("start_job starts a replaced job", "45_start.sql",
           "and j.superseded is null and j.cancel", "and j.cancel",
           "sql/test_delivery.py::test_start_job_is_false_once_the_job_was_called_off"),
    Mutant("start_job starts what was called off", "45_start.sql",
           "and j.superseded is null and j.cancel_requested_at is null", "and j.superseded is null",
           "sql/test_delivery.py::test_start_job_is_false_once_the_job_was_called_off"),
    Mutant("start_job does not ask for the worker", "45_start.sql",
           "where w.id = j.worker_id and w.dead_at is null);", "where w.id = j.worker_id);",
           "sql/test_delivery.py::test_start_job_is_false_once_its_worker_was_declared_dead"),
    Mutant("start_job says true of nothing", "45_start.sql",
           "w.dead_at is null);\n    return found;", "w.dead_at is null);\n    return true;",
           "sql/test_delivery.py::test_start_job_is_false_for_an_unknown_job"),
    Mutant("nothing is ever lost", "60_fail.sql",
           "return (job).delivery = 'at_most_once' and (job).started_at is not null;", "return false;",
           "sql/test_delivery.py::test_what_was_started_and_has_lost_its_worker_ends_lost"),
    Mutant("what was only claimed is lost", "60_fail.sql",
           " and (job).started_at is not null;", ";",
           "sql/test_delivery.py::test_what_was_only_claimed_runs_again"),
    Mutant("snooze_job puts off what was started", "60_fail.sql",
           "elsif _is_lost(v_job) and v_job.superseded is null", "elsif false and v_job.superseded is null",
           "sql/test_delivery.py::test_what_was_started_cannot_be_put_off"),
    Mutant("fail_jobs ignores not_started", "60_fail.sql",
           "when not coalesce(not_started, false) and _is_lost(job)", "when _is_lost(job)",
           "sql/test_delivery.py::test_a_handler_that_had_not_started_may_be_tried_again"),
    Mutant("once without on conflict", "45_start.sql",
           "values (once.key, clock()) on conflict do nothing;", "values (once.key, clock());",
           "sql/test_once.py::test_once_is_true_once_for_each_key"),
    Mutant("once is always true", "45_start.sql",
           "on conflict do nothing;\n    return found;", "on conflict do nothing;\n    return true;",
           "sql/test_once.py::test_once_is_true_once_for_each_key"),
    Mutant("a mark need not be on the disk", "45_start.sql",
           "perform set_config('synchronous_commit', 'on', true);", "null;",
           "sql/test_delivery.py::test_the_mark_is_on_the_disk_when_its_commit_returns_and_the_session_is_as_before"),
    Mutant("a mark weakens remote_apply", "45_start.sql",
           "not in ('on', 'remote_apply') then", "not in ('on') then",
           "sql/test_delivery.py::test_the_mark_is_on_the_disk_when_its_commit_returns_and_the_session_is_as_before"),
    # Claims.
    Mutant("claim_jobs waits for locked rows", "40_claim.sql",
           "limit v_wanted for update skip locked) r", "limit v_wanted for update) r",
           "sql/test_races.py::test_a_claim_passes_over_a_job_that_somebody_is_changing", waits=True),
    Mutant("claim_jobs locks nothing", "40_claim.sql",
           "limit v_wanted for update skip locked) r", "limit v_wanted) r",
           "sql/test_races.py::test_two_claims_at_once_take_different_jobs_and_wait_for_nothing", waits=True),
    Mutant("claim_jobs lets the newest first", "40_claim.sql",
           "order by j.priority, j.ready_at, j.id", "order by j.priority, j.ready_at, j.id desc",
           "sql/test_claim.py::test_jobs_of_the_same_time_are_first_in_first_out_even_after_a_vacuum"),
    Mutant("claim_jobs serves the dead", "40_claim.sql",
           "where w.id = claim_jobs.worker_id and w.dead_at is null) then", "where w.id = claim_jobs.worker_id) then",
           "sql/test_claim.py::test_a_worker_declared_dead_claims_nothing_more"),
    Mutant("claim_jobs ignores forbidden flags", "40_claim.sql",
           "or not j.flags ?| claim_jobs.forbidden_flags)", "or true)",
           "sql/test_claim.py::test_a_claim_takes_only_what_it_asks_for"),
    Mutant("attempts run over", "40_claim.sql",
           "attempts = least(j.attempts + 1, 32767)", "attempts = j.attempts + 1",
           "sql/test_claim.py::test_no_count_of_attempts_stops_the_others_from_being_claimed"),
    Mutant("claim_jobs without its plan", "40_claim.sql",
           "set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set"
           " enable_mergejoin = off\n    set jit = off set plan_cache_mode = force_generic_plan",
           "",
           "sql/test_plans.py::test_a_claim_walks_the_index_in_order_and_sorts_nothing"),
    Mutant("_close_jobs without its plan", "50_finish.sql",
           "set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin ="
           " off set"
           " jit = off\n    set plan_cache_mode = force_generic_plan\n",
           "",
           "sql/test_plans.py::test_a_hot_call_touches_little_more_than_it_returns"),
    # Notifications.
    Mutant("a note holds for other filters", "40_claim.sql",
           "row('live_jobs'::regclass::oid, worker_id, task_identifiers,", "row('live_jobs'::regclass::oid, worker_id,",
           "sql/test_walks.py::test_a_place_is_for_the_same_worker_and_filters_only"),
    Mutant("a worker is not told that its job was called off", "80_admin.sql",
           "perform pg_notify(current_schema(), 'cancel');", "null;",
           "sql/test_notify.py::test_a_worker_is_told_at_once_when_its_job_is_called_off"),
    # Queues.
    Mutant("promote_jobs waits for what is due and in somebody's hand", "30_promote.sql",
           "order by d.due_at, d.id limit 1000 for update skip locked);",
           "order by d.due_at, d.id limit 1000 for update);",
           "sql/test_queue_races.py::test_a_job_that_falls_due_while_somebody_has_it_in_hand_holds_up_no_other",
           waits=True),
    Mutant("wake-ups are deleted after the fill, too", "30_promote.sql",
           "    if v_promoted > 0 then\n        perform _wake_workers();\n    end if;\n    return v_promoted;",
           "    delete from wakeups w where w.lane = any (v_lanes);\n    return v_promoted;",
           "sql/test_queue_races.py::test_a_waiting_job_in_somebodys_hand_holds_up_no_other_and_is_not_forgotten"),
    Mutant("resume_queue wakes nobody", "82_queues.sql",
           "if v_paused or found then", "if false then",
           "sql/test_queue_limits.py::test_no_job_of_a_paused_queue_starts_and_adding_goes_on"),
    Mutant("set_queue wakes nobody", "82_queues.sql",
           "perform _queue_changed(set_queue.queue_name);", "null;",
           "sql/test_queue_limits.py::test_a_raised_limit_lets_more_start"),
    Mutant("add_jobs leaves no wake-up", "22_add_jobs.sql",
           "from added a where a.parked is not null)", "from added a where false)",
           "sql/test_sequences.py::test_ids_of_a_bulk_add_follow_its_order"),
    # Sequences.
    Mutant("_settle_sequences keeps the head's lock", "30_promote.sql",
           "raise sqlstate 'PW000';", "null;",
           "sql/test_sequence_races.py::test_a_claim_in_an_open_transaction_blocks_no_completion", waits=True),
    Mutant("_settle_sequences waits for the head's lock", "30_promote.sql",
           "and j.sequence_head for share skip locked);", "and j.sequence_head for share);",
           "sql/test_sequence_races.py::test_the_head_in_somebodys_hand_is_neither_claimed_nor_overtaken", waits=True),
    Mutant("_advance_sequences does not see halts", "30_promote.sql",
           "where f.parked = 'next' or not exists (select from sequence_halts h where h.sequence_key = k.key and"
           " h.job_id < f.id)),",
           "),",
           "sql/test_sequences.py::test_a_job_that_is_cancelled_or_discarded_halts_its_sequence"),
    Mutant("_advance_sequences sees halts behind the job", "30_promote.sql",
           "where h.sequence_key = k.key and h.job_id < f.id)),", "where h.sequence_key = k.key)),",
           "sql/test_sequences.py::test_a_retry_of_the_halting_job_resumes_there"
           " sql/test_sequences.py::test_what_lies_before_a_job_that_skipped_still_runs_if_that_one_halts"),
    Mutant("_advance_sequences waits for what is in somebody's hand", "30_promote.sql",
           "(select f.tid from first f)) for update skip locked),", "(select f.tid from first f)) for update),",
           "sql/test_sequence_races.py::test_the_first_waiting_job_is_not_overtaken_while_somebody_has_it_in_hand",
           waits=True),
    Mutant("_advance_sequences forgets what was in somebody's hand", "30_promote.sql",
           "(select 'sequence:' || f.key from first f except select 'sequence:' || m.sequence_key from moved m)\n  "
           "      union all\n",
           "",
           "sql/test_sequence_races.py::test_the_first_waiting_job_is_not_overtaken_while_somebody_has_it_in_hand"),
    Mutant("an old snapshot says whose turn it is", "30_promote.sql",
           "if current_setting('transaction_isolation') <> 'read committed' then\n        -- A snapshot",
           "if false then\n        -- A snapshot",
           "sql/test_sequence_races.py::test_an_end_whose_snapshot_is_older_than_an_add_lets_that_job_go_on"),
    Mutant("a sequence goes by priority", "30_promote.sql",
           "order by j.sequence_key, j.parked, j.id limit 1) f",
           "order by j.sequence_key, j.parked, j.priority, j.id limit 1) f",
           "sql/test_sequences.py::test_neither_priority_nor_run_at_reorders_a_sequence"),
    Mutant("a cancelled job halts nothing", "50_finish.sql",
           "where final_state = 'cancelled' and e.sequence_key", "where false and e.sequence_key",
           "sql/test_sequences.py::test_a_job_that_is_cancelled_or_discarded_halts_its_sequence"),
    Mutant("a discarded job halts nothing", "60_fail.sql",
           "perform _halt_sequence(job, 'discarded');", "null;",
           "sql/test_sequences.py::test_a_job_that_is_cancelled_or_discarded_halts_its_sequence"),
    Mutant("a replaced job halts", "50_finish.sql",
           "\n          and e.superseded is null and not v_replaced", "",
           "sql/test_sequences.py::test_a_replaced_job_never_halts_and_its_successor_takes_its_turn_by_its_id"
           " sql/test_sequences.py::test_a_superseded_or_removed_run_never_halts"),
    Mutant("continue_on_cancelled does not count", "50_finish.sql",
           "e.sequence_key is not null and not e.continue_on_cancelled\n", "e.sequence_key is not null\n",
           "sql/test_sequences.py::test_with_its_continue_flag_the_sequence_goes_on"),
    Mutant("a discarded job stays the head", "60_fail.sql",
           "payload = coalesce(_discard.payload, j.payload), sequence_head = null",
           "payload = coalesce(_discard.payload, j.payload)",
           "sql/test_sequences.py::test_with_its_continue_flag_the_sequence_goes_on"),
    Mutant("retry_job leaves the halt", "80_admin.sql",
           "    if v_row.sequence_key is not null then\n        perform _unhalt_sequence(v_row.sequence_key,"
           " v_row.id);\n    end if;\n"
           "    if v_row.parked",
           "    if v_row.parked",
           "sql/test_sequences.py::test_a_retry_of_the_halting_job_resumes_there"),
    Mutant("resume_sequence resumes what lies behind as well", "82_queues.sql",
           " and (v_first is null or o.job_id < v_first) order by", " order by",
           "sql/test_sequences.py::test_resume_sequence_passes_over_several_halts_in_a_row_but_no_further"),
    # Job keys.
    Mutant("a keyed add locks nothing", "20_add.sql",
           "where j.job_key = request.job_key for update;", "where j.job_key = request.job_key;",
           "sql/test_races.py::test_an_add_that_meets_a_claim_under_way_gives_a_row_and_loses_nothing"),
    Mutant("a keyed add changes a running job at once", "20_add.sql",
           "or step = 'change' and j.state <> 'running' and", "or step = 'change' and",
           "sql/test_job_key.py::test_a_running_namesake_loses_its_key_and_a_new_job_is_made"),
    Mutant("a keyed add changes a job of a queue at once", "20_add.sql",
           "'running' and j.queue_name is null and", "'running' and",
           "sql/test_queues.py::test_a_waiting_job_that_is_taken_away_passes_its_turn_on"),
    Mutant("a keyed add changes a job of a sequence at once", "20_add.sql",
           " and j.sequence_key is null)", ")",
           "sql/test_sequences.py::test_a_keyed_add_moves_a_job_to_another_sequence"),
    Mutant("a keyed add that has changed nothing tries to insert, and burns an id", "20_add.sql",
           "if step <> 'change' then", "if true then",
           "sql/test_add.py::test_keyed_updates_burn_no_ids"),
    Mutant("a keyed add lets the running job run again", "20_add.sql",
           "set job_key = null, attempts = j.max_attempts, superseded = 'superseded', updated_at = v_now",
           "set job_key = null",
           "sql/test_job_key.py::test_a_superseded_run_that_does_not_succeed_ends_cancelled_and_never_runs_again"),
    Mutant("preserve_run_at holds after a failure", "20_add.sql",
           "and v_old.attempts = 0 and v_old.state", "and v_old.state",
           "sql/test_job_key.py::test_a_namesake_that_is_not_running_takes_all_new_values"),
    Mutant("a job that gave up hides a newer one that has ended", "15_unique.sql",
           "(v_row.id is null or v_row.state = 'discarded')", "v_row.id is null",
           "sql/test_unique_policy.py::test_of_jobs_that_have_ended_the_newest_is_the_duplicate"),
    Mutant("a new keyed job wakes nobody", "20_add.sql",
           "if v_row.id is not null and _somebody_waits() then", "if false then",
           "sql/test_notify.py"),
    Mutant("a replaced job wakes nobody", "20_add.sql",
           "    if _somebody_waits() then\n        perform _wake_workers();", "    if false then\n        perform _wake_workers();",
           "sql/test_notify.py"),
    Mutant("add_job drops its flags", "20_add.sql",
           "\n              or add_job.flags is not null then", " then",
           "sql/test_claim.py"),
    Mutant("a merge leaves the empty array's comma", "20_add.sql",
           " or v_older ~ '^[[:space:]]*[[][[:space:]]*[]]' then", " then",
           "sql/test_job_key.py"),
    Mutant("an array that whitespace follows is not merged", "20_add.sql",
           "'[]][[:space:]]*$'", "'[]]$'",
           "sql/test_job_key.py"),
    Mutant("a merged payload may be of any size", "20_add.sql",
           "and _json_refusal('payload', v_merged::text) is not null then", "and false then",
           "sql/test_job_key.py::test_a_merge_beyond_the_size_limit_is_refused_and_changes_nothing"),
    Mutant("a bulk add takes the rows in another order than a completion", "22_add_jobs.sql",
           "order by j.id + 0 for update; -- + 0", "order by j.id + 0 desc for update; -- + 0",
           "sql/test_races.py::test_a_batch_of_adds_and_a_batch_of_completions_do_not_deadlock"),
    Mutant("a bulk add takes new keys in any order", "22_add_jobs.sql",
           """order by (i.request).job_key collate "C", i.position""", "order by i.position",
           "sql/test_races.py::test_two_batches_with_opposite_orders_of_keys_do_not_deadlock"),
    Mutant("a bulk add waits for a row that came in between", "22_add_jobs.sql",
           "v_item.position), 'look', v_item.id, false);", "v_item.position), 'look', v_item.id, true);",
           "sql/test_races.py::test_a_job_that_comes_in_between_two_batches_does_not_make_them_deadlock"),
    Mutant("a bulk add has a time for each kind of job", "22_add_jobs.sql",
           "coalesce(r.run_at, v_now), r.max_attempts", "r.run_at, r.max_attempts",
           "sql/test_add.py::test_jobs_of_one_bulk_add_run_in_its_order_of_whatever_kind_they_are"),
    Mutant("remove_job does not look again", "20_add.sql",
           "exit when found or not exists (select from live_jobs j where j.job_key = remove_job.job_key);", "exit;",
           "sql/test_races.py::test_remove_job_finds_the_job_that_an_open_add_made_beside_a_running_one"),
    # Unique keys.
    Mutant("a unique add takes a new key for a held one", "15_unique.sql",
           "on conflict do nothing;\n    if not found then -- else", "on conflict do nothing;\n    if false then -- else",
           "sql/test_unique_policy.py"),
    Mutant("a unique add does not hold the key", "15_unique.sql",
           "perform _hold_unique_key(uniqueness.key);\n            v_duplicate", "v_duplicate",
           "sql/test_unique_races.py::test_the_second_add_waits_for_the_first_and_then_knows"),
    Mutant("a unique add does not look again", "15_unique.sql",
           "perform _hold_unique_key(uniqueness.key);\n            v_duplicate := _duplicate_of(uniqueness, v_now);",
           "perform _hold_unique_key(uniqueness.key);",
           "sql/test_unique_races.py::test_an_add_looks_again_once_it_holds_a_key_that_was_known_before"),
    Mutant("a bulk add takes unique keys in any order", "22_add_jobs.sql",
           "select distinct u.key from unnest(v_uniques) with ordinality u\n                where u.key is not null and"
           " (v_found[u.ordinality]).id is null order by u.key offset 0) k;",
           "select u.key from unnest(v_uniques) with ordinality u\n                where u.key is not null and"
           " (v_found[u.ordinality]).id is null offset 0) k;",
           "sql/test_unique_races.py::test_two_bulk_adds_with_opposite_orders_of_unique_keys_do_not_deadlock"),
    Mutant("retry_jobs takes unique keys in any order", "80_admin.sql",
           "union\n        select f.unique_key from finished_jobs f where f.id = any (v_ids) and f.unique_key is not null\n"
           "        order by 1 offset 0",
           "union all\n        select f.unique_key from finished_jobs f where f.id = any (v_ids) and f.unique_key is not null\n"
           "        offset 0",
           "sql/test_unique_races.py::test_retry_jobs_takes_the_keys_in_the_order_of_bulk_adds"),
    Mutant("a key that somebody holds is waited for to be released", "15_unique.sql",
           "where k.unique_key = any (keys) order by k.unique_key for update skip locked);",
           "where k.unique_key = any (keys) order by k.unique_key for update);",
           "sql/test_unique_races.py::test_what_removes_a_job_waits_for_no_add_and_leaves_it_its_key", waits=True),
    Mutant("a key is released under a live job", "15_unique.sql",
           "and not exists (select from live_jobs j where j.unique_key = k.unique_key)\n", "\n",
           "sql/test_unique_policy.py::test_maintenance_sweeps_keys_that_nobody_holds_and_leaves_the_others"),
    Mutant("an old snapshot judges which keys are free", "15_unique.sql",
           " or current_setting('transaction_isolation') <> 'read committed' then", " then",
           "sql/test_unique_races.py::test_an_end_is_never_refused_for_an_add_that_was_committed_meanwhile"),
    Mutant("a period includes its end", "15_unique.sql",
           "at time zone 'UTC' > moment;", "at time zone 'UTC' >= moment;",
           "sql/test_unique_policy.py::test_a_period_ends_at_the_same_instant_in_every_time_zone_and_equality_is_over"),
    Mutant("a retry never gives way", "30_promote.sql",
           "if not _gave_way(v_job) then", "if true then",
           "sql/test_unique_river.py::test_u3_of_a_retry_and_a_scheduled_job_due_at_once_one_survives"),
    Mutant("retry_job does not ask who has the key", "80_admin.sql",
           "if v_unique_key is not null and (v_row.id is null or _gave_key_back(v_row)) then", "if false then",
           "sql/test_unique_river.py::test_u10_a_retry_by_hand_onto_a_held_key_is_a_refusal_that_names_the_holder"),
    Mutant("strings are not normalized", "12_canonical.sql",
           "return to_json(normalize(value #>> '{}'))::text;", "return to_json(value #>> '{}')::text;",
           "sql/test_canonical.py::test_normalization_is_per_string_and_never_eats_an_escape"),
    Mutant("keys are not normalized", "12_canonical.sql",
           "normalize(e.key) as name", "e.key as name",
           "sql/test_canonical.py::test_two_members_that_normalization_makes_one_are_refused"),
    Mutant("keys sort by code points", "12_canonical.sql",
           "case when octet_length(key) = length(key) then key", "case when true then key",
           "sql/test_canonical.py::test_keys_sort_by_utf_16_units"),
    Mutant("an integer may be rounded", "12_canonical.sql",
           "if n = trunc(n) and v_text::numeric <> abs(n) then", "if false then",
           "sql/test_canonical.py::test_a_number_that_a_json_reader_would_change_is_refused"),
    # Workers.
    Mutant("a sweep sees its own lock as free", "70_workers.sql",
           "and l.objsubid = 2 and l.granted", "and l.objsubid = 2 and l.granted and l.pid <> pg_backend_pid()",
           "sql/test_sweep.py::test_a_sweep_on_the_connection_that_holds_the_lock_spares_its_own_worker"),
    Mutant("a sweep goes by leases alone", "70_workers.sql",
           " or d.suspect_since < v_now - interval '2 seconds') order by", ") order by",
           "sql/test_sweep.py::test_a_suspect_is_dead_when_its_lock_is_free_for_two_seconds"),
    Mutant("a sweep goes by locks alone", "70_workers.sql",
           "(d.expires_at < v_now or d.suspect_since", "(d.suspect_since",
           "sql/test_sweep.py::test_a_worker_that_holds_its_lock_and_does_not_beat_is_dead_all_the_same"),
    Mutant("a suspect has no grace", "70_workers.sql",
           "d.suspect_since < v_now - interval '2 seconds')", "d.suspect_since is not null)",
           "sql/test_sweep.py::test_a_suspect_is_dead_when_its_lock_is_free_for_two_seconds"),
    Mutant("a suspicion stays", "70_workers.sql",
           "case when not w.locked or w.id & 2147483647 = any (v_held) then null\n", "case when not w.locked then null\n",
           "sql/test_sweep.py::test_a_sweep_that_sees_the_lock_held_clears_the_suspicion_too"),
    Mutant("a suspicion grows while no sweep looks", "70_workers.sql",
           "when v_pause then clock() else", "when false then clock() else",
           "sql/test_sweep.py::test_a_lock_that_was_free_while_no_sweep_looked_makes_no_worker_dead"),
    Mutant("locks in other databases count", "70_workers.sql",
           "\n          and l.database = (select d.oid from pg_database d where d.datname = current_database())", "",
           "sql/test_sweep.py::test_a_lock_of_the_same_number_in_another_database_means_nothing"),
    Mutant("no amnesty after a gap", "70_workers.sql",
           "v_gap boolean := v_swept_ms > 0 and abs(v_clock_ms - v_swept_ms) > 10000;", "v_gap boolean := false;",
           "sql/test_sweep.py::test_after_a_gap_nobody_is_declared_dead_at_once_but_after_another_lease"),
    Mutant("an amnesty after each gap", "70_workers.sql",
           " and a.expires_at <= a.beat_at + v_ttl));\n        update workers w\n"
           "        set expires_at = case when w.expires_at <= w.beat_at + v_ttl then",
           "));\n        update workers w\n        set expires_at = case when true then",
           "sql/test_sweep.py::test_where_sweeps_are_rare_the_dead_are_found_too"),
    Mutant("an amnesty is over before it is committed", "70_workers.sql",
           "if v_spared = '{}' and abs(", "if abs(",
           "sql/test_sweep.py::test_an_amnesty_that_is_rolled_back_is_declared_again"),
    Mutant("a sweep that stood still prolongs from its beginning", "70_workers.sql",
           "greatest(w.expires_at, clock() + v_ttl)", "greatest(w.expires_at, v_now + v_ttl)",
           "sql/test_sweep.py::test_a_sweep_that_stood_still_goes_by_the_time_at_which_it_goes_on"),
    Mutant("a sweep that stood still suspects since its beginning", "70_workers.sql",
           "else coalesce(w.suspect_since, clock()) end", "else coalesce(w.suspect_since, v_now) end",
           "sql/test_sweep.py::test_a_sweep_that_stood_still_goes_by_the_time_at_which_it_goes_on"),
    Mutant("a clock set back prolongs lives", "70_workers.sql",
           "where c.dead_at is null and c.expires_at > clock() + v_ttl + interval '1 second'", "where false",
           "sql/test_sweep.py::test_a_clock_that_was_set_back_prolongs_no_life"),
    Mutant("a sweep waits for a worker's row", "70_workers.sql",
           "interval '2 seconds') order by d.id for update skip locked);",
           "interval '2 seconds') order by d.id for update);",
           "sql/test_sweep.py::test_a_sweep_never_waits_for_a_workers_row", waits=True),
    Mutant("a sweep waits for a job's row", "70_workers.sql",
           "order by j.id + 0 for update skip locked", "order by j.id + 0 for update",
           "sql/test_sweep.py::test_a_sweep_passes_by_a_row_that_somebody_holds_and_comes_again", waits=True),
    Mutant("a sweep hands on only whom it found dead itself", "70_workers.sql",
           "array(select w.id from workers w where w.dead_at > v_now - interval '1 minute'), 'worker died');",
           "array(select w.id from workers w where w.dead_at = v_now), 'worker died');",
           "sql/test_sweep.py::test_a_claim_that_commits_after_its_worker_was_declared_dead_is_found_by_a_later_sweep"),
    Mutant("the dead may beat", "70_workers.sql",
           "where w.id = heartbeat.worker_id and w.dead_at is null;", "where w.id = heartbeat.worker_id;",
           "sql/test_sweep.py::test_a_heartbeat_that_meets_the_sweep_learns_the_truth"),
    Mutant("an abandoned job runs beyond its last attempt", "70_workers.sql",
           "if v_job.attempts >= v_job.max_attempts and not _is_lost(v_job) then\n            perform"
           " _discard(v_job, error,",
           "if false then\n            perform _discard(v_job, error,",
           "sql/test_workers.py::test_the_job_that_killed_its_worker_once_too_often_is_discarded"),
    Mutant("worker_died charges bystanders", "70_workers.sql",
           "perform _put_back(v_job, v_job.run_at, greatest(v_job.attempts - 1, 0), 'scheduled');\n           "
           " continue;",
           "perform _put_back(v_job, v_job.run_at, v_job.attempts, 'scheduled');\n            continue;",
           "sql/test_sweep.py::test_a_single_culprit_is_charged_and_a_bystander_is_not"),
    Mutant("worker_died charges all suspects", "70_workers.sql",
           "case when v_alone then 0 else 1 end", "0",
           "sql/test_sweep.py::test_of_several_suspects_each_gets_its_attempt_back_and_a_mark"),
    Mutant("max_crashes does not count", "70_workers.sql",
           "if v_alone and v_job.crashes >= v_limit and", "if false and",
           "sql/test_sweep.py::test_a_job_that_ends_its_process_too_often_is_discarded"),
    Mutant("max_crashes discards bystanders", "70_workers.sql",
           "if v_alone and v_job.crashes >= v_limit and", "if v_job.crashes >= v_limit and",
           "sql/test_sweep.py::test_the_limit_of_crashes_discards_only_a_job_that_ran_alone"),
    # People.
    Mutant("_lock_job locks nothing", "80_admin.sql",
           "where j.id = job_id for update;\n        if found", "where j.id = job_id;\n        if found",
           "sql/test_races.py::test_cancelling_a_job_waits_for_an_open_claim_and_sees_what_became_of_it", waits=True),
    Mutant("cancel_job ends a running job without force", "80_admin.sql",
           "elsif v_row.state = 'running' and force is not true then", "elsif false then",
           "sql/test_admin.py::test_success_beats_a_request_to_stop"),
    Mutant("retry_job gives no attempt", "80_admin.sql",
           "max_attempts = case when j.attempts >= j.max_attempts then least(j.attempts + 1, 32767) else"
           " j.max_attempts end",
           "max_attempts = j.max_attempts",
           "sql/test_admin.py::test_retry_gives_one_more_attempt_where_none_is_left"),
    Mutant("a request to stop outlives its run", "60_fail.sql",
           "if job.superseded is not null or job.cancel_requested_at is not null then\n        perform"
           " _close_jobs(array[job.id], null,"
           " 'cancelled', null, coalesce(job.superseded, 'cancelled'),\n",
           "if job.superseded is not null then\n        perform _close_jobs(array[job.id], null,"
           " 'cancelled', null, coalesce(job.superseded, 'cancelled'),\n",
           "sql/test_admin.py::test_a_running_job_asked_to_stop_ends_cancelled_at_its_workers_next_word"),
    Mutant("delete_job deletes what runs", "80_admin.sql",
           "if v_row.state = 'running' then\n        raise exception 'delete_job",
           "if false then\n        raise exception 'delete_job",
           "sql/test_lifecycle.py::test_each_verb_does_to_each_state_what_the_table_says"),
    # History.
    Mutant("a discarded job is pruned two minutes too soon", "85_maintain.sql",
           "from live_jobs d where d.expires_at <= v_now order by",
           "from live_jobs d where d.expires_at <= v_now + interval '2 minutes' order by",
           "sql/test_history.py::test_a_job_is_pruned_when_its_retention_is_over_and_not_before"),
    Mutant("a discarded job is kept a minute too long", "85_maintain.sql",
           "from live_jobs d where d.expires_at <= v_now order by",
           "from live_jobs d where d.expires_at <= v_now - interval '1 minute' order by",
           "sql/test_history.py::test_a_job_is_pruned_when_its_retention_is_over_and_not_before"),
    Mutant("a finished job is pruned two minutes too soon", "85_maintain.sql",
           "into v_expired, v_kept using v_now,", "into v_expired, v_kept using v_now + interval '2 minutes',",
           "sql/test_history.py::test_a_job_is_pruned_when_its_retention_is_over_and_not_before"),
    Mutant("a finished job is kept a minute too long", "85_maintain.sql",
           "into v_expired, v_kept using v_now,", "into v_expired, v_kept using v_now - interval '1 minute',",
           "sql/test_history.py::test_a_job_is_pruned_when_its_retention_is_over_and_not_before"),
    Mutant("a halting discarded job is pruned", "85_maintain.sql",
           "d.sequence_key is not null and _holds_up(d.sequence_key, d.id) as holds\n          from live_jobs",
           "false as holds\n          from live_jobs",
           "sql/test_sequences.py::test_pruning_never_takes_a_halting_job_while_jobs_wait"),
    Mutant("a halting cancelled job is pruned", "85_maintain.sql",
           "d.sequence_key is not null and _holds_up(d.sequence_key, d.id) as holds\n              from %1$I d",
           "false as holds\n              from %1$I d",
           "sql/test_sequences.py::test_pruning_never_takes_a_halting_job_while_jobs_wait"),
    Mutant("a halting job goes with its day", "85_maintain.sql",
           "_holds_up(h.sequence_key, h.job_id) as holds",
           "false as holds",
           "sql/test_sequences.py::test_pruning_never_takes_a_halting_job_while_jobs_wait"),
    Mutant("a halting job is looked at by every maintain", "85_maintain.sql",
           "update live_jobs j set expires_at = v_now + interval '1 day' where j.id = any (v_kept);",
           "",
           "sql/test_history.py::test_a_halting_job_that_is_kept_is_not_looked_at_by_every_maintain"),
    Mutant("all halts of a day are looked at in one call", "85_maintain.sql",
           "p.sequence_key = h.sequence_key limit $1)",
           "p.sequence_key = h.sequence_key limit 10 * $1)",
           "sql/test_history.py::test_a_halting_job_that_is_kept_is_not_looked_at_by_every_maintain"),
    Mutant("maintain locks history before it asks queries", "85_maintain.sql",
           "for i in 1..2 loop\n        select r.* into v_turn",
           "perform _make_partitions();\n    for i in 1..2 loop\n        select r.* into v_turn",
           "sql/test_history.py::test_a_job_is_finished_while_maintain_asks_a_slow_query"),
    Mutant("maintain locks history in any transaction", "85_maintain.sql",
           "pg_current_xact_id_if_assigned() is null;\n    v_somewhere",
           "true;\n    v_somewhere",
           "sql/test_history.py::test_in_a_transaction_with_other_work_maintain_locks_no_history"),
    Mutant("the unique keys of a dropped day stay", "85_maintain.sql",
           "perform _forget_pruned(v_gone, null, v_keys);",
           "perform _forget_pruned(v_gone, null, null);",
           "sql/test_history.py::test_a_dropped_day_frees_the_unique_keys_of_its_jobs"),
    Mutant("a pruned job's errors stay", "85_maintain.sql",
           "execute format('delete from errors e using %I f where e.job_id = f.id', day);", "",
           "sql/test_history.py::test_whole_days_go_by_dropping_them_and_take_their_errors_along"),
    Mutant("maintenance is done by several at a time", "85_maintain.sql",
           "if not pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/maintain', 0)) then",
           "if false then",
           "sql/test_history.py::test_maintenance_is_done_by_one_at_a_time", waits=True),
    Mutant("once forgets too late", "85_maintain.sql",
           "where d.at < v_now - v_once_retention order by", "where d.at < v_now - 2 * v_once_retention order by",
           "sql/test_once.py::test_once_remembers_for_good_or_as_long_as_it_was_told"),
    Mutant("a column of a view has no name", "90_views.sql",
           "null::text as state, null::timestamptz as run_at", "null, null",
           "sql/test_doctor.py::test_views_that_a_dump_restores_are_those_that_were_installed"),
    Mutant("today's history is looked at from its lowest id on only", "85_maintain.sql",
           "if v_high - v_low >= max_rows::bigint * 10 then", "if false then",
           "sql/test_history.py::test_what_expires_behind_much_that_does_not_is_found_by_one_call_or_another"),
    Mutant("all of today's history is looked at", "85_maintain.sql",
           "using v_now, first_id, max_rows, max_rows::bigint * 10;", "using v_now, first_id, max_rows, 1e9::bigint;",
           "sql/test_history.py::test_a_call_looks_at_a_bounded_part_of_todays_history"),
    # Time.
    Mutant("time stands still in add_job", "20_add.sql",
           "v_problem text;\n    v_now timestamptz := clock();\n    v_job job;",
           "v_problem text;\n    v_now timestamptz := " + STILL + ";\n    v_job job;",
           "sql/test_lifecycle.py::test_time_goes_on_within_a_transaction"),
    Mutant("time stands still in claim_jobs", "40_claim.sql",
           "v_now timestamptz := clock();", "v_now timestamptz := " + STILL + ";",
           "sql/test_lifecycle.py::test_time_goes_on_within_a_transaction"),
    Mutant("time stands still in _close_jobs", "50_finish.sql",
           "v_now timestamptz := clock();", "v_now timestamptz := " + STILL + ";",
           "sql/test_lifecycle.py::test_time_goes_on_within_a_transaction"),
    Mutant("time stands still in heartbeat", "70_workers.sql",
           "    v_now timestamptz := clock();\nbegin\n    update workers w set beat_at",
           "    v_now timestamptz := " + STILL + ";\nbegin\n    update workers w set beat_at",
           "sql/test_lifecycle.py::test_time_goes_on_within_a_transaction"),
    # The house.
    Mutant("run_at may be infinite", "20_add.sql",
           "when run_at not between '0001-01-02 00:00+00' and '9999-12-30 00:00+00'", "when run_at <> run_at",
           "sql/test_add.py::test_a_bad_argument_is_refused_by_name_and_value"),
    Mutant("a short payload is never looked at", "20_add.sql",
           "octet_length(add_job.payload::text) > 200", "octet_length(add_job.payload::text) > 1000",
           "sql/test_add.py::test_deeper_nesting_is_refused"),
    Mutant("a payload may be nested without end", "20_add.sql",
           "if v_brackets <> '' then", "if false then",
           "sql/test_add.py::test_deeper_nesting_is_refused"),
    # Schedules.
    Mutant("a tick that was fired is due again", "36_schedules.sql",
           "update timetable t set next_at = v_due.next_at, retry_at = null where", "update timetable t set retry_at = null where",
           "sql/test_schedules.py::test_a_due_tick_becomes_one_job_with_its_time"),
    Mutant("without backfill nothing may be late", "36_schedules.sql",
           "moment - greatest(s.backfill, interval '1 minute')", "moment - s.backfill",
           "sql/test_schedules.py::test_a_missed_tick_is_passed_over_unless_it_may_be_filled_in"),
    Mutant("what is older than backfill is filled in", "36_schedules.sql",
           "if next_at < v_oldest then", "if false then",
           "sql/test_schedules.py::test_a_missed_tick_is_passed_over_unless_it_may_be_filled_in"),
    Mutant("a duplicate is a failed tick", "36_schedules.sql",
           "v_code := nullif(sqlstate, 'PW003');", "v_code := sqlstate;",
           "sql/test_schedules.py::test_a_tick_counts_as_fired_when_a_job_like_it_is_there"),
    Mutant("a tick that met a lock is lost", "36_schedules.sql",
           " or code in ('25006', '55006', '55P03', '72000')", "",
           "sql/test_schedules.py::test_a_job_that_somebody_has_in_hand_puts_the_tick_off"),
    Mutant("a tick that was cancelled is lost", "36_schedules.sql",
           "left(code, 2) in ('40', '53', '57', '58', 'XX')", "left(code, 2) in ('40', '53', '58', 'XX')",
           "sql/test_schedules.py::test_a_tick_whose_statement_was_cancelled_is_still_due"),
    Mutant("a tick that met a full disk is lost", "36_schedules.sql",
           "left(code, 2) in ('40', '53', '57', '58', 'XX')", "left(code, 2) in ('40', '57', '58', 'XX')",
           "sql/test_schedules.py::test_a_tick_that_met_a_fault_of_the_server_is_still_due"),
    Mutant("an interrupted tick is missed a minute later", "36_schedules.sql",
           "if s.retry_at is not null then", "if false then",
           "sql/test_schedules.py::test_a_tick_that_is_interrupted_again_and_again_is_fired_however_late_it_is"),
    Mutant("a query that never gets done starves the others", "36_schedules.sql",
           "order by t.retry_at nulls first, t.next_at", "order by t.next_at",
           "sql/test_schedules.py::test_a_schedule_that_never_gets_done_leaves_others_their_turn"),
    Mutant("after a cancellation the next query is asked", "36_schedules.sql",
           "cut_off := v_code = '57014';", "cut_off := false;",
           "sql/test_schedules.py::test_after_a_query_ran_out_of_time_no_other_is_asked_without_a_limit"),
    Mutant("maintain asks a query that has just run out of time", "85_maintain.sql",
           "_run_schedules('5 seconds')", "_run_schedules('0')",
           "sql/test_schedules.py::test_maintain_does_not_ask_a_query_that_has_just_run_out_of_time"),
    Mutant("one failing schedule stops the others", "36_schedules.sql",
           "when query_canceled or others then", "when query_canceled then",
           "sql/test_schedules.py::test_one_that_fails_hinders_no_other_and_says_what_is_wrong"),
    Mutant("a query that was cut off stops the others", "36_schedules.sql",
           "when query_canceled or others then", "when others then",
           "sql/test_schedules.py::test_a_query_that_takes_too_long_is_cut_off_and_said"),
    Mutant("run_schedules fails where a serialization does", "36_schedules.sql",
           "exception when serialization_failure or deadlock_detected or lock_not_available then\n                continue;",
           "exception when division_by_zero then\n                continue;",
           "sql/test_schedules.py::test_an_old_snapshot_fires_nothing_again"),
    Mutant("adding a paused schedule again wakes it", "36_schedules.sql",
           "next_at = case when t.paused then null when (t.cron", "next_at = case when (t.cron",
           "sql/test_schedules.py::test_a_paused_schedule_passes_over_what_falls_into_the_pause"),
    Mutant("the ticks of a changed schedule begin anew", "36_schedules.sql",
           "when (t.cron, t.timezone) = (excluded.cron, excluded.timezone) then t.next_at", "when false then t.next_at",
           "sql/test_schedules.py::test_changing_it_keeps_its_ticks_unless_its_times_change"),
    Mutant("the function of a query may be anybody's", "36_schedules.sql",
           "pg_get_userbyid(p.proowner) = query_role and p.prosecdef", "p.prosecdef",
           "sql/test_schedules.py::test_the_function_of_a_query_cannot_be_slipped_in"),
    Mutant("the function of a query may hold another text", "36_schedules.sql",
           " and p.prosrc = v_function.body", "",
           "sql/test_schedules.py::test_the_function_of_a_query_cannot_be_slipped_in"),
    Mutant("a query is run though its function can be altered", "36_schedules.sql",
           " or exists (select from _guests()) then", " then",
           "sql/test_schedules.py::test_the_owner_of_a_function_cannot_have_it_run_with_our_rights"),
    Mutant("a query is run while somebody may alter its function", "36_schedules.sql",
           "perform _lock_queries(true);", "",
           "sql/test_schedules.py::test_a_query_is_not_run_while_one_is_being_added"),
    Mutant("the schema of queries stays open", "36_schedules.sql",
           "for v_guest in select g.g from _guests() g(g) loop", "for v_guest in select g.g from _guests() g(g) where false loop",
           "sql/test_schedules.py::test_nobody_has_a_right_on_the_schema_of_queries_but_while_one_is_added"),
    Mutant("a query may run with the owner's rights", "36_schedules.sql",
           "elsif pg_has_role(v_query_role, v_owner, 'member') and not pg_has_role(v_owner, 'member') then", "elsif false then",
           "sql/test_schedules.py::test_arguments_of_a_query_that_are_refused"),
    Mutant("a query may name what it likes", "36_schedules.sql",
           "where k.name <> all (v_known)", "where false",
           "sql/test_schedules.py::test_a_query_is_tried_when_it_is_given"),
    Mutant("a query may write", "36_schedules.sql",
           "returns setof jsonb language plpgsql stable security definer", "returns setof jsonb language plpgsql volatile security definer",
           "sql/test_schedules.py::test_each_row_of_a_query_becomes_a_job"),
    Mutant("a query has the rights of who calls it", "36_schedules.sql",
           "returns setof jsonb language plpgsql stable security definer", "returns setof jsonb language plpgsql stable",
           "sql/test_schedules.py::test_each_row_of_a_query_becomes_a_job"),
    Mutant("what a query does outlasts it", "36_schedules.sql",
           "            raise sqlstate 'PW099';\n        exception when sqlstate 'PW099' then\n            null; -- we have the answer",
           "        exception when sqlstate 'PW099' then\n            null; -- we have the answer",
           "sql/test_schedules.py::test_what_functions_do_that_a_query_calls_is_undone"),
    Mutant("a dry run is none", "37_crontab.sql",
           "if dry_run then", "if false then",
           "sql/test_schedules.py::test_who_speaks_for_an_origin_says_all_that_it_wants"),
    Mutant("anybody takes over from anybody", "37_crontab.sql",
           "elsif v_old.origin <> v_wanted.origin and not (", "elsif false and not (",
           "sql/test_schedules.py::test_what_sql_has_taken_over_stays_so"),
    Mutant("what is shown twice runs the second time", "35_cron.sql",
           "case when v_earlier < v_at and v_earlier at time zone timezone = local_time then v_earlier else v_at end", "v_at",
           "sql/test_cron.py::test_a_time_that_is_repeated_runs_once_the_first_time"),
    Mutant("what is skipped runs an hour late", "35_cron.sql",
           "if v_at at time zone timezone <> local_time then", "if false then",
           "sql/test_cron.py::test_a_time_that_is_skipped_runs_once_right_after_the_gap"),
    Mutant("what clocks show twice counts once", "35_cron.sql",
           "if v_at <= v_after and not c.fixed then", "if false then",
           "sql/test_cron.py::test_an_expression_without_a_fixed_time_goes_by_the_clocks"),
    Mutant("a change of clocks is not seen coming", "35_cron.sql",
           "if not c.fixed and _offset_of(v_change, timezone) <> v_offset then", "if false then",
           "sql/test_cron.py::test_an_expression_without_a_fixed_time_goes_by_the_clocks"),
    Mutant("a day has to fit both", "35_cron.sql",
           " or not c.both_days and (v_date_fits or v_weekday_fits) then", " then",
           "sql/test_cron.py::test_of_dates_and_weekdays_one_is_enough_unless_one_field_begins_with_a_star"),
    Mutant("what never comes is accepted", "35_cron.sql",
           "if _cron_day(v_cron, '2000-01-01') is null then", "if false then",
           "sql/test_cron.py::test_what_is_wrong_is_said_with_its_place"),
    # Settings of the caller, and of its role.
    Mutant("a regular expression is read as the caller reads strings", "37_crontab.sql",
           "E'^(@[a-zA-Z]+|(?:\\\\S+\\\\s+){4}\\\\S+)\\\\s+(.*)$'", "'^(@[a-zA-Z]+|(?:\\S+\\s+){4}\\S+)\\s+(.*)$'",
           "sql/test_hostile.py::test_no_setting_of_the_caller_changes_what_a_call_does"),
    Mutant("a period is written in the caller's style", "15_unique.sql",
           "set search_path from current set intervalstyle = 'postgres' --", "set search_path from current --",
           "sql/test_hostile.py::test_no_setting_of_the_caller_changes_what_a_call_does"),
    Mutant("definitions are written in the caller's time zone", "87_doctor.sql",
           "set timezone = 'UTC' set datestyle = 'ISO' set", "set datestyle = 'ISO' set",
           "sql/test_hostile.py::test_no_setting_of_the_caller_changes_what_a_call_does"),
    Mutant("a worker whose claims are refused is ready", "84_health.sql",
           "when w.info ->> 'condition' = 'refused' then", "when false then",
           "sql/test_health.py::test_a_condition_is_told_and_one_that_is_unknown_means_nothing"),
    Mutant("producers may cancel", "99_grants.sql",
           "'{add_job,add_jobs,remove_job,once,", "'{add_job,add_jobs,remove_job,cancel_job,once,",
           "sql/test_hostile.py::test_each_role_may_do_what_the_matrix_says_and_nothing_else"),
    Mutant("readers see tables", "99_grants.sql",
           "v_views constant text[] := '{jobs,", "v_views constant text[] := '{live_jobs,jobs,",
           "sql/test_hostile.py::test_each_role_may_do_what_the_matrix_says_and_nothing_else"),
    Mutant("the public may call functions", "99_grants.sql",
           "execute format('revoke all on all routines in schema %I from public', v_schema);", "",
           "house/test_contract.py::test_public_may_do_nothing"),
    Mutant("worker_ttl without a search_path", "70_workers.sql",
           "function worker_ttl() returns interval\n    language plpgsql stable security definer set search_path"
           " from current",
           "function worker_ttl() returns interval\n    language plpgsql stable security definer",
           "house/test_catalog.py::test_no_search_path_can_redirect_a_function"
           " sql/test_hostile.py::test_every_function_of_the_schema_runs_with_a_search_path_of_its_own"),
    # Which job of a queue runs: 32_slots.
    Mutant("a claim without the lane", "32_slots.sql",
           "where q.n <= 500 and _try_lane('queue:' || q.name)", "where q.n <= 500",
           "sql/test_slots.py::test_however_many_sessions_claim_at_once_no_more_start_than_there_are_slots"),
    Mutant("an end without the lane", "32_slots.sql",
           "q.n <= 100 and _try_lane('queue:' || q.queue_name)", "q.n <= 100",
           "sql/test_slots.py::test_a_claim_that_takes_candidates_back_and_an_end_at_the_same_time_strand_no_job"),
    Mutant("promote_jobs without the lane", "30_promote.sql",
           "unnest(v_lanes) u(lane) offset 0) l where _try_lane(l.lane));", "unnest(v_lanes) u(lane) offset 0) l);",
           "sql/test_races.py::test_a_completion_in_an_open_transaction_blocks_nobody_of_its_queue_and_strands_no_job"),
    Mutant("an old snapshot judges a lane", "32_slots.sql",
           "return current_setting('transaction_isolation') = 'read committed'\n       and pg_try", "return pg_try",
           "sql/test_races.py::test_a_claim_with_a_snapshot_of_its_own_leaves_queued_jobs_to_others"),
    Mutant("requests stay", "30_promote.sql",
           "delete from wakeups w where w.lane = any (v_held) and w.id > walked and (w.after is null or w.after < v_xmin);", "",
           "sql/test_sequence_races.py::test_marks_on_the_head_keep_no_wakeup_for_ever"),
    Mutant("a deferred request is taken at once", "30_promote.sql",
           "any (v_held) and w.id > walked and (w.after is null or w.after < v_xmin);", "any (v_held) and w.id > walked;",
           "sql/test_slots.py::test_a_limit_that_is_set_while_a_job_ends_that_knew_of_none_strands_no_job"),
    Mutant("a queue's change is looked at once", "82_queues.sql",
           "(v_lane, null), (v_lane, pg_current_xact_id())", "(v_lane, null)",
           "sql/test_slots.py::test_a_limit_that_is_set_while_a_job_ends_that_knew_of_none_strands_no_job"),
    Mutant("_fill_queues forgets what another session has locked", "32_slots.sql",
           "v_ranked >= v_most or cardinality(v_wanted) > coalesce(cardinality(v_ids), 0)", "v_ranked >= v_most",
           "sql/test_queue_races.py::test_a_waiting_job_in_somebodys_hand_holds_up_no_other_and_is_not_forgotten"),
    Mutant("a queue without a limit starts a thousand jobs", "32_slots.sql",
           "v_ranked >= v_most or cardinality(v_wanted)", "cardinality(v_wanted)",
           "sql/test_queue_limits.py::test_a_queue_that_loses_its_limit_starts_all_that_waits_in_it"),
    Mutant("a busy lane leaves no request of an end", "32_slots.sql",
           "where l.name <> all (v_held);\n        perform _wake_workers();", "where false;\n        perform _wake_workers();",
           "sql/test_notify.py::test_a_worker_looks_again_soon_while_another_session_has_locked_a_queue"),
    Mutant("a busy lane leaves no request of a claim", "32_slots.sql",
           "select 'queue:' || l.name from unnest(v_limited) l(name);",
           "select 'queue:' || l.name from unnest(v_limited) l(name) where false;",
           "sql/test_slots.py::test_a_claim_that_meets_a_queue_which_another_session_is_claiming_from_comes_again_soon"),
    Mutant("the limit of set_queue does not count", "32_slots.sql",
           "case when q.paused then 0 else q.concurrency - r.running end),", "case when q.paused then 0 else 1 - r.running end),",
           "sql/test_queue_limits.py::test_a_queue_of_n_runs_n_at_once_and_a_next_one_for_each_that_ends"),
    Mutant("a claim does not look for a pause", "32_slots.sql",
           "array_agg(case when q.paused then 0 else q.concurrency - r.running end),", "array_agg(q.concurrency - r.running),",
           "sql/test_slots.py::test_no_claim_that_begins_after_a_pause_was_committed_starts_a_job_whoever_promotes"),
    Mutant("what runs takes no slot", "32_slots.sql",
           "order by j.queue_name, j.priority, j.run_at, j.id limit _running_in.up_to) r;", "limit 0) r;",
           "sql/test_queue_limits.py::test_after_a_resume_no_more_start_than_the_limit"),
    Mutant("the shortest family counts", "32_slots.sql",
           "order by length(o.queue_name) desc limit 1", "order by length(o.queue_name) limit 1",
           "sql/test_queue_limits.py::test_the_longest_family_counts_and_a_name_of_its_own_before_any_family"),
    Mutant("a family counts before a name of its own", "32_slots.sql",
           "left join queues q on q.queue_name = n.name", "left join queues q on q.queue_name = n.name and q.inherits",
           "sql/test_queue_limits.py::test_the_longest_family_counts_and_a_name_of_its_own_before_any_family"),
    Mutant("the order in a queue is by run_at alone", "32_slots.sql",
           "p.priority, p.run_at, p.id limit q.slots", "p.run_at, p.id limit q.slots",
           "sql/test_queues.py::test_the_order_in_a_queue_is_priority_run_at_id"),
    Mutant("one kind of job has candidates", "32_slots.sql",
           "select k.task_identifier, k.flags from kind k;", "select k.task_identifier, k.flags from kind k limit 1;",
           "sql/test_slots.py::test_a_job_that_a_worker_does_not_take_holds_up_no_job_behind_it"),
    Mutant("candidates are not counted", "32_slots.sql",
           "and c.task_identifier = k.task_identifier and", "and false and",
           "sql/test_slots.py::test_of_each_kind_of_job_no_more_are_candidates_than_there_are_slots"),
    Mutant("a full queue keeps its candidates", "40_claim.sql",
           "perform _park_candidates(v_full);", "null;",
           "sql/test_slots.py::test_the_claim_that_takes_the_last_slot_takes_the_other_candidates_back"),
    Mutant("a claim ends at a full queue", "40_claim.sql",
           "if v_wanted > 0 and v_got < cardinality(v_found.rows) then", "if false then",
           "sql/test_slots.py::test_a_claim_passes_a_full_queue_and_takes_what_comes_behind"),
    Mutant("add_job of a queue leaves no request", "20_add.sql",
           "insert into wakeups (lane) values ('queue:' || v_job.queue_name);", "null;",
           "sql/test_queues.py::test_jobs_of_a_named_queue_run_one_after_the_other_in_order"),
    Mutant("an end frees no slot", "50_finish.sql",
           "perform _slots_freed(v_queues);", "null;",
           "sql/test_queues.py::test_however_a_job_leaves_the_next_of_its_queue_follows_at_once"),
    Mutant("an add to a limited queue is ready at once", "20_add.sql",
           "case when r.run_at <= v_now and not q.limited then", "case when r.run_at <= v_now then",
           "sql/test_add.py sql/test_queues.py"),
    Mutant("an add to a limited queue is parked before its time", "20_add.sql",
           "case when r.run_at <= v_now and q.limited then", "case when q.limited then",
           "sql/test_add.py sql/test_queues.py"),
    Mutant("a family's request is for none of its queues", "86_invariants.sql",
           "where starts_with(w.lane, 'family:') and starts_with(j.queue_name", "where false and starts_with(j.queue_name",
           "sql/test_queues.py::test_a_family_that_was_just_set_strands_none_of_its_queues"),
    Mutant("an add to a sequence leaves no request", "20_add.sql",
           f"_lane_of(v_row.parked, v_row.queue_name, v_row.sequence_key));{LATE}", f"'none');{LATE}",
           "sql/test_sequences.py::test_the_first_job_of_an_idle_sequence_is_there_for_the_next_claim"),
    Mutant("_settle_sequences does not ask who has the head locked", "30_promote.sql",
           "insert into wakeups (lane) select 'sequence:' || k.key from unnest(v_touched) k(key) where k.key <> all (v_free);", "",
           "sql/test_sequence_races.py::test_an_add_that_meets_the_end_of_its_predecessor_is_neither_lost_nor_early"),
    Mutant("a sequence's new head makes no request of its queue", "30_promote.sql",
           "from moved m where m.parked = 'queue')", "from moved m where false)",
           "sql/test_sequences.py::test_a_follow_up_in_another_queue_takes_its_turn_there"),
    Mutant("resume_sequence makes no request", "82_queues.sql",
           "insert into wakeups (lane) values ('sequence:' || sequence_key);", "",
           "sql/test_sequences.py::test_resume_sequence_goes_on_without_the_halting_job"),
    Mutant("time stands still in promote_jobs", "30_promote.sql",
           "    v_now timestamptz := clock();\n    v_due_from", f"    v_now timestamptz := {STILL};\n    v_due_from",
           "sql/test_lifecycle.py::test_time_goes_on_within_a_transaction"),
    # What a session remembers of its walks: 02_walks.
    Mutant("a claim leaves no trace", "40_claim.sql",
           "insert into claims values (claim_jobs.worker_id, v_run, v_found.ids, v_seen))",
           "insert into claims select claim_jobs.worker_id, v_run, v_found.ids, v_seen where false)",
           "sql/test_workers.py::test_the_jobs_of_a_dead_worker_are_handed_on_with_their_attempt_counted"),
    Mutant("a claim remembers no place", "40_claim.sql",
           "if v_walk.owner is not null or _entries_read(v_index)", "if false and _entries_read(v_index)",
           "sql/test_walks.py::test_a_claim_does_not_walk_again_what_it_walked_before"),
    Mutant("a place is kept for ever", "02_walks.sql",
           "between clock_timestamp() and clock_timestamp() + interval '2 seconds'", "> '-infinity'",
           "sql/test_walks.py::test_a_job_that_was_long_in_committing_waits_no_longer_than_the_place_is_kept"),
    Mutant("a place from the future is kept", "02_walks.sql",
           "between clock_timestamp() and clock_timestamp() + interval '2 seconds'", "> clock_timestamp()",
           "sql/test_walks.py::test_a_place_from_a_clock_that_was_set_back_is_dropped"),
    Mutant("a place leaves out the priorities in between", "02_walks.sql",
           "where s.priority <= s.to_priority", "where s.priority = s.to_priority",
           "sql/test_walks.py::test_a_more_urgent_job_never_waits_for_a_walk_from_the_head"),
    Mutant("a place is kept as long as its walk deserves", "02_walks.sql",
           "least(20 * (clock_timestamp() - began), interval '2 seconds')", "20 * (clock_timestamp() - began)",
           "sql/test_walks.py::test_a_place_is_kept_for_two_seconds_at_most_however_long_the_walk_was"),
    Mutant("late arrivals are not told of", "02_walks.sql",
           "from unnest(job_ids) j(id) where j.id is not null;", "from unnest(job_ids) j(id) where false;",
           "sql/test_walks.py::test_a_job_that_comes_to_stand_before_the_place_is_found_by_the_next_claim"),
    Mutant("a late arrival is looked for once", "02_walks.sql",
           "select walk.late_ids || array_agg(a.job_id),", "select array_agg(a.job_id),",
           "sql/test_walks.py::test_one_that_a_claim_had_no_room_for_is_found_by_the_claim_after_it"),
    Mutant("promotions walk all requests", "30_promote.sql",
           "_entries_read('wakeups_pkey') - v_read < 2000 then", "true then",
           "sql/test_walks.py::test_promotions_do_not_walk_again_what_has_ended_under_an_old_snapshot"),
    Mutant("promotions walk all due jobs", "30_promote.sql",
           "_entries_read('live_jobs_due') - v_read > 2000 + 2 * cardinality(v_due)", "false",
           "sql/test_walks.py::test_promotions_do_not_walk_again_what_has_ended_under_an_old_snapshot"),
    Mutant("a serial queue's claim is not durable", "40_claim.sql",
           "if v_in_turn then", "if false then",
           "sql/test_walks.py::test_a_claim_need_not_wait_for_the_disk_unless_its_jobs_take_turns"),
    # Who is notified, and who looks: 01_notify.
    Mutant("claim_jobs asks for no notification", "01_notify.sql",
           "perform setval('armed_until', v_ms + 5000);", "null;",
           "sql/test_notify.py::test_an_add_wakes_a_worker_that_waits"),
    Mutant("claim_jobs does not look again once it has asked", "40_claim.sql",
           "exit when not _begin_to_wait(max_jobs - v_wanted);", "perform _begin_to_wait(max_jobs - v_wanted); exit;",
           "sql/test_notify.py::test_an_add_that_has_just_seen_nobody_wait_is_found_by_who_begins_to_wait"),
    Mutant("notified although nobody waits", "01_notify.sql",
           "pg_sequence_last_value('armed_until'::regclass) > date_part('epoch', clock_timestamp()) * 1000, false);",
           "true, false);",
           "sql/test_notify.py::test_nobody_is_notified_while_nobody_waits"),
    Mutant("notified although it was switched off", "01_notify.sql",
           " and current_setting('pyworker.notify', true) is distinct from 'off'", "",
           "sql/test_notify.py::test_notifications_can_be_switched_off_for_a_session"),
    Mutant("many adds at once all notify", "01_notify.sql",
           " and not _worker_looks() and", " and",
           "sql/test_notify.py::test_where_many_jobs_come_in_a_worker_looks_every_10_ms_and_adds_are_silent"),
    Mutant("adds are silent for a worker that has stopped looking", "01_notify.sql",
           "pg_sequence_last_value('looking_until'::regclass) > date_part('epoch', clock_timestamp()) * 1000, false);",
           "pg_sequence_last_value('looking_until'::regclass) > 0, false);",
           "sql/test_notify.py::test_nobody_stays_silent_for_a_worker_that_has_stopped_looking"),
    Mutant("no worker looks for adds that saw none wait", "01_notify.sql",
           "case when (select s.last_value from silent_before s) > v_xmin and _silent_ones_are_open() then", "case when false then",
           "sql/test_notify.py::test_while_a_transaction_is_open_that_saw_no_worker_wait_a_worker_looks_again_soon"),
    Mutant("other databases keep workers awake", "01_notify.sql",
           " and _silent_ones_are_open() then", " then",
           "sql/test_notify.py::test_a_transaction_that_began_later_or_in_another_database_keeps_no_worker_awake"),
    Mutant("no worker looks for a request that was left", "01_notify.sql",
           "where w.id > v_requests_from and w.after is null", "where false",
           "sql/test_notify.py::test_a_worker_looks_again_soon_while_another_session_has_locked_a_queue"),
    Mutant("a worker that has no room leaves it to nobody", "40_claim.sql",
           "if v_wanted = 0 and _worker_looks() then", "if false then",
           "sql/test_notify.py::test_a_worker_that_looks_every_10_ms_and_has_no_room_any_more_leaves_it_to_others"),
    Mutant("no worker looks for adds that were silent on purpose", "01_notify.sql",
           " or (v_looking_until > 0 and v_found < v_many) then", " then",
           "sql/test_notify.py::test_an_add_that_was_silent_and_is_long_in_committing_is_looked_for"),
    Mutant("seconds_until_due goes by the server's time", "01_notify.sql",
           "j.due_at - clock())", "j.due_at - now())",
           "sql/test_claim.py::test_a_worker_knows_how_long_nothing_falls_due"),
]
# fmt: on


@dataclass(frozen=True)
class Place:
    """Where mutants are tried."""

    copy: Path
    url: str

    def file(self, mutant: Mutant) -> Path:
        return self.copy / "sql/functions" / mutant.file

    def python(self, *arguments: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYWORKER_TEST_DATABASE_URL": self.url,
        }
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.copy, env=environment, timeout=seconds, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def pytest(self, tests: list[str], *options: str, seconds: float | None = None) -> tuple[int, str]:
        self.clean()
        nodes = [f"tests/{test}" for test in tests]
        ran = self.python(
            "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *options, *nodes, seconds=seconds
        )  # fmt: skip
        return ran.returncode, ran.stdout

    def clean(self) -> None:
        """Drop what a run that was ended has left behind."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as conn:
            for (name,) in conn.execute("select datname from pg_database where datname ~ '^pyworker_test'").fetchall():
                conn.execute(f'alter database "{name}" is_template false')
                conn.execute(f'drop database "{name}" with (force)')


@contextmanager
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="pyworker-mutants-") as directory:
        copy = Path(directory)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=CHECKOUT, check=True, text=True, stdout=subprocess.PIPE,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (CHECKOUT / name).is_file():  # not deleted
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(CHECKOUT / name, copy / name)
        sys.path.insert(0, directory)
        from pyworker._embedded import temporary_server
        from pyworker._files import directory as directory_of

        with temporary_server(in_memory=True, settings={"max_prepared_transactions": "4"}) as server:
            here = Place(copy, server.url())
            # The tests, too, must find the copy's SQL.
            found = here.python("-c", "import pytest, pyworker._files as f; print(f.directory('sql'))").stdout.strip()
            if {Path(found), directory_of("sql")} != {(copy / "sql").resolve()}:
                sys.exit(f"the SQL that would be tested is {found}, not the copy's")
            yield here


def refusals(mutants: list[Mutant]) -> list[str]:
    """What is wrong with the list itself."""
    found = []
    for mutant in mutants:
        count = (CHECKOUT / "sql/functions" / mutant.file).read_text("utf-8").count(mutant.old)
        if count != 1:
            found.append(f"{mutant.name}: its text occurs {count} times in {mutant.file}, it must be once")
    names = [mutant.name for mutant in mutants]
    return found + [f"{name}: two mutants have this name" for name in sorted({n for n in names if names.count(n) > 1})]


def judged(here: Place, mutant: Mutant) -> tuple[str, str]:
    """killed, SURVIVED or broken; and by whom, or why."""
    path = here.file(mutant)
    original = path.read_text("utf-8")
    path.write_text(original.replace(mutant.old, mutant.new), "utf-8")
    try:
        try:
            code, output = here.pytest(mutant.tests.split(), "-x", "--tb=short", seconds=SECONDS)
        except subprocess.TimeoutExpired:
            return ("killed", "it hangs") if mutant.waits else ("broken", f"no end within {SECONDS} seconds")
        if os.environ.get("MUTANTS_VERBOSE"):
            print(output)
        if code == 0:
            return "SURVIVED", mutant.tests
        if code != 1:
            return "broken", f"pytest ended with {code}: {output.strip().splitlines()[-1:]}"
        if broken := BROKEN.search(output):
            return "broken", broken[0]
        by = re.search(r"(?m)^(?:FAILED|ERROR) \S*?::(.*?)(?: - .*)?$", output)
        return "killed", by[1] if by else "?"
    finally:
        path.write_text(original, "utf-8")


def main(names: list[str]) -> int:
    chosen = [m for m in MUTANTS if not names or any(m.name.startswith(name) for name in names)]
    if not chosen:
        sys.exit(f"there is no mutant {names}")
    if problems := refusals(chosen):
        sys.exit("\n".join(problems))
    begun = time.monotonic()
    with place() as here:
        code, output = here.pytest(sorted({test for mutant in chosen for test in mutant.tests.split()}))
        if code:
            sys.exit(f"{output}\nThe tests must pass as long as nothing is missing.")
        print(f"no mutant: {output.strip().splitlines()[-1]}", flush=True)
        verdicts: list[tuple[str, str]] = []
        for mutant in chosen:
            verdict, why = judged(here, mutant)
            verdicts.append((verdict, mutant.name))
            print(f"{verdict:8}  {mutant.name}  ({why})", flush=True)
    counts = {verdict: [v for v, _ in verdicts].count(verdict) for verdict in ("killed", "SURVIVED", "broken")}
    print(", ".join(f"{n} {verdict}" for verdict, n in counts.items()), f"in {time.monotonic() - begun:.0f} seconds")
    return counts["killed"] < len(verdicts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
