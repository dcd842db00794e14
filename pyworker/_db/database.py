"""The SQL functions of pyworker, as methods. Columns are always listed.

The rules live in the database. This directory carries arguments there and rows back, and decides
nothing.
"""

from __future__ import annotations

from .admin import Admin
from .pages import Pages
from .worker import Worker


class Database(Worker, Admin, Pages):
    """The SQL functions of one schema, over one psycopg connection."""
