"""What the catalogue says of an installation: the promises that each function, view and table has
to keep by itself."""

import re

import pytest

PUBLIC = "n.nspname = 'pyworker' and p.proname not like '\\_%'"


def names(conn, query):
    return [row[0] for row in conn.execute(query)]


def test_no_search_path_can_redirect_a_function(db):
    """Each one names its own, or has a body that was bound when it was created."""
    assert names(db, """
        select p.oid::regprocedure::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'pyworker' and p.prosqlbody is null
          and not coalesce(p.proconfig @> array['search_path=pyworker, pg_temp'], false)
    """) == []  # fmt: skip


def test_every_public_function_says_what_it_does(db):
    assert names(db, f"""
        select p.oid::regprocedure::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where {PUBLIC} and obj_description(p.oid, 'pg_proc') is null
    """) == []  # fmt: skip


def test_every_view_says_what_it_shows(db):
    assert names(db, """
        select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'pyworker' and c.relkind = 'v' and obj_description(c.oid, 'pg_class') is null
    """) == []  # fmt: skip


def test_a_function_that_raises_names_only_our_error_codes(db):
    assert names(db, """
        select distinct c.code[1] from pg_proc p join pg_namespace n on n.oid = p.pronamespace,
               regexp_matches(p.prosrc, 'errcode = ''(\\w+)''', 'g') c(code)
        where n.nspname = 'pyworker' and c.code[1] not in ('PW001', 'PW002', 'PW003', 'PW004', 'PW005',
            'PW006')
    """) == []  # fmt: skip
    assert names(db, """
        select p.oid::regprocedure::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'pyworker'
          and (select count(*) from regexp_matches(p.prosrc, 'raise exception ', 'g'))
              <> (select count(*) from regexp_matches(p.prosrc, 'errcode = ''PW', 'g'))
    """) == []  # fmt: skip


def test_ids_are_bigint_and_no_table_has_a_foreign_key(db):
    assert names(db, """
        select c.relname || '.' || a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
        join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'pyworker' and c.relkind in ('r', 'p')
            and (a.attname = 'id' or a.attname like '%\\_id')
          and a.atttypid <> 'bigint'::regtype
    """) == []  # fmt: skip
    assert (
        names(
            db,
            "select conname from pg_constraint where contype = 'f' "
            "and connamespace = 'pyworker'::regnamespace",
        )
        == []
    )


def test_live_and_finished_jobs_have_the_same_columns(db):
    """A job moves between them, and one function shows both."""
    columns = """select attname, atttypid::regtype::text from pg_attribute
                 where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum"""
    live, finished = (
        db.execute(columns, [f"pyworker.{table}"]).fetchall() for table in ("live_jobs", "finished_jobs")
    )
    assert live == finished


def test_a_claim_changes_nothing_that_an_index_knows_of(db):
    """Or it would not be a HOT update."""
    indexed = set(names(db, """
        select a.attname from pg_index i join pg_attribute a on a.attrelid = i.indrelid
        where i.indrelid = 'pyworker.live_jobs'::regclass
          and (a.attnum = any (i.indkey) or pg_get_expr(i.indpred,
              i.indrelid) ~ ('\\m' || a.attname || '\\M'))
    """))  # fmt: skip
    assert indexed & {"run", "attempts", "state", "worker_id", "claimed_at", "updated_at"} == set()
    assert {"ready_at", "due_at", "parked", "job_key"} <= indexed


@pytest.fixture
def plpgsql_check(fresh):
    if not fresh.execute("select true from pg_available_extensions where name = 'plpgsql_check'").fetchone():
        pytest.skip("this PostgreSQL does not offer plpgsql_check")
    fresh.execute("create extension plpgsql_check")
    return fresh


def test_plpgsql_check_finds_nothing(plpgsql_check):
    found = plpgsql_check.execute("""
        select p.oid::regprocedure::text, c.* from pg_proc p
        join pg_namespace n on n.oid = p.pronamespace join pg_language l on l.oid = p.prolang
        cross join lateral plpgsql_check_function(p.oid, extra_warnings := true) c
        where n.nspname = 'pyworker' and l.lanname = 'plpgsql'
    """).fetchall()  # fmt: skip
    meant = re.compile(
        'name of parameter "on" is reserved keyword'  # add_batch's: callers write it in quotes
        "|reserved keyword was used"
        "|never read variable"  # v_next := f(): sql/README.md, idioms
        "|composite OUT variable"
        "|is maybe unmodified|cannot to determine result of dynamic SQL"  # return query execute
    )
    found = [line for line in found if not meant.search(line[1])]
    assert found == []


def test_no_pinned_plan_is_compiled(db):
    """A forbidden plan node counts as so dear that JIT compilation would start, for milliseconds,
    in each session."""
    assert names(db, """
        select p.oid::regprocedure::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'pyworker' and p.proconfig @> array['enable_seqscan=off']
            and not p.proconfig @> array['jit=off']
    """) == []  # fmt: skip


def test_a_function_that_may_not_sort_may_not_sort_in_part(db):
    """enable_sort = off alone allows a walk along another index and an incremental sort of all its rows."""
    assert names(db, """
        select p.oid::regprocedure::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'pyworker' and p.proconfig @> array['enable_sort=off']
            and not p.proconfig @> array['enable_incremental_sort=off']
    """) == []  # fmt: skip


def test_the_code_that_undoes_a_block_never_leaves_its_function(db):
    """PW099, the one private code."""
    assert names(db, """
        select distinct p.oid::regprocedure::text || ': ' || c.code[1]
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace,
             regexp_matches(p.prosrc, 'raise sqlstate ''(\\w+)''', 'g') c(code)
        where n.nspname = 'pyworker'
          and (c.code[1] <> 'PW099' or p.prosrc !~ 'exception\\s+when sqlstate ''PW099'' then')
    """) == []  # fmt: skip
