"""unique_policy: periods, jobs that have ended, and many adds in one call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.states import ALL, LIVE
from tests.support.unique import OJS, RIVER, A, add, count, detail, keys


# Periods
def test_an_ojs_period_slides_from_the_creation_of_the_job_that_is_there(api: Any, clock: Any) -> None:
    policy = {**OJS, "period": "PT1H", "on_conflict": "ignore"}
    first = add(api, policy)
    clock.advance(minutes=59)
    assert add(api, policy).id == first.id  # and that does not prolong it
    clock.advance(minutes=2)
    second = add(api, policy)
    assert second.id != first.id
    assert add(api, policy).id == second.id
    assert add(api, {**policy, "period": "PT2H"}).id == second.id
    assert add(api, {**policy, "period": "PT0S"}).id not in (first.id, second.id)


def test_an_expired_job_is_not_replaced_but_runs_beside_the_new_one(api: Any, clock: Any) -> None:
    policy = {**OJS, "period": "PT1H", "on_conflict": "replace"}
    old = add(api, policy)
    clock.advance(hours=1)
    add(api, policy)
    assert api.get_job(old.id).state == "available"


@pytest.mark.parametrize(
    ("created", "period", "end"),
    [
        ("2026-03-28 12:00+00", "P1D", "2026-03-29 12:00+00"),
        ("2026-10-24 12:00+00", "P1D", "2026-10-25 12:00+00"),
        ("2026-03-07 20:00+00", "P1W", "2026-03-14 20:00+00"),
        ("2026-01-31 23:30+00", "P1M", "2026-02-28 23:30+00"),
        ("2026-01-01 00:00+00", "PT0S", "2026-01-01 00:00+00"),
    ],
)
def test_a_period_ends_at_the_same_instant_in_every_time_zone_and_equality_is_over(
    api: Any, created: str, period: str, end: str
) -> None:
    sql = """select pyworker._in_period(created, period, expires - interval '1 us') as before,
                    pyworker._in_period(created, period, expires) as at
             from (select %s::timestamptz, pyworker._iso_duration(%s), %s::timestamptz) v(created, period,
                 expires)"""
    for zone in ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia"]:
        api.rows(f"set timezone = '{zone}'")
        assert api.rows(sql, [created, period, end]) == [(True, False)]


@pytest.mark.parametrize(
    ("period", "moment", "same", "next_window"),
    [
        ("15 minutes", "2026-02-03 15:21:00+00", ["15:15:00+00", "15:29:59.999999+00"], "15:30:00+00"),
        (900, "2026-02-03 15:21:00+00", ["15:15:00+00", "15:29:59+00"], "15:30:00+00"),
        ("90 minutes", "2026-02-03 15:21:00+00", ["15:00:00+00", "16:29:59+00"], "14:59:59+00"),
        ("24 hours", "2026-03-29 15:21:00+00", ["00:00:00+00", "23:59:59+00"], "2026-03-30 00:00:00+00"),
        ("1 day", "2026-03-29 15:21:00+00", ["00:00:00+00", "23:59:59+00"], "2026-03-28 23:59:59+00"),
        # 2026-03-23 was a Monday
        (
            "7 days",
            "2026-03-25 12:00:00+00",
            ["2026-03-23 00:00:00+00", "2026-03-29 23:59:59+00"],
            "2026-03-22 23:59:59+00",
        ),
        (
            "7 days",
            "2026-03-25 12:00:00+00",
            ["2026-03-23 00:00:00+00", "2026-03-29 23:59:59+00"],
            "2026-03-30 00:00:00+00",
        ),
        (1, "2026-02-03 15:21:00+00", ["15:21:00.999999+00"], "15:21:01+00"),
    ],
)
def test_a_river_period_is_a_window_aligned_in_utc_wherever_the_client_sits(
    api: Any, period: Any, moment: str, same: list[str], next_window: str
) -> None:
    policy = {**RIVER, "by_period": period}

    def at(text: str) -> str:
        return text if len(text) > 16 and text[4] == "-" else f"{moment[:10]} {text}"

    first = add(api, policy, run_at=moment)
    for zone, style, text in zip(
        ["Europe/Berlin", "Asia/Kathmandu"], ["iso_8601", "sql_standard"], same, strict=False
    ):
        api.rows(f"set timezone = '{zone}'; set intervalstyle = '{style}'; set datestyle = 'ISO, DMY'")
        assert add(api, policy, run_at=at(text)).id == first.id
    assert add(api, policy, run_at=at(next_window)).id != first.id
    # River's rule: a finished job of the same window still counts, even by another clock.
    api.complete_jobs([first.id])
    assert add(api, policy, run_at=moment).id == first.id


def test_a_river_window_is_that_of_now_when_there_is_no_run_at(api: Any, clock: Any) -> None:
    policy = {**RIVER, "by_period": "1 day"}
    first = add(api, policy)
    assert add(api, policy, run_at=api.at()).id == first.id
    clock.advance(days=1)
    assert add(api, policy).id != first.id
    assert add(api, policy, run_at=first.run_at).id == first.id


# Jobs that have ended, and the ledger
@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
@pytest.mark.parametrize("spelling", ["ojs", "river"])
def test_a_listed_ended_job_counts_until_it_is_pruned(
    api: Any, job_in: Any, clock: Any, state: str, spelling: str
) -> None:
    policy = {**OJS, "states": ALL} if spelling == "ojs" else {**RIVER, "by_state": ALL}
    policy["on_conflict"] = "reject"
    old = job_in(state, payload=A, unique_policy=policy)
    with api.refusal("PW003", state):
        add(api, policy)
    clock.advance(days=9)
    assert api.prune() >= 1
    assert keys(api) == 0
    assert add(api, policy).id > old.id


def test_a_completed_job_counts_within_its_period_and_not_after(api: Any, job_in: Any, clock: Any) -> None:
    policy = {**OJS, "states": [*LIVE, "completed"], "period": "PT2H", "on_conflict": "ignore"}
    old = job_in("completed", payload=A, unique_policy=policy)
    assert add(api, policy) == api.get_job(old.id)._replace(deduplicated=True)
    clock.advance(hours=2)
    assert add(api, policy).id != old.id


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_an_ended_job_brought_back_by_retry_counts_as_live_again(api: Any, job_in: Any, state: str) -> None:
    old = job_in(state, payload=A, unique_policy=OJS)
    back = api.retry_job(old.id)
    assert (back.state, back.unique_key) == ("available", old.unique_key)
    with api.refusal("PW003", "available"):
        add(api, OJS)


@pytest.mark.parametrize("state", [s for s in ALL if s != "running"])
def test_deleting_the_last_job_of_a_key_releases_its_row(api: Any, job_in: Any, state: str) -> None:
    policy = {**OJS, "states": []}
    two = [
        job_in(
            state,
            payload=A,
            unique_policy=policy,
            sequence_policy={"key": f"s{n}"} if state == "pending" else None,
        )
        for n in range(2)
    ]
    assert keys(api) == 1
    api.delete_job(two[0].id)
    assert keys(api) == 1
    api.delete_job(two[1].id)
    assert keys(api) == 0


def test_without_retention_an_end_releases_the_key_at_once(api: Any, worker: int) -> None:
    api.configure(completed_retention="0", cancelled_retention="0", discarded_retention="0")
    policy = {**OJS, "states": ALL, "on_conflict": "replace"}
    add(api, policy)
    add(api, policy)
    assert (keys(api), count(api)) == (1, 1)  # the replaced one is gone, its successor holds the key
    job = api.claim(worker)
    api.finish_job(job.id, job.run)
    assert (keys(api), count(api)) == (0, 0)
    api.cancel_job(add(api, policy).id)
    assert keys(api) == 0
    add(api, policy)
    api.fail(api.claim(worker), discard=True)
    assert (keys(api), count(api)) == (0, 0)


def test_maintenance_sweeps_keys_that_no_job_holds_and_leaves_the_others(api: Any) -> None:
    add(api, OJS)
    api.rows("insert into pyworker.unique_keys select sha256(n::text::bytea) from generate_series(1, 10) n")
    for _ in range(200):
        api.maintain()
        if keys(api) == 1:
            break
    assert keys(api) == 1
    with api.refusal("PW003"):
        add(api, OJS)


# Many at once
def test_duplicates_in_one_call_meet_in_spec_order(api: Any) -> None:
    def spec(n: int, conflict: str) -> dict[str, Any]:
        return {
            "identifier": "t",
            "payload": {"a": 1, "n": n},
            "unique_policy": {"keys": ["args"], "args_keys": ["a"], "on_conflict": conflict},
        }

    jobs = api.add_jobs(
        [spec(1, "reject"), spec(2, "ignore"), spec(3, "replace"), spec(4, "ignore"), spec(5, "replace")]
    )
    assert [job.payload["n"] for job in jobs] == [1, 1, 3, 3, 5]
    assert [job.deduplicated for job in jobs] == [False, True, False, True, False]
    assert [api.get_job(job.id).state for job in jobs] == ["cancelled"] * 4 + ["available"]


def test_a_rejected_spec_names_its_position_and_rolls_the_call_back(api: Any) -> None:
    held = add(api, OJS)
    specs: list[dict[str, Any]] = [
        {"identifier": "t"},
        {"identifier": "t", "job_key": "k"},
        {"identifier": "t", "payload": {"a": 2}, "unique_policy": OJS},
        {"identifier": "t", "payload": A, "unique_policy": OJS},
    ]
    with api.refusal(
        "PW003", rf"^add_jobs: specs\[4\]: job {held.id} .available. has the same unique key"
    ) as caught:
        api.add_jobs(specs)
    assert detail(caught)["existing_job_id"] == held.id
    assert (count(api), keys(api)) == (1, 1)
    with api.refusal("PW003", r"specs\[4\]"):
        api.add_jobs([*specs[:3], specs[2]])
    assert (count(api), keys(api)) == (1, 1)


def test_a_mixed_call_gives_ids_in_spec_order_and_burns_none_for_duplicates(api: Any) -> None:
    held = [add(api, {**OJS, "on_conflict": "ignore"}, {"a": n}) for n in range(3)]
    keyed = api.add_job("t", job_key="k")
    specs: list[dict[str, Any]] = []
    for n in range(40):
        specs += [
            {"identifier": "t", "payload": {"n": n}},
            {"identifier": "t", "payload": {"a": n % 6}, "unique_policy": {**OJS, "on_conflict": "ignore"}},
            {"identifier": "t", "payload": {"n": n}, "job_key": f"k{n}" if n % 2 else "k"},
            {
                "identifier": "t",
                "payload": {"a": 99 - n},
                "unique_policy": {**RIVER, "on_conflict": "replace"},
            },
            {
                "identifier": "t",
                "payload": {"r": n % 2},
                "unique_policy": {**RIVER, "on_conflict": "replace"},
            },
            {"identifier": "t", "payload": {"s": n % 2}, "unique_policy": {**OJS, "states": []}},
        ]
    jobs = api.add_jobs(specs)
    assert len(jobs) == len(specs)
    for spec, job in zip(specs, jobs, strict=True):
        assert job.payload == spec["payload"] or "job_key" in spec
    seen = {job.id for job in [*held, keyed]}
    fresh = [job.id for job in jobs if job.id not in seen and not seen.add(job.id)]  # type: ignore[func-returns-value]
    assert fresh == sorted(fresh)
    assert fresh == list(range(keyed.id + 1, keyed.id + 1 + len(fresh)))
    assert [job.id for job in jobs[1:18:6]] == [job.id for job in held]


def test_a_duplicate_writes_nothing_locks_nothing_and_burns_no_id(api: Any, actor: Any, worker: int) -> None:
    first = add(api, {**OJS, "on_conflict": "ignore"})
    other = actor()
    other.begin()
    assert add(other, {**OJS, "on_conflict": "ignore"}).id == first.id
    assert [
        job.id
        for job in other.add_jobs(
            [{"identifier": "t", "payload": A, "unique_policy": {**OJS, "on_conflict": "ignore"}}]
        )
    ] == [first.id]
    assert other.value("select pg_current_xact_id_if_assigned()") is None
    locks = api.rows("select distinct locktype, mode from pg_locks where pid = %s", [other.session.pid])
    tables = {
        ("relation", mode) for mode in ("AccessShareLock", "RowShareLock", "RowExclusiveLock")
    }  # not a row of them
    assert set(locks) <= {("virtualxid", "ExclusiveLock"), *tables}
    claimed = api.claim(worker)
    assert (claimed.id, api.finish_jobs([claimed.id], [claimed.run])) == (first.id, [first.id])
    assert add(api, {**OJS, "on_conflict": "ignore"}).id == first.id + 1
    other.rollback()


def test_in_a_mixed_batch_every_fresh_key_gets_its_row(api: Any) -> None:
    policy = {"by_args": True}
    api.add_job("t", Jsonb({"n": 1}), unique_policy=Jsonb(policy))
    api.add_jobs(
        [
            {"identifier": "plain"},
            {"identifier": "t", "payload": {"n": 1}, "unique_policy": policy},
            {"identifier": "t", "payload": {"n": 2}, "unique_policy": policy},
        ]
    )
    assert api.value("select count(*) from pyworker.unique_keys") == 2


def test_no_setting_of_a_session_makes_a_policy_valid(api: Any) -> None:
    policy = {"by_args": True, "on_conflict": "nonsense", "unknown": 1}
    api.rows("select set_config('pyworker.valid_policy', %s::jsonb::text, false)", [json.dumps(policy)])
    with api.refusal("PW001", "unknown member"):
        api.add_job("t", unique_policy=Jsonb(policy))
