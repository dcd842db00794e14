-- The four group roles. Grant them to login roles: grant pyworker_producer to my_app;
-- The role that has called the installation creates them, as their owner need not have CREATEROLE.
do $$
declare
    v_owner constant text := current_setting('role');
    v_role text;
begin
    perform set_config('role', current_setting('pyworker.role'), true);
    foreach v_role in array array['producer', 'worker', 'reader', 'admin'] loop
        v_role := current_schema() || '_' || v_role;
        if not exists (select from pg_roles r where r.rolname = v_role) then
            execute format('create role %I nologin', v_role);
        end if;
    end loop;
    perform set_config('role', v_owner, true);
end;
$$;
