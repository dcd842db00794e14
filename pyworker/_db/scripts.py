"""The SQL that an installation runs around the files of sql/."""

from __future__ import annotations

from psycopg import sql

from .text import as_identifier

BEGIN = "begin isolation level read committed;\n"
SET_SCHEMA = sql.SQL(
    "select set_config('pyworker.schema', {schema}, true),"
    " set_config('pyworker.newest', {newest}::text, true)"
)
HAS_MIGRATIONS = b"select true from pg_tables where schemaname = %s and tablename = 'migrations'"
MIGRATIONS = sql.SQL("select version, name, checksum from {schema}.migrations order by version")
FILL_CHECKSUM = b"update migrations set checksum = %s where version = %s"
MAKE_CLOCK_MOVABLE = "update settings set movable_clock = true;\n"
CLOCK_IS_MOVABLE = b"select movable_clock from settings"

# For a script inside a foreign transaction: save the settings that setup/begin.sql changes, then
# restore them.
KEEP_SETTINGS = (
    "select set_config('pyworker.before', json_object_agg(s, current_setting(s))::text, true)"
    " from unnest(array['role', 'search_path', 'lock_timeout', 'client_min_messages',"
    " 'standard_conforming_strings', 'datestyle', 'intervalstyle']) s;\n"
)
RESTORE_SETTINGS = (
    "select set_config(s.key, s.value, true)"
    " from json_each_text(current_setting('pyworker.before')::json) s;\n"
)


def drop_schema_text(schema: str) -> str:
    return f"drop schema {as_identifier(schema)} cascade"


def delete_jobs_text(schema: str) -> str:
    """Delete all jobs and their traces; definitions of tasks, settings of queues and schedules stay."""
    return (
        sql.SQL("""do $$
        declare
            tab regclass;
        begin
            for tab in select c.oid from pg_class c
                where c.relnamespace = {schema}::text::regnamespace and c.relkind in ('r', 'p')
                and not c.relispartition
                and c.relname not in ('migrations', 'settings', 'tasks', 'queues', 'schedule_entries',
                                      'gate') loop
                execute format('delete from %s', tab);
            end loop;
        end $$""")
        .format(schema=sql.Literal(as_identifier(schema)))
        .as_string(None)
    )


def unless_applied(version: int, text: str) -> str:
    """A script that does nothing if the migration was applied already."""
    return (
        "do $pyworker_unless$\nbegin\n"
        f"if not exists (select from migrations m where m.version = {version:d}) then\n"
        f"execute $pyworker_migration$\n{text}$pyworker_migration$;\nend if;\nend;\n$pyworker_unless$;\n"
    )


def record_migration_text(version: int, name: str, breaking: bool, checksum: str) -> str:
    values = sql.SQL(", ").join(sql.Literal(value) for value in (version, name, breaking, checksum))
    return (
        sql.SQL("insert into migrations (version, name, breaking, checksum) values ({});\n")
        .format(values)
        .as_string(None)
    )
