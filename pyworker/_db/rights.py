"""Which of the four group roles may do what: for messages and for the page of roles. The database decides."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from ..errors import RoleMissing, context_of, sqlstate_of

_WHY = b"""
    select case when r.oid is null then 'no such role'
                when not has_schema_privilege(r.oid, n.oid, 'usage') then 'no rights here'
                when not pg_has_role(r.oid, 'member') then 'no member'
                when not pg_has_role(r.oid, 'usage') then 'does not inherit'
                else 'lacks' end,
           current_user::text, pg_get_userbyid(n.nspowner)::text
    from pg_namespace n left join pg_roles r on r.rolname = %s where n.nspname = %s"""

# The role that is to be granted comes first, then those that may besides.
Roles = tuple[str, ...]
PRODUCER: Roles = ("producer", "worker", "admin")
WORKER: Roles = ("worker", "admin")
READER: Roles = ("reader", "admin")
READER_OR_WORKER: Roles = ("reader", "worker", "admin")
ADMIN: Roles = ("admin",)
OWNER: Roles = ()  # none of the four: the owner of the schema
ALL: Roles = ("producer", "worker", "reader", "admin")

COMMANDS: dict[str, Roles] = {
    "add": PRODUCER,
    "remove": PRODUCER,
    "signal": PRODUCER,
    "run": WORKER,
    "tasks sync": WORKER,
    "schedules load": WORKER,
    "replay": WORKER,
    "jobs": READER,
    "explain": READER,
    "queues": READER,
    "sequences": READER,
    "schedules": READER,
    "schedules next": READER,
    "doctor": READER,
    "metrics": READER,
    "top": READER,
    "ui": READER,
    "health": READER_OR_WORKER,
    "tasks": READER_OR_WORKER,
    "retry": ADMIN,
    "cancel": ADMIN,
    "delete": ADMIN,
    "queues set": ADMIN,
    "queues pause": ADMIN,
    "queues resume": ADMIN,
    "sequences resume": ADMIN,
    "schedules run": ADMIN,
    "schedules pause": ADMIN,
    "schedules resume": ADMIN,
    "schedules remove": ADMIN,
    "migrate": OWNER,
    "dev": OWNER,
    "demo": ALL,  # a database of its own
    "sql": ALL,  # no database
}

CALLS: dict[str, Roles] = {
    "add_job": PRODUCER,
    "add_jobs": PRODUCER,
    "add_batch": PRODUCER,
    "extend_batch": PRODUCER,
    "flow": PRODUCER,
    "remove_job": PRODUCER,
    "send_signal": PRODUCER,
    "wait_for_job": PRODUCER,
    "get_job": WORKER,
    "cancel_job": ADMIN,
    "retry_job": ADMIN,
    "delete_job": ADMIN,
}


def is_refusal(error: BaseException) -> bool:
    """True if the role that connects may not call or read something of pyworker's.

    A refusal inside a function is another matter: what a query reads, or who owns the function.
    """
    return sqlstate_of(error) == "42501" and not context_of(error)


@contextmanager
def naming_role(verb: str, schema: str) -> Iterator[None]:
    """Raise RoleMissing, with the role that this call needs, where the database refuses it."""
    try:
        yield
    except Exception as error:
        if not is_refusal(error) or isinstance(error, RoleMissing):
            raise
        raise RoleMissing(verb, f"{schema}_{CALLS[verb][0]}") from error


def why_refused(conn: psycopg.Connection[Any], schema: str, role: str) -> str:
    """Why a role may not do what this one may, with what would change that.

    To be asked in a transaction of its own.
    """
    row = conn.execute(_WHY, [role, schema]).fetchone()
    migrate = "pyworker migrate" + ("" if schema == "pyworker" else f" --schema {shlex.quote(schema)}")
    why, user, owner = row or ("no such role", "this role", "its owner")
    return {
        "no such role": "of which there is none on this server yet."
        f" Let {owner} run: {migrate} --roles. Then: GRANT {role} TO {user}",
        "no rights here": "which has no rights in this database yet: roles belong to the whole server,"
        f" rights to one database. Let {owner} run: {migrate}",
        "no member": f"of which {user} is no member. An administrator can run: GRANT {role} TO {user}",
        "does not inherit": f"of which {user} is a member, but does not inherit its rights."
        f" ALTER ROLE {user} INHERIT, or GRANT it with INHERIT TRUE",
        "lacks": f"which lacks rights. Let {owner} run: {migrate}",
    }[why]
