"""Alembic's own form, as short as it goes. Online and offline (`alembic upgrade head --sql`)."""

from alembic import context
from sqlalchemy import create_engine

URL = "postgresql+psycopg://"  # where it is, the PG* variables say

if context.is_offline_mode():
    context.configure(url=URL, literal_binds=True, dialect_opts={"paramstyle": "named"})
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(URL).connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
