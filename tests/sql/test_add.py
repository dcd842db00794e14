"""add_job and add_jobs: what callers may write, what they get, what is refused."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

A = '{"a":1}'


@pytest.mark.parametrize(
    ("call", "payload"),
    [
        (f"'t', '{A}'", A),
        (f"'t', '{A}'::text", A),
        (f"'t', '{A}'::json", A),
        (f"'t', '{A}'::jsonb", '{"a": 1}'),
        ("'t', jsonb_build_object('a', 1)", '{"a": 1}'),
        ("'t', json_build_object('a', 1)", '{"a" : 1}'),
        ("'t', to_json((select x from (select 1 as a) x))", A),
        ("'t', to_jsonb((select x from (select 1 as a) x))", '{"a": 1}'),
        (f"identifier => 't', payload => '{A}'", A),
        (f"identifier => 't', payload => '{A}'::jsonb, job_key => 'k'", '{"a": 1}'),
        (f"'t', '{A}', 'q', now(), 3, 'k', 1, array['f'], 'replace'", A),
        (f"'t', '{A}'::json, null, null, null, null, null, null, null, null, null, null, null", A),
        ("'t'", "{}"),
        ("identifier := 't'", "{}"),
        ("'t', job_key := 'k'", "{}"),
        ("'t', null", "{}"),
        ("'t', null::json", "{}"),
        ("'t', null::jsonb", "{}"),
        ("'t', null::text", "{}"),
        ("'t', null, null, null, null, null, null, null, null, null, null, null, null", "{}"),
        ("'t', 'null'", "null"),
        ("'t', 'null'::jsonb, job_key := 'k'", "null"),
        ("'t', '[]'", "[]"),
        ("'t', '42'", "42"),
        ("'t', '\"text\"'", '"text"'),
        ("'t', ' { \"b\" : 1e2, \"a\":  [ ] } '", ' { "b" : 1e2, "a":  [ ] } '),
        ("'t', '{\"a\": \"\\u0000\"}'", '{"a": "\\u0000"}'),
        ("'t', '{\"a\":1e5000}'", '{"a":1e5000}'),
        ("'t', '{\"a\":\"\\ud800\"}'", '{"a":"\\ud800"}'),
        ("'t', '{\"ü\":\"\N{SNOWMAN}\N{PILE OF POO}\"}'", '{"ü":"\N{SNOWMAN}\N{PILE OF POO}"}'),
    ],
)
def test_every_spelling_of_a_call_resolves_and_keeps_the_payload(
    api: Any, worker: int, call: str, payload: str
) -> None:
    job_id = api.value(f"select (pyworker.add_job({call})).id")
    assert api.payload(job_id) == payload
    assert api.rows("select id, payload::text from pyworker.claim_jobs(%s)", [worker]) == [(job_id, payload)]


def test_a_bare_add_gets_the_documented_defaults(api: Any) -> None:
    before = api.at()
    job = api.add_job("t")
    assert (job.task_identifier, job.payload, job.queue_name, job.priority, job.attempts, job.max_attempts,
        job.state) == (
        "t", {}, None, 0, 0, 25, "available",
    )  # fmt: skip
    assert before <= job.run_at == job.created_at == job.updated_at <= api.at()
    assert (job.key, job.flags, job.meta, job.last_error, job.locked_at, job.locked_by) == (None,) * 6
    assert (job.revision, job.run, job.delivery, job.deduplicated) == (0, 0, "at_least_once", False)
    assert api.get_job(job.id) == job


def test_every_argument_is_kept_and_returned(api: Any) -> None:
    at = api.at("1 hour")
    given = {
        "queue_name": "q", "run_at": at, "max_attempts": 7, "job_key": "k", "priority": -3,
        "flags": ["b", "a", "b"], "meta": {"tenant": 5}, "delivery": "at_least_once",
    }  # fmt: skip
    job = api.add_job("t", A, **given)
    (bulk,) = api.add_jobs(
        [{**given, "identifier": "t", "payload": {"a": 1}, "run_at": at.isoformat(), "job_key": "k2"}]
    )
    for got in (job, bulk):
        assert got.payload == {"a": 1}
        assert (got.queue_name, got.run_at, got.max_attempts, got.priority) == ("q", at, 7, -3)
        assert (got.flags, got.meta, got.state) == ({"a": True, "b": True}, {"tenant": 5}, "scheduled")
    assert (job.key, bulk.key) == ("k", "k2")


def test_an_empty_list_of_flags_is_no_flags(api: Any) -> None:
    assert api.add_job("t", flags=[]).flags is None
    assert api.add_job("t", flags=[], job_key="k").flags is None


@pytest.mark.parametrize("named", [{}, {"job_key": "k"}])
def test_queue_default_is_no_queue(api: Any, named: dict[str, Any]) -> None:
    api.define_task("t", queue_name="q")
    job = api.add_job("t", queue_name="default", **named)
    assert (job.queue_name, job.state) == (None, "available")
    (job,) = api.add_jobs([{"identifier": "t", "queue_name": "default", **named}])
    assert (job.queue_name, job.state) == (None, "available")


def test_limits_themselves_are_accepted(api: Any) -> None:
    at_the_limit = [
        {"identifier": "é" * 128}, {"queue_name": "é" * 128}, {"job_key": "é" * 512}, {"max_attempts": 1},
        {"max_attempts": 32767}, {"priority": 32767}, {"priority": -32768},
        {"run_at": "0001-01-02 00:00+00"}, {"run_at": "9999-12-30 00:00+00"},
    ]  # fmt: skip
    specs = [{"identifier": "t", **change} for change in at_the_limit]
    for spec in specs:
        api.add_job(**{**spec, "job_key": None} if "job_key" not in spec else spec)
    assert len(api.add_jobs(specs)) == len(specs)


REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"identifier": None}, ("identifier", "NULL")),
    ({"identifier": ""}, ("identifier", "''")),
    ({"identifier": "x" * 129}, ("identifier", "x{129}")),
    ({"queue_name": ""}, ("queue_name", "''")),
    ({"queue_name": "x" * 129}, ("queue_name", "x{129}")),
    ({"job_key": ""}, ("job_key", "''")),
    ({"job_key": "x" * 513}, ("job_key", "x{513}")),
    ({"max_attempts": 0}, ("max_attempts", "0")),
    ({"max_attempts": 32768}, ("max_attempts", "32768")),
    ({"priority": 32768}, ("priority", "32768")),
    ({"priority": -32769}, ("priority", "-32769")),
    ({"job_key_mode": "update"}, ("job_key_mode", "update")),
    ({"job_key_mode": "update", "job_key": "k"}, ("job_key_mode", "update")),
    ({"flags": ["a", None]}, ("flags", "NULL")),
    ({"delivery": "sometimes"}, ("delivery", "sometimes")),
    ({"run_at": "infinity"}, ("run_at", "infinity")),
    ({"run_at": "0044-03-15 BC"}, ("run_at", "0044-03-15 00:00:00", "BC")),
    ({"run_at": "10000-01-01"}, ("run_at", "10000-01-01")),
    ({"run_at": "-infinity"}, ("run_at", "-infinity")),
    ({"payload": {"a": "x" * 1048576}}, ("payload", "1048576 bytes")),
    ({"payload": json.loads("[" * 101 + "]" * 101)}, ("payload", "100 levels")),
]

IDS = [f"{'+'.join(change)}-{words[1][:12]}" for change, words in REFUSED]


def nothing_was_added(api: Any) -> bool:
    return api.value("select count(*) from pyworker.jobs") == 0


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=IDS)
def test_a_bad_argument_is_refused_by_name_and_value(
    api: Any, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    with api.refusal("PW001", "^add_job: ", *words):
        spec = {"identifier": "t", **change}
        if "payload" in spec:
            spec["payload"] = Jsonb(spec["payload"])
        api.add_job(**spec)
    assert nothing_was_added(api)


@pytest.mark.parametrize("spelling", ["jsonb", "literal"])
@pytest.mark.parametrize(("change", "words"), REFUSED, ids=IDS)
def test_a_bad_spec_is_refused_with_its_position(
    api: Any, change: dict[str, Any], words: tuple[str, ...], spelling: str
) -> None:
    specs: Any = [{"identifier": "t"}, {"identifier": "t", **change}, {"identifier": ""}]
    with api.refusal("PW001", r"^add_jobs: specs\[2\]", *words):
        api.add_jobs(specs if spelling == "jsonb" else json.dumps(specs))
    assert nothing_was_added(api)


SPEC = "array[('t',null,null,null,null,null,null,null), ({})]::pyworker.job_spec[]"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("null,null,null,null,null,null,null,null", ("identifier", "NULL")),
        ("'',null,null,null,null,null,null,null", ("identifier", "''")),
        ("'t',null,'',null,null,null,null,null", ("queue_name", "''")),
        ("'t',null,null,null,null,'',null,null", ("job_key", "''")),
        ("'t',null,null,null,0,null,null,null", ("max_attempts", "0")),
        ("'t',null,null,null,null,null,null,array['a',null]", ("flags", "NULL")),
        ("'t',null,null,'infinity',null,null,null,null", ("run_at", "infinity")),
        ("'t',to_json(repeat('x', 1048576)),null,null,null,null,null,null", ("payload", "1048576 bytes")),
        (
            "'t',(repeat('[', 101) || repeat(']', 101))::json,null,null,null,null,null,null",
            ("payload", "100 levels"),
        ),
    ],
)
def test_a_bad_job_spec_is_refused_with_its_position(api: Any, bad: str, words: tuple[str, ...]) -> None:
    with api.refusal("PW001", r"^add_jobs: specs\[2\]", *words):
        api.rows(f"select * from pyworker.add_jobs({SPEC.format(bad)})")
    assert nothing_was_added(api)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ("null", ("array", "null")),
        ("{}", ("array", "object")),
        ('"t"', ("array", "string")),
        ('[{"identifier":"t"}, 5]', (r"specs\[2\]", "object", "number")),
        ('[{"identifier":"t"}, null]', (r"specs\[2\]", "object", "null")),
        ('[{"identifier":"t"}, {"identifier":"t","prio":1}]', (r"specs\[2\]", "unknown", "prio")),
        ('[{"identifier":"t"}, {}]', (r"specs\[2\]", "identifier", "NULL")),
        ('[{"identifier":"t","priority":"high"}]', (r"specs\[1\]", "priority", "high")),
        ('[{"identifier":"t","priority":1.5}]', (r"specs\[1\]", "priority", "1.5")),
        ('[{"identifier":"t","priority":99999999999}]', (r"specs\[1\]", "priority", "99999999999")),
        ('[{"identifier":"t"},{"identifier":"t","run_at":"soon"}]', (r"specs\[2\]", "run_at", "soon")),
        ('[{"identifier":"t","flags":"a"}]', (r"specs\[1\]", "flags")),
        ('[{"identifier":"t","flags":[["a"],["b"]]}]', (r"specs\[1\]", "flags")),
        ('[{"identifier":"t","meta":[]}]', (r"specs\[1\]", "meta", "array")),
        ("no json", ("specs", "JSON")),
        ("", ("specs", "JSON")),
        ("[" * 100000, ("specs", "JSON")),
        ('[{"identifier":"t","payload":"\\u0000"}]', ("specs", "jsonb")),
        ('[{"identifier":"t","payload":"\\ud800"}]', ("specs", "JSON")),
        ('[{"identifier":"t","payload":1e400000}]', ("specs", "JSON")),
    ],
    ids=lambda v: v[:30] if isinstance(v, str) else "",
)
def test_ill_formed_specs_are_refused(api: Any, specs: str, words: tuple[str, ...]) -> None:
    with api.refusal("PW001", "add_jobs: ", *words):
        api.add_jobs(specs)
    assert nothing_was_added(api)


@pytest.mark.parametrize(
    "payload", ["", "no json", "{'a':1}", '{"a":1', "[1,]", "NaN", '"\x01"', "[" * 100000]
)
def test_a_payload_that_is_no_json_is_refused(api: Any, payload: str) -> None:
    with api.refusal("PW001", "^add_job: payload must be JSON"):
        api.add_job("t", payload)
    assert nothing_was_added(api)


@pytest.mark.parametrize(
    ("meta", "words"),
    [("repeat('x', 1048576)", "larger than 1048576 bytes"), ("deep", "deeper than 100 levels")],
)
@pytest.mark.parametrize("bulk", [False, True], ids=["add_job", "add_jobs"])
def test_meta_has_the_limits_of_the_payload(api: Any, meta: str, words: str, bulk: bool) -> None:
    meta = f"jsonb_build_object('m', {meta})".replace("deep", "(repeat('[', 100) || repeat(']', 100))::jsonb")
    with api.refusal("PW001", "meta", words):
        if bulk:
            api.rows(
                f"select pyworker.add_jobs(jsonb_build_array(jsonb_build_object('identifier', 't', 'meta', "
                f"{meta})))"
            )
        else:
            api.rows(f"select pyworker.add_job('t', meta => {meta})")
    assert api.rows("select from pyworker.jobs") == []


def test_meta_must_be_an_object(api: Any) -> None:
    for meta in ("[]", "1", '"a"', "null"):
        with api.refusal("PW001", "meta"):
            api.add_job("t", meta=meta)


def test_flags_must_be_a_plain_list(api: Any) -> None:
    with api.refusal("PW001", "flags"):
        api.add_job("t", flags=[["a"], ["b"]])


@pytest.mark.parametrize("named", [{}, {"job_key": "k"}])
@pytest.mark.parametrize("limit", [2000, None])
def test_the_size_limit_counts_bytes_and_is_exact(api: Any, limit: int | None, named: dict[str, Any]) -> None:
    if limit:
        api.configure(max_payload_bytes=limit)
    size = limit or 1048576
    payload = '"' + "é" * (size // 2 - 1) + '"'
    assert len(payload.encode()) == size
    assert api.add_job("t", payload, **named).id
    with api.refusal("PW001", "payload", f"{size} bytes, got {size + 1}"):
        api.add_job("t", payload + " ", **named)


@pytest.mark.parametrize(
    "payload",
    [
        "[" * 100 + "]" * 100,
        '{"a":' * 100 + "1" + "}" * 100,
        ('[{"a":' * 50 + "1" + "}]" * 50),
        "[" + ",".join(["[]"] * 5000) + "]",
        '["' + "[" * 300 + '"]',
        '["\\"' + "[{" * 300 + '"]',
        '["\\\\", "' + "[{" * 300 + '\\\\\\""]',
        '{"' + "[" * 200 + '": 1}',
    ],
    ids=[
        "arrays",
        "objects",
        "both",
        "wide",
        "in a string",
        "after a quote",
        "after backslashes",
        "in a key",
    ],
)
def test_only_real_nesting_counts_up_to_100_levels(api: Any, payload: str) -> None:
    assert api.payload(api.add_job("t", payload).id) == payload


@pytest.mark.parametrize(
    "payload", ["[" * 101 + "]" * 101, '{"a":' * 101 + "1" + "}" * 101, "[" * 1500 + '"]"' + "]" * 1500]
)
def test_deeper_nesting_is_refused(api: Any, payload: str) -> None:
    with api.refusal("PW001", "payload", "100 levels"):
        api.add_job("t", payload)


def test_a_rolled_back_add_leaves_nothing(api: Any, actor: Any, worker: int) -> None:
    a = actor()
    a.begin()
    a.add_job("t", job_key="k", queue_name="q")
    a.add_jobs([{"identifier": "t"}, {"identifier": "t", "job_key": "k", "payload": [1]}])
    a.rollback()
    assert nothing_was_added(api)
    assert api.claim_jobs(worker, 10) == []
    assert api.value("select count(*) from pyworker.promotion_requests") == 0


def test_a_trigger_can_add_a_job_for_each_row(api: Any, fresh: psycopg.Connection[Any]) -> None:
    api = type(api)(fresh)
    api.rows("""
        create table public.orders (id integer, note text);
        create function public.order_placed() returns trigger language plpgsql as $$
        begin
            perform pyworker.add_job('order_placed', to_json(new), job_key := 'order ' || new.id);
            return new;
        end $$;
        create trigger order_placed after insert on public.orders for each row execute function
            public.order_placed();
        insert into public.orders values (1, 'a'), (2, E'b"\\n');
    """)
    jobs = api.rows("select (pyworker.get_job(id)).payload from pyworker.jobs order by id")
    assert jobs == [({"id": 1, "note": "a"},), ({"id": 2, "note": 'b"\n'},)]


def test_a_transaction_that_adds_jobs_can_be_prepared_with_notifications_off(
    api: Any, actor: Any, worker: int
) -> None:
    api.claim_jobs(worker)  # now a worker waits, so an add would notify
    a = actor()
    a.begin()
    a.add_job("t")
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        a.rows("prepare transaction 'noisy'")
    a.rows("set pyworker.notify = off")
    a.begin()
    a.add_job("t", job_key="k", queue_name="q")
    a.add_jobs([{"identifier": "t"}, {"identifier": "t", "job_key": "k"}])
    a.rows("prepare transaction 'quiet'")
    assert nothing_was_added(api)
    api.rows("commit prepared 'quiet'")
    assert len(api.claim_jobs(worker, 10)) == 2
