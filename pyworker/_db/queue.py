"""The calls of add_job and the other job functions, for every driver.

Parameters are written as %(name)s, or numbered for asyncpg. Each parameter is text, a number, a
boolean or a list of texts, with a cast in the statement. So no driver needs to know our types.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .._checks import checked, in_place_of, is_from_now
from ..errors import InvalidArgument, message_of, sqlstate_of
from .rows import JOB_COLUMNS
from .text import as_identifier, quoted, rows_of

Statement = tuple[str, dict[str, Any]]

# The argument names of add_job, each with the type it is cast to.
ADD_ARGUMENTS = {
    "identifier": "text",
    "payload": "json",
    "queue_name": "text",
    "run_at": "timestamptz",
    "max_attempts": "integer",
    "job_key": "text",
    "priority": "integer",
    "flags": "text[]",
    "job_key_mode": "text",
    "unique_policy": "jsonb",
    "sequence_policy": "jsonb",
    "meta": "jsonb",
    "delivery": "text",
    "depends_on": "jsonb",
    "expires_at": "timestamptz",
    "max_wait": "interval",
}
# The options of @cron.
OF_ONE_JOB = {"identifier", "run_at", "depends_on", "expires_at", "max_wait"}
SCHEDULE_OPTIONS = (ADD_ARGUMENTS.keys() - OF_ONE_JOB) | {
    "name", "timezone", "backfill",
}  # fmt: skip
# The same of define_task.
DEFINE_ARGUMENTS = {
    "identifier": "text",
    "max_attempts": "integer",
    "priority": "integer",
    "queue_name": "text",
    "unique_policy": "jsonb",
    "sequence_policy": "jsonb",
    "delivery": "text",
    "timeout": "interval",
    "backoff": "jsonb",
    "retention": "interval",
}
TASK_OPTIONS = DEFINE_ARGUMENTS.keys() - {"identifier"}
# Times from now (and delay, which is one) go by the queue's clock, which tests may move.
TIMES = ("run_at", "expires_at")
SOON = "{schema}.clock() + {value}::interval"
SPECS = """(select coalesce(jsonb_agg(s.spec - '{{run_at in,expires_at in}}'::text[] || jsonb_strip_nulls(
    jsonb_build_object('run_at', {run_at}, 'expires_at', {expires_at})) order by s.nr), '[]')
    from jsonb_array_elements(%({name})s::jsonb) with ordinality s(spec, nr))"""

# Arguments that may be texts which PostgreSQL reads, and its SQLSTATEs where it does not.
_OF_TIME = {"run_at", "expires_at", "max_wait", "delay", "timeout", "retention"}
_UNREADABLE_TIMES = {"22007", "22008", "22009", "22015", "22023"}

# The other job functions with their arguments.
_VERBS = {
    "get_job": {"job_id": "bigint"},
    "cancel_job": {"job_id": "bigint", "force": "boolean"},
    "retry_job": {"job_id": "bigint"},
    "delete_job": {"job_id": "bigint"},
    "remove_job": {"job_key": "text"},
}


@functools.lru_cache
def _add_job_statement(schema: str, names: tuple[str, ...], soon: tuple[str, ...], columns: str) -> str:
    values = {name: f"%({name})s::{ADD_ARGUMENTS[name]}" for name in names if name not in soon}
    for name in soon:
        argument = "run_at" if name == "delay" else name
        values[argument] = SOON.format(schema=quoted(schema), value=f"%({name})s")
    given = ", ".join(f"{name} => {value}" for name, value in values.items())
    return rows_of(schema, f"add_job({given})", columns)


def add_job_call(
    schema: str, identifier: str, payload: Any, options: Mapping[str, Any], columns: str = JOB_COLUMNS
) -> Statement:
    """Sends only the given arguments, as each one costs time."""
    parameters: dict[str, Any] = {
        "identifier": checked("add_job", "identifier", identifier),
        "payload": None if payload is None else checked("add_job", "payload", payload),
    }
    soon: list[str] = []
    for name, value in _known("add_job", options).items():
        if value is not None:
            parameters[name] = checked("add_job", name, value)
            if is_from_now(name, value):
                soon.append(name)
    return _add_job_statement(schema, tuple(parameters), tuple(soon), columns), parameters


@contextmanager
def naming_times(function: str, parameters: Mapping[str, Any]) -> Iterator[None]:
    """For a text that PostgreSQL does not read as a time, raise InvalidArgument with the argument's name."""
    try:
        yield
    except Exception as error:
        if sqlstate_of(error) not in _UNREADABLE_TIMES:
            raise
        message = message_of(error)[0]
        texts = {name: f'"{value}"' for name, value in parameters.items() if name in _OF_TIME}
        named = [name for name, text in texts.items() if text in message] or [*texts]
        if not named:  # in a bulk call, add_jobs itself names the others
            named = ["delay"] * any('"run_at in": ' in str(value) for value in parameters.values())
        if not named:
            raise
        why = f"{function}: {' or '.join(named)} is not valid: {message}"
        raise InvalidArgument(why) from error


def add_jobs_call(schema: str, specs: Iterable[Mapping[str, Any]]) -> Statement:
    given, text = _jobs(schema, "add_jobs", "specs", specs)
    return rows_of(schema, f"add_jobs({given})"), {"specs": text}


def add_batch_call(
    schema: str, specs: Iterable[Mapping[str, Any]], callback: Mapping[str, Any], on: str
) -> Statement:
    jobs, text = _jobs(schema, "add_batch", "jobs", specs)
    last, last_text = _jobs(schema, "add_batch", "callback", [callback])
    parameters = {"jobs": text, "callback": last_text, "on": checked("add_batch", "on", on)}
    return rows_of(schema, f"add_batch({jobs}, {last} -> 0, %(on)s::text)"), parameters


def extend_batch_call(schema: str, callback_id: int, specs: Iterable[Mapping[str, Any]]) -> Statement:
    given, text = _jobs(schema, "extend_batch", "jobs", specs)
    parameters = {"callback_id": checked("extend_batch", "job_id", callback_id), "jobs": text}
    return rows_of(schema, f"extend_batch(%(callback_id)s::bigint, {given})"), parameters


def _jobs(schema: str, function: str, argument: str, specs: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """The expression of an array of jobs, and its parameter.

    Joins JSON texts, so that each payload is encoded only once.
    """
    texts: list[str] = []
    soon = False
    for position, spec in enumerate(specs, 1):
        where = f"{function}: {argument}" + ("" if argument == "callback" else f"[{position}]")
        members: list[str] = []
        for name, value in _known(where, spec, "ref").items():
            if value is None and name != "identifier":
                continue
            sent: Any = checked(where, name, value)
            if is_from_now(name, value):
                name, soon = f"{'run_at' if name == 'delay' else name} in", True
            if name == "payload":
                _refuse_beyond_jsonb(where, str(sent))
            is_json = ADD_ARGUMENTS.get(name, "").startswith("json")
            members.append(f'"{name}": {sent if is_json else json.dumps(sent)}')
        texts.append("{" + ", ".join(members) + "}")
    given = f"%({argument})s::jsonb"
    if soon:
        moments = {
            name: SOON.format(schema=quoted(schema), value=f"(s.spec ->> '{name} in')") for name in TIMES
        }
        given = SPECS.format(name=argument, **moments)
    return given, "[" + ", ".join(texts) + "]"


# NUL, or half a surrogate pair, in JSON text; after an even number of backslashes these are
# escapes.
_BEYOND_JSONB = re.compile(
    r"(?<!\\)(?:\\\\)*\\u"
    r"(?:0000|d[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})|(?<!\\ud[89ab][0-9a-f]{2}\\u)d[c-f][0-9a-f]{2})"
)


def _refuse_beyond_jsonb(where: str, payload: str) -> None:
    """Refuse payloads that add_jobs would lose.

    It takes jsonb, in which null means "not given".
    """
    if payload == "null":
        raise InvalidArgument(f"{where}: payload cannot be null in a bulk call (add_job takes any payload)")
    if "\\u" in payload and _BEYOND_JSONB.search(payload):
        raise InvalidArgument(
            f"{where}: payload must not contain NUL or half a surrogate pair in a bulk call"
            " (add_job takes any payload)"
        )


def send_signal_call(schema: str, job_id: int, name: str, payload: Any) -> Statement:
    given = {"job_id": job_id, "name": name, "payload": payload}
    parameters = {argument: checked("send_signal", argument, value) for argument, value in given.items()}
    if _BEYOND_JSONB.search(parameters["payload"]):
        raise InvalidArgument("send_signal: payload must not contain NUL or half a surrogate pair")
    return (
        f"select {quoted(schema)}.send_signal(%(job_id)s::bigint, %(name)s::text, %(payload)s::jsonb)",
        parameters,
    )


def await_job_call(schema: str, job_id: int, listens: bool) -> Statement:
    parameters = {"job_id": checked("wait_for_job", "job_id", job_id)}
    return rows_of(schema, f"await_job(%(job_id)s::bigint{'' if listens else ', 0'})"), parameters


ISOLATION: Statement = "select current_setting('transaction_isolation')", {}


def listen_to_ends(schema: str) -> tuple[Statement, Statement]:
    channel = as_identifier(f"{schema}_ended")
    return (f"listen {channel}", {}), (f"unlisten {channel}", {})


def verb_call(schema: str, verb: str, **arguments: Any) -> Statement:
    return _verb_statement(schema, verb), {
        name: checked(verb, name, value) for name, value in arguments.items()
    }


@functools.lru_cache
def _verb_statement(schema: str, verb: str) -> str:
    return rows_of(
        schema, f"{verb}({', '.join(f'%({name})s::{kind}' for name, kind in _VERBS[verb].items())})"
    )


def _known(function: str, options: Mapping[str, Any], *more: str) -> Mapping[str, Any]:
    if unknown := options.keys() - ADD_ARGUMENTS.keys() - {"delay", *more}:
        known = ", ".join([*ADD_ARGUMENTS, "delay", *more])
        name = sorted(unknown)[0]
        raise TypeError(f"{function} has no argument {name!r} (known: {known}){in_place_of(name)}")
    if options.get("delay") is not None and options.get("run_at") is not None:
        raise InvalidArgument(
            f"{function}: give run_at or delay, not both,"
            f" got run_at {options['run_at']!r} and delay {options['delay']!r}"
        )
    return options


_PARAMETER = re.compile(r"%\((\w+)\)s(::(?:json|jsonb|timestamptz|interval)\b)?|%%")


@functools.lru_cache
def _numbered(statement: str) -> tuple[str, list[str]]:
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if match[1] not in names:
            names.append(match[1])
        # As text: the caller's connection may have custom codecs for JSON and times.
        return f"${names.index(match[1]) + 1}" + (f"::text{match[2]}" if match[2] else "")

    return _PARAMETER.sub(number, statement), names


def numbered(statement: str, parameters: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The statement with numbered parameters, for asyncpg."""
    text, names = _numbered(statement)
    return text, [parameters[name] for name in names]
