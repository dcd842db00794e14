"""The database of a worker that manage.py starts: every option of settings.DATABASES counts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

pytest.importorskip("django")

PROGRAM = """
import json, sys, django
from django.conf import settings
cases = json.load(sys.stdin)
settings.configure(DATABASES={"default": {}, **cases})
django.setup()
from django.core.management import CommandError
from pyworker.django.management.commands.pyworker import dsn
told = {}
for alias in [*cases, "missing"]:
    try:
        told[alias] = dsn(alias)
    except CommandError as error:
        told[alias] = f"refused: {error}"
print(json.dumps(told))
"""
PG = "django.db.backends.postgresql"
TAKEN: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "everything of libpq": (
        {
            "NAME": "x", "HOST": "db", "PORT": 5433, "USER": "u", "PASSWORD": "a b'c\\d",
            "OPTIONS": {
                "sslmode": "verify-full", "sslcert": "/c.pem", "sslkey": "/k.pem", "sslrootcert": "/r.pem",
                "hostaddr": "10.0.0.1", "connect_timeout": 3, "target_session_attrs": "any",
                "application_name": "a",
                "keepalives": 1, "keepalives_idle": 9, "channel_binding": "disable", "gssencmode": "disable",
                "passfile": "/p", "options": "-c search_path=app,public",
            },
        },
        {
            "dbname": "x", "host": "db", "port": "5433", "user": "u", "password": "a b'c\\d",
            "sslmode": "verify-full", "sslcert": "/c.pem", "sslkey": "/k.pem", "sslrootcert": "/r.pem",
            "hostaddr": "10.0.0.1", "connect_timeout": "3", "target_session_attrs": "any",
                "application_name": "a",
            "keepalives": "1", "keepalives_idle": "9", "channel_binding": "disable", "gssencmode": "disable",
            "passfile": "/p", "options": "-c search_path=app,public",
        },
    ),
    "what Django sets in a session": (
        {
            "NAME": "x",
            "OPTIONS": {"assume_role": "The App", "isolation_level": 3, "options": "-c statement_timeout=9s"},
        },
        {
            "dbname": "x",
            "options": "-c statement_timeout=9s -c role=The\\ App"
            " -c default_transaction_isolation=repeatable\\ read",
        },
    ),
    "what concerns Django's own connections": (
        {
            "NAME": "x", "CONN_MAX_AGE": 0, "DISABLE_SERVER_SIDE_CURSORS": True,
            "OPTIONS": {"pool": {"min_size": 2}, "server_side_binding": True, "prepare_threshold": 5},
        },
        {"dbname": "x"},
    ),
    "a service": (
        {"NAME": "", "OPTIONS": {"service": "shop", "passfile": ".pgpass"}}, 
        {"service": "shop", "passfile": ".pgpass"},
    ),
    "a Unix socket": (
        {"NAME": "x", "HOST": "/var/run/postgresql"}, {"dbname": "x", "host": "/var/run/postgresql"}
    ),
    "an empty host": ({"NAME": "x", "HOST": "", "PORT": "", "USER": ""}, {"dbname": "x"}),
    "several hosts": (
        {"NAME": "x", "HOST": "a,b", "PORT": "1,2"}, {"dbname": "x", "host": "a,b", "port": "1,2"}
    ),
    "as of dj-database-url": (
        {
            "NAME": "shop", "USER": "u", "PASSWORD": "p@ss/word", "HOST": "db.example.org", "PORT": 5432,
            "CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True, "DISABLE_SERVER_SIDE_CURSORS": False,
            "OPTIONS": {"sslmode": "require", "options": "-c search_path=shop"},
        },
        {
            "dbname": "shop", "user": "u", "password": "p@ss/word", "host": "db.example.org", "port": "5432",
            "sslmode": "require", "options": "-c search_path=shop",
        },
    ),
}  # fmt: skip
REFUSED = {
    "sqlite": (
        {"ENGINE": "django.db.backends.sqlite3", "NAME": "x"},
        "DATABASES['sqlite'] is django.db.backends.sqlite3, pyworker needs django.db.backends.postgresql",
    ),
    "no name": ({"NAME": ""}, "DATABASES['no name']: settings.DATABASES is improperly configured."),
    "unknown": (
        {"NAME": "x", "OPTIONS": {"charset": "utf8mb4"}},
        "DATABASES['unknown']['OPTIONS'] has 'charset', which is no connection option of PostgreSQL",
    ),
}
CASES = {**TAKEN, **REFUSED}


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    given = json.dumps({alias: {"ENGINE": PG, **settings} for alias, (settings, _) in CASES.items()})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=given, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("alias", TAKEN)
def test_a_worker_connects_as_django_does(told: dict[str, str], alias: str) -> None:
    assert {key: value for key, value in conninfo_to_dict(told[alias]).items()} == TAKEN[alias][1]


@pytest.mark.parametrize("alias", REFUSED)
def test_a_database_that_no_worker_can_use_is_refused_by_name(told: dict[str, str], alias: str) -> None:
    assert told[alias].startswith(f"refused: {REFUSED[alias][1]}")


def test_an_unknown_alias_is_refused_with_those_that_there_are(told: dict[str, str]) -> None:
    assert told["missing"].startswith(
        "refused: there is no DATABASES['missing'] in the settings (known: default,"
    )
