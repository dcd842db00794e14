"""`pyworker sql`: ready statements for psql, from sql/topics.sql.

The schema's name is filled in.
"""

from __future__ import annotations

import re

import click

from .. import _files
from .._db.text import as_identifier, literal
from .options import CliError, schema_option


def topics(schema: str) -> dict[str, tuple[str, str]]:
    """The description and the statements of each topic, by name."""
    text = (_files.directory("sql") / "topics.sql").read_text("utf-8")
    if schema != "pyworker":
        quoted = as_identifier(schema)
        text = text.replace("'pyworker'::regnamespace", literal(quoted) + "::regnamespace").replace(
            "pyworker.", f"{quoted}."
        )
    return {
        name: (about, statements.strip())
        for name, about, statements in re.findall(r"(?ms)^-- # (\w+): ([^\n]*)\n(.*?)(?=^-- # |\Z)", text)
    }


@click.command("sql")
@click.argument("topic", required=False)
@schema_option
def sql(topic: str | None, schema: str) -> None:
    """Print ready SQL statements on TOPIC, with the schema's name filled in.

    Without TOPIC, list the topics.
    """
    known = topics(schema)
    if topic is None:
        width = max(map(len, known))
        for name, (about, _) in known.items():
            click.echo(f"{name:{width}}  {about}")
        return
    if topic not in known:
        raise CliError(f"there is no topic {topic!r} (there are: {', '.join(known)})", 2)
    about, statements = known[topic]
    click.echo(f"-- {about}\n{statements}")
