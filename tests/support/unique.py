"""Unique policies, and the states that they list."""

from __future__ import annotations

import json
from typing import Any

from psycopg.types.json import Jsonb

OJS = {"keys": ["type", "args"]}

RIVER = {"by_args": True}

A = {"a": 1}


def count(api: Any) -> int:
    sql = "select (select count(*) from pyworker.live_jobs) + (select count(*) from pyworker.finished_jobs)"
    return api.value(sql)


def keys(api: Any) -> int:
    return api.value("select count(*) from pyworker.unique_keys")


def detail(caught: Any) -> Any:
    return json.loads(caught.value.diag.message_detail)


def add(api: Any, policy: Any, payload: Any = A, **named: Any) -> Any:
    return api.add_job("t", Jsonb(payload), unique_policy=Jsonb(policy), **named)
