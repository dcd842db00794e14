-- The four group roles. Grant them to login roles: grant pyworker_producer to my_app;
do $$
declare
    v_role text;
begin
    foreach v_role in array array['producer', 'worker', 'reader', 'admin'] loop
        v_role := current_schema() || '_' || v_role;
        if not exists (select from pg_roles r where r.rolname = v_role) then
            execute format('create role %I nologin', v_role);
        end if;
    end loop;
end;
$$;
