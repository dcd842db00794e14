"""install pyworker

Its SQL is printed once and kept beside this file, so that it is reviewed, and the same wherever this
revision runs:

    pyworker migrate --sql --no-transaction > versions/0001_pyworker.sql

When pyworker is upgraded, a new revision gets the rest, N being the schema's version (SELECT
pyworker.schema_version()):

    pyworker migrate --sql --no-transaction --from N > versions/0007_pyworker.sql
"""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade():
    script = Path(__file__).with_name("0001_pyworker.sql").read_text("utf-8")
    op.execute(script.replace(":", r"\:"))  # SQLAlchemy's text() would take :name for a parameter


def downgrade():
    op.execute("drop schema pyworker cascade")
