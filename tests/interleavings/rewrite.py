"""Puts a step before each statement of each volatile PL/pgSQL function of a schema, in a test install.

A step says which statement comes next, then waits until the controller lets it move. Under READ
COMMITTED a statement takes its snapshot when it begins, so a schedule is an order of statements. A
STABLE function runs by its caller's snapshot, so its statements are no steps of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.interleavings import plpgsql
from tests.interleavings.footprint import Catalog, Footprint, Function

# Two-key advisory locks: (KEYS + session, 0 or 1). The controller holds one of the two; see sessions.py.
KEYS = 74_000

# Turn and stop are unlogged sequences: each outlives a rollback, and gives the transaction no number.
SETUP = f"""
    drop schema if exists pyworker_steps cascade;
    create schema pyworker_steps;
    create unlogged sequence pyworker_steps.turn_0 minvalue 0 start 0;
    create unlogged sequence pyworker_steps.turn_1 minvalue 0 start 0;
    create unlogged sequence pyworker_steps.turn_2 minvalue 0 start 0;
    create unlogged sequence pyworker_steps.stop_0 minvalue 0 start 0;
    create unlogged sequence pyworker_steps.stop_1 minvalue 0 start 0;
    create unlogged sequence pyworker_steps.stop_2 minvalue 0 start 0;
    create function pyworker_steps.step(id integer) returns boolean
        language plpgsql set lock_timeout = 0 set client_min_messages = notice
    as $$
    declare
        v_session constant text := current_setting('pyworker_steps.session', true);
        v_turn bigint;
        v_stop bigint; -- two times the first turn that waits, and which lock it waits for
    begin
        if v_session <> '' then
            v_turn := nextval(('pyworker_steps.turn_' || v_session)::regclass);
            raise notice 'step %', id;
            v_stop := pg_sequence_last_value(('pyworker_steps.stop_' || v_session)::regclass);
            if v_turn >= v_stop / 2 then
                perform pg_advisory_lock({KEYS} + v_session::integer, (v_stop % 2)::integer);
                perform pg_advisory_unlock({KEYS} + v_session::integer, (v_stop % 2)::integer);
            end if;
        end if;
        return true;
    end;
    $$;
    create function pyworker_steps.changed() returns trigger language plpgsql set client_min_messages = notice
    as $$
    begin
        if current_setting('pyworker_steps.session', true) <> '' then
            raise notice 'changed %', json_build_array(
                tg_op, tg_argv[0], case when tg_op <> 'INSERT' then to_jsonb(old) end,
                case when tg_op <> 'DELETE' then to_jsonb(new) end);
        end if;
        return null;
    end;
    $$;
    do $$
    declare
        v_table text;
    begin
        for v_table in
            select c.relname from pg_class c
            where c.relnamespace = '{{schema}}'::regnamespace and c.relkind in ('r', 'p')
              and not c.relispartition
        loop
            execute format(
                'create trigger zz_step after insert or update or delete on {{schema}}.%I for each row '
                'execute function pyworker_steps.changed(%L)', v_table, v_table);
        end loop;
    end
    $$;
"""

# What depends on how long a statement takes would make schedules differ from run to run: a look-up
# counts as slow after an hour.
TIMED = {"interval '0.5 ms'": "interval '1 hour'"}


@dataclass(frozen=True)
class Step:
    id: int
    function: str
    line: int
    text: str
    touches: Footprint


@dataclass
class Rewritten:
    steps: dict[int, Step]
    catalog: Catalog
    statements: int  # in all functions that step
    unsteppable: list[str]  # conditions that read tables where no step can stand: of elsif and while


def stepped(function: Function, catalog: Catalog, result: Rewritten) -> str | None:
    """The function's body with its steps; None if nothing in it touches what others see."""
    plpgsql.check(function.definition, function.body, catalog.schema, catalog.rows)
    body, parts, done = function.body, [], 0
    for statement in sorted(plpgsql.statements(body), key=lambda s: s.start):
        result.statements += 1
        touches = catalog.of(statement.text)
        if not touches:
            continue
        if statement.kind in ("elsif", "while"):
            result.unsteppable.append(f"{function.name}:{statement.line}")
            continue
        step = Step(
            len(result.steps) + 1, function.name, statement.line, " ".join(statement.text.split()), touches
        )
        result.steps[step.id] = step
        call = f"pyworker_steps.step({step.id})"
        parts += [
            body[done : statement.start],
            f"_step_{step.id} constant boolean := {call}; "
            if statement.kind == "declare"
            else f"assert {call}; ",
        ]
        done = statement.start
    return "".join([*parts, body[done:]]) if parts else None


def rewrite(conn: Any, schema: str = "pyworker") -> Rewritten:
    """Rewrites the functions of this database. There is no way back but another installation."""
    catalog = Catalog.read(conn, schema)
    result = Rewritten({}, catalog, 0, [])
    conn.execute(SETUP.replace("{schema}", schema))
    for function in catalog.functions:
        if function.steps:
            body = stepped(function, catalog, result)
            if body is not None:
                for timed, fixed in TIMED.items():
                    body = body.replace(timed, fixed)
                head, _, tail = function.definition.partition(function.body)
                conn.execute(head + body + tail)
    return result
