-- 0004: set_queue writes the starts that it counts to a table of its own. In `starts` a claim that could not
-- see them yet might come between, and go on from another total.
-- breaking: no

-- The starts that a queue had while it had no rate. A row may stand for several starts that are close
-- together: it has the time of the last.
create table earlier_starts (
    queue_name text collate "C" not null,
    at timestamptz not null,
    jobs bigint not null,
    counted_by xid8 not null default pg_current_xact_id(), -- so no two calls of set_queue wait for each other
    primary key (queue_name, at, counted_by)
);
