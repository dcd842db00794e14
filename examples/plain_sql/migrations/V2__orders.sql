create table orders (id bigserial primary key, email text not null);

create function charge_order() returns trigger language plpgsql as $$
begin
    perform pyworker.add_job('charge', json_build_object('order', new.id));
    return new;
end $$;

create trigger charge_order after insert on orders for each row execute function charge_order();
