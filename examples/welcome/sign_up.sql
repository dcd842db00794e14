insert into users (email, name)
select 'user' || n || '@example.org', 'User ' || n from generate_series(1, %(users)s) n
