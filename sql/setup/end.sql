-- Last step of every installation and upgrade. The notification makes running workers check whether
-- they still fit the schema version.
select pg_notify(current_schema(), 'migrate');
select _make_partitions();
