-- Last step of every installation and upgrade: running workers look again whether they still fit.
select pg_notify(current_schema(), 'migrate');
select _make_partitions();
select _record_objects();
