-- features/canonical: one text for each JSON value, so that equal values give equal keys: RFC 8785 (JCS),
-- after Unicode normalization (NFC) of every string and key, as the Open Job Spec demands. Unique
-- keys and computed sequence keys are made of it.

-- A number as ECMAScript prints the nearest double. float8 prints some numbers with other digits
-- (1e23 as 9.999999999999999e+22), and uses and pads exponents differently. An integer that would
-- be rounded is refused: 9007199254740993 must not get the key of 9007199254740992.
create or replace function _canonical_number(n numeric) returns text
    language plpgsql immutable strict parallel safe set search_path from current set extra_float_digits = 1
as $$
declare
    v_double double precision;
    v_text text;
    v_at integer;
    v_exponent integer;
    v_digits text;
    v_rounded numeric;
begin
    if n = trunc(n) and abs(n) <= 9007199254740992 then
        return trim_scale(n)::text;
    elsif abs(n) >= 1.797693134862315807e308 then
        raise exception 'number % is too large', left(n::text, 40) using errcode = 'PW001';
    elsif abs(n) < 1e-300 and abs(n) * 2::numeric ^ 1075 <= 1 then
        return '0'; -- nearer to 0 than to the smallest double, so that a conversion would be an error
    end if;
    v_double := abs(n);
    v_text := v_double::text;
    v_at := position('e' in v_text);
    if v_at > 0 then
        v_exponent := substr(v_text, v_at + 1)::integer;
        v_digits := replace(left(v_text, v_at - 1), '.', '');
        -- Only in this range can fewer digits mean the same double: at most two roundings to try.
        if length(v_digits) >= 16 and v_double > 9007199254740992 and v_double < 1e40 then
            for v_count in 15 .. length(v_digits) - 1 loop
                v_rounded := round(v_text::numeric, v_count - 1 - v_exponent);
                if v_rounded::double precision = v_double then
                    v_exponent := length(trim_scale(v_rounded)::text) - 1;
                    v_digits := rtrim(trim_scale(v_rounded)::text, '0');
                    exit;
                end if;
            end loop;
        end if;
        v_text := case
            when v_exponent >= 21 or v_exponent < -6 then
                left(v_digits, 1)
                || case when length(v_digits) > 1 then '.' || substr(v_digits, 2) else '' end
                || case when v_exponent < 0 then 'e-' else 'e+' end || abs(v_exponent)
            when v_exponent < 0 then '0.' || repeat('0', -v_exponent - 1) || v_digits
            when length(v_digits) <= v_exponent + 1 then rpad(v_digits, v_exponent + 1, '0')
            else left(v_digits, v_exponent + 1) || '.' || substr(v_digits, v_exponent + 2)
        end;
    end if;
    if n = trunc(n) and v_text::numeric <> abs(n) then
        raise exception 'integer % cannot be told from its neighbours by a JSON reader; write it as a string',
            left(n::text, 40) using errcode = 'PW001';
    end if;
    return case when n < 0 then '-' else '' end || v_text;
end;
$$;

-- A sort key: RFC 8785 orders names by UTF-16 units. These order code points as they are, except
-- that U+E000–U+FFFF follow all that need surrogates: they get the prefix U+10FFFF, the last code
-- point. A real U+10FFFF gets the suffix U+0001, so that it sorts before them.
create or replace function _utf16_order(key text) returns text
    language sql immutable
    return case when octet_length(key) = length(key) then key
                else regexp_replace(replace(key, U&'\+10FFFF', U&'\+10FFFF\0001'), '([\uE000-\uFFFF])',
                                    U&'\+10FFFF' || '\1', 'g') end;

create or replace function _canonical(value jsonb) returns text
    language plpgsql immutable strict parallel safe set search_path from current
as $$
declare
    v_kind constant text := jsonb_typeof(value);
    v_text text;
    v_normalized boolean;
    v_name text;
begin
    if v_kind = 'object' then
        select string_agg(to_json(m.name)::text || ':' || _canonical_member(m.value), ','
            order by _utf16_order(m.name) collate "C"),
               bool_or(m.name <> m.key)
        into v_text, v_normalized
        from (select e.key, normalize(e.key) as name, e.value from jsonb_each(value) e) m;
        if v_normalized then
            select normalize(k.key) into v_name from jsonb_object_keys(value) k(key)
            group by 1 having count(*) > 1;
            if found then
                raise exception 'two members are named "%" after Unicode normalization', v_name
                    using errcode = 'PW001';
            end if;
        end if;
        return '{' || coalesce(v_text, '') || '}';
    elsif v_kind = 'array' then
        select string_agg(_canonical_member(e.value), ',' order by e.ordinality) into v_text
        from jsonb_array_elements(value) with ordinality e;
        return '[' || coalesce(v_text, '') || ']';
    elsif v_kind = 'string' then
        return to_json(normalize(value #>> '{}'))::text;
    elsif v_kind = 'number' then
        return _canonical_number(value::numeric);
    else
        return value::text;
    end if;
end;
$$;

-- The canonical text of one member or element. Small integers and decimals, plain ASCII strings,
-- true, false and null are canonical already. PostgreSQL inlines this test, so that most members
-- need no call.
create or replace function _canonical_member(value jsonb) returns text
    language sql immutable
    return case
        when value::text
            ~ '^(0|-?[1-9][0-9]{0,14}|-?(0|[1-9][0-9]{0,7})[.][0-9]{0,4}[1-9]|"[] !#-[^-~]*"|[tfn].*)$'
            then value::text
        else _canonical(value) end;
