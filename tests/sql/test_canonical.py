"""One text for each JSON value: RFC 8785 after NFC, against the published vectors and against
another's implementation."""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
import unicodedata
from collections.abc import Iterable
from typing import Any

import pytest
import rfc8785
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb


def canonical(api: Any, texts: Iterable[str]) -> list[str]:
    """Of each JSON text, in one round trip."""
    sql = (
        "select pyworker._canonical(t::jsonb) as text from unnest(%s::text[]) with ordinality u(t, n) "
        "order by n"
    )
    return [row.text for row in api.rows(sql, [list(texts)])]


def nfc(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, list):
        return [nfc(v) for v in value]
    if isinstance(value, dict):
        return {nfc(k): nfc(v) for k, v in value.items()}
    return value


def expected(value: Any) -> str:
    return rfc8785.dumps(nfc(value)).decode()


def agree(api: Any, values: list[Any]) -> None:
    ours = canonical(api, [json.dumps(v) for v in values])
    differ = [(v, o) for v, o in zip(values, ours, strict=True) if o != expected(v)]
    assert not differ, (len(differ), differ[:5])


# What was published

RFC_VECTORS = [
    (  # section 3.2.2, printed in 3.2.3
        r'''{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
             "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}''',
        '''{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'''
        r'''"string":"€$\u000f\nA'B\"\\\\\"/"}''',
    ),
    (  # section 3.2.3: the order of keys
        r'''{"\u20ac": "Euro Sign", "\r": "Carriage Return", "\u05da": "Hebrew Letter Final Kaf", "1": "One",
             "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control",
             "\u00f6": "Latin Small Letter O With Diaeresis"}''',
        '{"\\r":"Carriage Return","1":"One","\u0080":"Control","ö":"Latin Small Letter O With Diaeresis",'
        '"\u05da":"Hebrew Letter Final Kaf","€":"Euro Sign","😀":"Emoji: Grinning Face"}',
    ),
    (  # the test suite's weird.json, of the RFC's author
        r'''{"\u20ac": "Euro Sign", "\r": "Carriage Return", "\u000a": "Newline", "1": "One",
             "\u0080": "Control\u007f", "\ud83d\ude02": "Smiley",
             "\u00f6": "Latin Small Letter O With Diaeresis", "</script>": "Browser Challenge"}''',
        '{"\\n":"Newline","\\r":"Carriage Return","1":"One","</script>":"Browser Challenge",'
        '"\u0080":"Control\u007f",'
        '"ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign","😂":"Smiley"}',
    ),
    ('[56, {"d": true, "10": null, "1": []}]', '[56,{"1":[],"10":null,"d":true}]'),
    (
        '{"1": {"f": {"f": "hi", "F": 5}, "\\n": 56.0}, "10": {}, "": "empty", "a": {}, "111": [{"e": '
        '"yes", "E": "no"}], "A": {}}',
        '{"":"empty","1":{"\\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{"E":"no","e":"yes"}],"A":{},"a":{}}',
    ),
    (
        '{"peach": "This sorting order", "péché": "is wrong according to French", "pêche": "but '
        'canonicalization MUST", "sin": "ignore locale"}',
        '{"peach":"This sorting order","péché":"is wrong according to French","pêche":"but '
        'canonicalization MUST","sin":"ignore locale"}',
    ),
]  # fmt: skip

# Appendix B: IEEE 754 bits and what ECMAScript prints.
APPENDIX_B = {
    "0000000000000000": "0", "8000000000000000": "0", "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324", "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308", "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992", "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22", "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23", "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000", "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7", "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332", "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333", "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343", "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}  # fmt: skip


@pytest.mark.parametrize(("text", "result"), RFC_VECTORS)
def test_the_rfcs_own_documents_come_out_as_printed_there(api: Any, text: str, result: str) -> None:
    assert canonical(api, [text, result]) == [result, result]


def test_the_rfcs_table_of_numbers_comes_out_as_printed_there(api: Any) -> None:
    doubles = [struct.unpack(">d", bytes.fromhex(bits))[0] for bits in APPENDIX_B]
    assert canonical(api, map(repr, doubles)) == list(APPENDIX_B.values())
    # Seventeen digits say the same, unless they make an integer of it that is none of the double's
    # short form.
    fractions = [
        (d, text) for d, text in zip(doubles, APPENDIX_B.values(), strict=True) if not d.is_integer()
    ]
    assert canonical(api, [f"{d:.17g}" for d, _ in fractions]) == [text for _, text in fractions]


E_ACUTE, A_RING = "e\u0301", "A\u030a"
OPEN_JOB_SPEC = [
    ("email.send", "notifications", {"user_id": 42, "template": "welcome"}, None,
     {"keys": ["type", "queue", "args"], "args_keys": ["user_id"]},
     "71f9344b82e66297a49775bbe27752297922842b675330641ebe3ff4fea46c1f"),
    ("report.daily", None, {"date": "2026-02-12"}, None, {},
     "be66720bd0f961a37ab755101a985ca3f8563bd89ed8d412c41fa5791f3e4d95"),
    ("report.daily", None, {}, None, {"keys": ["type"]},
     "be66720bd0f961a37ab755101a985ca3f8563bd89ed8d412c41fa5791f3e4d95"),
    ("report.daily", None, {}, None, {"keys": []},
     "be66720bd0f961a37ab755101a985ca3f8563bd89ed8d412c41fa5791f3e4d95"),
    ("email.send_welcome", None, {"user_id": 42, "locale": "en-US"}, None,
     {"keys": ["args"], "args_keys": ["user_id"]},
     "9e45195404ccda2ec2e9597e9357ccbd01bbf6707d25aa92ab76d53b8795d74c"),
    ("notification.push", None, {"user_id": 42, "event": "new_comment"}, None,
     {"keys": ["type", "args"], "args_keys": ["user_id", "event"]},
     "77a2c3f3ec92c6565e8e9dbb06cbbc54506631efa84db7645e3d3708db9e25b7"),
    ("image.resize", "thumbnails", {"image_id": "img_abc123"}, None,
     {"keys": ["type", "queue", "args"], "args_keys": ["image_id"]},
     "642da782420b8a4fcdbcb63851e9f210a6becb96c2ca5e5d25ea129e08d57b08"),
    ("cache.warm", None, {"resource": "products"}, {"tenant_id": "acme", "trace": 1},
     {"keys": ["type", "args", "meta"], "meta_keys": ["tenant_id"]},
     "dc19075d0e4dde8bcd3952c4f9789b50e959792aa308daaa8eae0daa9f1985b0"),
    ("cache.warm", None, {"resource": "products"}, {"trace": 1},
     {"keys": ["type", "args", "meta"], "meta_keys": ["tenant_id"]},
     "6a2788690a1edaefa4821689afb0cce5a4661c662a93ac657d5a40ec111f05d6"),
    ("unique.test.type_and_args", None, [{"user_id": "U-200", "action": "send_email"}], None,
     {"keys": ["type", "args"]},
     "a691d59225f899b404514ade64a5b8bd48833b5c47041e8f3f0fbe929b9d6b11"),
    ("t", None, '{"a":42.0,"b":-0,"c":1E30,"d":4.50,"e":1e23,"f":1e-7}', None, {"keys": ["args"]},
     "7cd6408c2f80775e234541f55859a9757b850ebe98ddd17c86d03133a7cfb7a8"),
    ("t", None, {"caf" + E_ACUTE: A_RING}, None, {"keys": ["args"]},
     "457583fc9e273ebba62dc0f83d741adfa45de5359ae12278956ed94aa74693be"),
    ("t", None, {"z": 3, "\U0001f602": 2, "\ufb01": 1}, None, {"keys": ["args"]},
     "4fa2a58956563d190ec7e2c29da5de076b98a5cd9659a4aa08600d1150a7d902"),
    ("t", None, {"x": 1}, None, {"keys": ["args"], "args_keys": []},
     "e0d4c264c987383e90a8911cf37cf201c0330f8b6744b287a9ab7746d53cab59"),
]  # fmt: skip


@pytest.mark.parametrize(("identifier", "queue", "args", "meta", "policy", "key"), OPEN_JOB_SPEC)
def test_a_jobs_unique_key_is_the_hash_that_the_open_job_spec_gives(
    api: Any, identifier: str, queue: str | None, args: Any, meta: Any, policy: Any, key: str
) -> None:
    payload = args if isinstance(args, str) else Jsonb(args)
    job = api.add_job(identifier, payload, queue, meta=meta and Jsonb(meta), unique_policy=Jsonb(policy))
    assert job.unique_key == key


def test_river_keys_hash_a_documented_text_too(api: Any) -> None:
    policy = {"by_args": ["a"], "by_period": "1 day", "by_queue": True}
    job = api.add_job("t", {"a": 1, "b": 2}, "q", "2026-02-03 15:00+00", unique_policy=policy)
    text = '{"args":{"a":1},"kind":"t","period":"2026-02-03T00:00:00.000000Z","queue":"q"}'
    assert job.unique_key == hashlib.sha256(text.encode()).hexdigest()


# Numbers


@pytest.mark.slow
def test_a_hundred_thousand_numbers_come_out_as_another_implementation_prints_them(api: Any) -> None:
    rng = random.Random(8785)
    bits = [struct.unpack(">d", rng.randbytes(8))[0] for _ in range(62_000)]  # all exponents alike
    short = [
        float(f"{rng.randrange(1, 10 ** rng.randint(1, 17))}e{rng.randint(-330, 300)}") for _ in range(15_000)
    ]
    # Between 2^53 and 1e40 a double's shortest form may be the very boundary to its neighbour.
    powers = [
        math.ldexp(rng.getrandbits(k) | 1, e)
        for k in (1, 2, 3, 10, 53)
        for e in range(0, 90)
        for _ in range(8)
    ]
    powers = [math.nextafter(p, p * rng.choice([0, 2])) if rng.random() < 0.3 else p for p in powers]
    edges = [
        float(f"{m}e{e}")
        for e in range(15, 41)
        for m in [1, 9, 5, *(rng.randrange(1, 10**k) for k in (2, 5, 9, 15, 16, 17, 17, 17))]
    ]
    near = [n for edge in edges for n in (edge, math.nextafter(edge, 0), math.nextafter(edge, 1e300))]
    decimals = [rng.randrange(10**8) / 10 ** rng.randint(0, 8) for _ in range(10_000)]
    integers: list[Any] = [rng.choice([-1, 1]) * rng.getrandbits(rng.randint(0, 53)) for _ in range(15_000)]
    integers += [s * (2**k + d) for k in range(53) for d in (-1, 0, 1) for s in (1, -1)] + [2**53, 1 - 2**53]
    numbers = [n for n in [*bits, *short, *powers, *near, *decimals] if math.isfinite(n)]
    numbers += [-n for n in near] + integers
    assert len(numbers) > 100_000
    for i in range(0, len(numbers), 25_000):
        part = numbers[i : i + 25_000]
        ours = canonical(api, [repr(n) for n in part])
        wrong = [
            (n, o)
            for n, o in zip(part, ours, strict=True)
            if o != rfc8785.dumps(n if abs(n) < 2**53 else float(n)).decode()
        ]
        assert not wrong, (len(wrong), wrong[:5])


def test_a_number_may_be_written_in_any_way_and_underflow_is_zero(api: Any) -> None:
    ways = {
        "42": ["42", "42.0", "42.000", "4.2e1", "420e-1", "0.42E+2"],
        "0": ["0", "-0", "0.0", "-0.00", "0e5", "1e-400", "-1e-400", "2.4e-324", "1e-16000"],
        "5e-324": ["5e-324", "4.9406564584124654e-324", "2.5e-324"],
        "1e+23": ["1e23", "100000000000000000000000", "1.0E+23"],
        "0.1": ["0.1", "1e-1", "0.1000000000000000055511151231257827"],
        "-0.000001": ["-1e-6", "-0.0000010"],
        "-1e-7": ["-0.0000001"],
        "9007199254740994": ["9007199254740994", "9007199254740994.0"],
        "1152921504606847000": ["1152921504606847000", "1.152921504606847e18"],
        "1.7976931348623157e+308": ["1.7976931348623157e308", "17976931348623157" + "0" * 292],
    }
    for text, spellings in ways.items():
        assert canonical(api, spellings) == [text] * len(spellings)


@pytest.mark.parametrize("digits", ["1", "0", "3"])
def test_the_sessions_settings_do_not_matter(api: Any, digits: str) -> None:
    api.rows(
        f"set extra_float_digits = {digits}; set timezone = 'Asia/Tokyo'; "
        f"set standard_conforming_strings = off"
    )
    agree(api, [1 / 3, 1e23, 5e-324, 2.0**60, "\\", "\n", "ß", {"ä": "\x7f"}])


@pytest.mark.parametrize(
    "number",
    ["9007199254740993", "-9007199254740993", "1152921504606846976", "12345678901234567890",
    "9007199254740993.0", "1e309", "-1e400",
     "1.7976931348623159e308", "1e5000", "100000000000000000000001"],
)  # fmt: skip
def test_a_number_that_a_json_reader_would_change_is_refused(api: Any, number: str) -> None:
    for payload in (f'{{"id":{number}}}', f"[[{number}]]", number):
        for policy in ({"keys": ["args"]}, {"by_args": True}):
            with api.refusal(
                "PW001",
                "unique_policy",
                "number|integer",
                number.split("e")[0].split(".")[0].lstrip("-")[:20],
            ):
                api.add_job("t", payload, unique_policy=policy)
    # Where it is not compared it does no harm.
    assert api.add_job(
        "t", f'{{"id":{number},"a":1}}', unique_policy={"keys": ["args"], "args_keys": ["a"]}
    ).unique_key


# Strings and keys


def test_every_character_is_escaped_as_the_rfc_wants_it(api: Any) -> None:
    chars = [chr(c) for c in range(1, 0x250)] + list(
        "\u2028\u2029\ufeff\ufffe\uffff\ue000\U00010000\U0010ffff\u0344\u2126\ufb01\uac00\u1100\u1161"
    )
    agree(api, [*chars, *[f"a{c}b" for c in chars], *[{c: c} for c in chars]])


def test_normalization_is_per_string_and_never_eats_an_escape(api: Any) -> None:
    agree(
        api,
        [
            "n\u0303",
            "\n\u0301",
            "\u0301",
            {"a": "\u0301", "b": '"\u0301'},
            ["e", "\u0301"],
            "\u1100\u1161\u11a8",
            "q\u0307\u0323",
        ],
    )


def test_keys_sort_by_utf_16_units(api: Any) -> None:
    rng = random.Random(16)
    pool = [
        *"az09~\x01",
        "\u00e9",
        "\ud7ff",
        "\ue000",
        "\uf8ff",
        "\ufb01",
        "\uffff",
        "\U00010000",
        "\U0001f602",
        "\U0010fffe",
        "\U0010ffff",
    ]
    objects = [
        {"".join(rng.choices(pool, k=rng.randint(0, 4))): i for i in range(rng.choice([2, 5, 12, 13, 40]))}
        for _ in range(2000)
    ]
    agree(api, [{a: 1, b: 2} for a in pool for b in pool if a != b])
    agree(api, [{a + c: 1, b + d: 2} for a in pool[8:] for b in pool[8:] for c in pool[8:] for d in pool[8:]])
    agree(api, objects)


@pytest.mark.parametrize("many", [1, 20])
def test_two_members_that_normalization_makes_one_are_refused(api: Any, many: int) -> None:
    payload: dict[str, Any] = {"caf\u00e9": 1, "cafe\u0301": 1, **{f"k{n}": n for n in range(many)}}
    for policy in ({"keys": ["args"]}, {"by_args": True}):
        with api.refusal("PW001", "unique_policy", "after Unicode normalization"):
            api.add_job("t", payload, unique_policy=policy)
        with api.refusal("PW001", "unique_policy", "after Unicode normalization"):
            api.add_job("t", {"deep": [payload]}, unique_policy=policy)


# Documents


def document(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth < 5 and kind < 0.25:
        return [document(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 3, 14]))]
    if depth < 5 and kind < 0.55:
        size = rng.choice([0, 1, 2, 3, 5, 12, 13, 30])
        return {nfc(text(rng)): document(rng, depth + 2) for _ in range(size)}
    if kind < 0.75:
        return text(rng)
    if kind < 0.85:
        return rng.choice([None, True, False])
    if kind < 0.93:
        return rng.randrange(-(10 ** rng.randint(1, 15)), 10 ** rng.randint(1, 15))
    return rng.choice(
        [
            rng.random(),
            rng.uniform(-1e25, 1e25),
            rng.randrange(10**6) / 100,
            math.ldexp(rng.random(), rng.randint(-1000, 1000)),
        ]
    )


ALPHABET = [*"abcABC019 _-.:,{}[]\"\\/'&<", "\n", "\x01", "\x1f", "\x7f", "\u0080", "é", "e\u0301", "\u030a",
    "A\u030a", "ﬁ", "\ue000", "\uffff", "😀",
            "\U0010ffff", "漢", "\u2028", "가"]  # fmt: skip


def text(rng: random.Random) -> str:
    return "".join(rng.choices(ALPHABET, k=rng.randint(0, 7)))


@pytest.mark.parametrize("batches", [2, pytest.param(100, marks=pytest.mark.torture)])
def test_random_documents_come_out_as_another_implementation_prints_them(api: Any, batches: int) -> None:
    rng = random.Random(batches)
    for _ in range(batches):
        agree(api, [document(rng, 2) for _ in range(1500)] + [document(rng) for _ in range(100)])


def test_large_objects_sort_like_small_ones(api: Any) -> None:
    rng = random.Random(5)
    agree(api, [{nfc(text(rng) + str(n)): n for n in range(size)} for size in (11, 12, 13, 14, 500, 3000)])


finite = st.floats(allow_nan=False, allow_infinity=False)
strings = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
scalars = st.none() | st.booleans() | finite | st.integers(1 - 2**53, 2**53 - 1) | strings
documents = st.recursive(
    scalars,
    lambda v: st.lists(v, max_size=5) | st.dictionaries(strings.map(nfc), v, max_size=15),
    max_leaves=25,
)


@settings(
    max_examples=80, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.lists(documents, min_size=1, max_size=8))
def test_any_document_has_the_same_canonical_text_everywhere_and_it_is_a_fixed_point(
    api: Any, values: list[Any]
) -> None:
    ours = canonical(api, [json.dumps(v) for v in values])
    assert ours == [expected(v) for v in values]
    assert canonical(api, ours) == ours
