-- 0002: what workers know of each other, so that a fleet shares its looks at the queue: 03_fleet.
-- breaking: no

create sequence fleet_size minvalue 0 start 0;          -- a register: how many workers the last sweep saw
create sequence notifications minvalue 0 start 0;       -- counts them

-- The turn of a worker among those that poll: see _polls_in.
create type _turns as (
    worker_id bigint,
    until_us bigint,                            -- until then it is true
    workers bigint,                             -- that take the same jobs
    place bigint                                -- of this worker among them, from 0
);
