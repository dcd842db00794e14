-- The application: a table, and two triggers that add jobs in the transaction that changes it.
-- If that transaction rolls back, its jobs were never there.

create table users (
    id bigint generated always as identity primary key,
    email text not null unique,
    name text not null,
    city text
);

create function welcome_user() returns trigger language plpgsql as $$
begin
    perform pyworker.add_job('send_welcome', jsonb_build_object('email', new.email, 'name', new.name));
    return null;
end;
$$;

create trigger welcome_user after insert on users
    for each row execute function welcome_user();

-- However often a profile changes within a second, one mail tells of all changes: the job_key makes each
-- new job replace the one that still waits, and two JSON arrays are merged.
create function report_change() returns trigger language plpgsql as $$
begin
    perform pyworker.add_job(
        'send_changes', jsonb_build_array(jsonb_build_object('email', new.email, 'city', new.city)),
        job_key := 'changes of user ' || new.id, run_at := now() + interval '1 second');
    return null;
end;
$$;

create trigger report_change after update on users
    for each row when (old.city is distinct from new.city) execute function report_change();
