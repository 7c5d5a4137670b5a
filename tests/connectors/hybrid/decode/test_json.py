"""Records of JSON. Expected values are Spark 4.2's, by ``from_json``, unless a test says otherwise."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode import decoder, parse
from backlog_spark.errors import BacklogError

from .plain import both_roads, decoded, plain, rows
from .records import COLUMNS, json_records, schemas

CORRUPT = pa.field("_corrupt_record", pa.string())
MALFORMED = "malformed"


def one(kind: pa.DataType, text: str, **options: str) -> Any:
    """The value of column a; or checks that the record is malformed and the column NULL."""
    record = f'{{"a":{text}}}'.encode()
    schema = pa.schema([("a", kind), CORRUPT])
    [(value, corrupt)] = rows("json", schema, [record], **options)
    if corrupt is None:
        return value
    assert corrupt == record.decode()
    assert value is None
    return MALFORMED


INTEGERS = [
    (pa.int8(), "127", 127), (pa.int8(), "128", -128), (pa.int8(), "255", -1), (pa.int8(), "256", MALFORMED),
    (pa.int8(), "-128", -128), (pa.int8(), "-129", MALFORMED), (pa.int16(), "32767", 32767),
    (pa.int16(), "32768", MALFORMED), (pa.int16(), "65535", MALFORMED), (pa.int32(), "2147483648", MALFORMED),
    (pa.int64(), "9223372036854775807", 2**63 - 1), (pa.int64(), "9223372036854775808", MALFORMED),
    (pa.int64(), "-9223372036854775808", -(2**63)), (pa.int64(), "99999999999999999999999", MALFORMED),
    (pa.int32(), "-0", 0), (pa.int32(), "1.0", MALFORMED), (pa.int32(), "1e2", MALFORMED),
    (pa.int32(), '"1"', MALFORMED), (pa.int32(), '""', MALFORMED), (pa.int32
    (), "true", MALFORMED), (pa.int32(), "NaN", MALFORMED),
    (pa.int32(), "null", None), (pa.int32(), "{}", MALFORMED), (pa.int32(), "[5]", MALFORMED),
    (pa.int32(), "1" * 5000, MALFORMED),
]  # fmt: skip
FLOATS = [
    ("1", "1.0", "1.0"), ("1e400", "inf", "inf"), ("-1e400", "-inf", "-inf"), ("1e39", "inf", "1e+39"),
    ("16777217", "16777216.0", "16777217.0"), ("16777217.0000001", "16777218.0", "16777217.0000001"),
    ("NaN", "nan", "nan"), ("-Infinity", "-inf", "-inf"), ("+INF", "inf", "inf"), ("INF", MALFORMED, MALFORMED),
    ('"NaN"', "nan", "nan"), ('"+Infinity"', "inf", "inf"), ('"-INF"', "-inf", "-inf"), ('"INF"', MALFORMED, MALFORMED),
    ('"1.5"', MALFORMED, MALFORMED), ('"nan"', MALFORMED, MALFORMED), ("true", MALFORMED, MALFORMED),
    ("-0", "0.0", "0.0"), ("-0.0", "-0.0", "-0.0"), ("9007199254740993", "9007199254740992.0", "9007199254740992.0"),
    ("12345678901234567890123", "1.2345679377913908e+22", "1.2345678901234568e+22"), ("1e-400", "0.0", "0.0"),
    ("4.9e-324", "0.0", "5e-324"), ("340282356779733661637539395458142568448", "inf", "3.4028235677973366e+38"),
    ("1.7976931348623159e308", "inf", "inf"),
]  # fmt: skip
BYTES = [
    ('"aGk="', b"hi"), ('"aGk"', MALFORMED), ('""', b""), ('"aG k="', MALFORMED), ('"aG\\nk="', MALFORMED),
    ('"-_-_"', MALFORMED), ('"+/+/"', b"\xfb\xff\xbf"), ('"aGk=="', MALFORMED), ('"a==="', MALFORMED), ('"aG=="', b"h"),
    ('"aGk= "', b"hi"), ('"aGk=aGkK"', b"hihi\n"), ('"aH=="', b"h"), ('"="', MALFORMED), ('" "', b""),
    ('"a=Gk"', MALFORMED), ('"é"', MALFORMED), ("1", MALFORMED), ('"\\u0061Gk="', b"hi"),
]  # fmt: skip
# As decimal(6,2), decimal(38,10) and decimal(20,0). "." is for what no type takes.
DECIMALS = [
    ("1", "1.00", "1", "1"), ("1.005", "1.01", "1.005", "1"), ("-1.005", "-1.01", "-1.005", "-1"),
    ("9999.994", "9999.99", "9999.994", "10000"), ("9999.995", MALFORMED, "9999.995", "10000"),
    ("10000", MALFORMED, "10000", "10000"), ("1e3", "1000", "1000", "1000"), ("2.5", "2.5", "2.5", "3"),
    ('"1,234.5"', "1234.5", "1234.5", "1235"), ('"+1"', "1", "1", "1"), ('".5"', "0.5", "0.5", "1"),
    ('"１"', "1", "1", "1"), ("0e400", "0", "0", "0"), ("1e-400", "0", "0", "0"),
    ("1e400", MALFORMED, MALFORMED, MALFORMED),
    ("12345678901234567890123456789", MALFORMED, MALFORMED, MALFORMED), ("9" * 20, MALFORMED, "9" * 20, "9" * 20),
    ("9" * 20 + ".5", MALFORMED, "9" * 20 + ".5", MALFORMED), ('" 1"', MALFORMED, MALFORMED, MALFORMED),
    ('""', MALFORMED, MALFORMED, MALFORMED), ("NaN", MALFORMED, MALFORMED, MALFORMED),
    ("true", MALFORMED, MALFORMED, MALFORMED),
    ('"NaN"', MALFORMED, MALFORMED, MALFORMED), ("1" + "0" * 60 + "e-60", "1", "1", "1"), ("null", None, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "value"), INTEGERS, ids=str)
def test_integers(kind: pa.DataType, text: str, value: object) -> None:
    assert one(kind, text) == value


@pytest.mark.parametrize(("text", "single", "double"), FLOATS)
def test_floats(text: str, single: str, double: str) -> None:
    assert one(pa.float32(), text) == single
    assert one(pa.float64(), text) == double


@pytest.mark.parametrize(("text", "value"), BYTES)
def test_bytes(text: str, value: object) -> None:
    assert one(pa.binary(), text) == value


@pytest.mark.parametrize(("text", "money", "long", "whole"), DECIMALS)
def test_decimals(text: str, money: str | None, long: str | None, whole: str | None) -> None:
    for (precision, scale), value in zip([(6, 2), (38, 10), (20, 0)], (money, long, whole), strict=True):
        expected = value if value in (None, MALFORMED) else Decimal(str(value))
        assert one(pa.decimal128(precision, scale), text) == expected


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("false", False), ('"true"', MALFORMED), ("1", MALFORMED), ("null", None)]
)
def test_booleans(text: str, value: object) -> None:
    assert one(pa.bool_(), text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5000000), ("-5", -5000000), ("1.5", MALFORMED), ("1e3", MALFORMED), ("true", MALFORMED), ("null", None)],
)
def test_timestamps_as_seconds(text: str, value: object) -> None:
    assert one(pa.timestamp("us", "UTC"), text) == value
    if value is not None:
        assert one(pa.timestamp("us"), text) == MALFORMED
        assert one(pa.date32(), text) == MALFORMED


def test_seconds_out_of_range_are_malformed_where_spark_wraps_around() -> None:
    assert one(pa.timestamp("us", "UTC"), "9223372036854") == 9223372036854000000
    assert one(pa.timestamp("us", "UTC"), "9223372036855") == MALFORMED
    assert one(pa.timestamp("us", "UTC"), "9" * 30) == MALFORMED


@pytest.mark.parametrize(
    ("text", "days"), [("20200102", 20200102), ("-5", -5), ("2020-01-02", 18263), ("x", MALFORMED)]
)
def test_dates(text: str, days: object) -> None:
    assert one(pa.date32(), json.dumps(text)) == days
    assert one(pa.date32(), '"2.1.2020"', dateFormat="d.M.y") == 18263
    assert one(pa.date32(), '"18263"', dateFormat="d.M.y") == MALFORMED


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"x"', "x"), ('"\\ud800"', "?"), ('"\\ud83d\\ude00"', "😀"), ('"a\\/b"', "a/b"), ('"\\u0000"', "\x00"),
        ('""', ""), ("'q'", "q"), ("true", "true"), ("null", None), ("1", "1"),
    ],
)  # fmt: skip
def test_strings(text: str, value: object) -> None:
    assert one(pa.string(), text) == value


@pytest.mark.parametrize(
    "text", ["1.50", "-0", "1e5", '{"b" : 1.0, "c":[ 1 ,2]}', '[1, 2.50 ,"x\\u00e9\\n"]', "{}", "NaN", "1" * 2000]
)
def test_another_value_in_a_string_column_is_its_text(text: str) -> None:
    """As Spark's JSON files, which test_spark.py compares; ``from_json`` writes it anew."""
    assert one(pa.string(), text) == text


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (b'{"a":"\xff\xfe\xc3"}', "\ufffd" * 3), (b'{"a":"\xed\xa0\x80"}', "\ufffd"), (b'{"a":"\xe2\x82"}', "\ufffd"),
        (b'{"a":"\xf0\x9f\x98x"}', "\ufffdx"), (b'{"a":"\xc0\x80"}', "\ufffd\ufffd"), (b'{"\xff":1}', None),
    ],
)  # fmt: skip
def test_invalid_utf8_is_replaced(record: bytes, text: str | None) -> None:
    assert rows("json", pa.schema([("a", pa.string()), CORRUPT]), [record]) == [(text, None)]


# The columns a and b, both INT, and whether the record is malformed.
WHOLE: list[tuple[bytes, int | None, int | None, bool]] = [
    (b'{"a":1,"b":2}', 1, 2, False),
    (b'{"a":"x","b":2}', None, 2, True),
    (b'{"a":1,"b":2', None, None, True),
    (b'{"a":tru,"b":2}', None, None, True),
    (b'{"a":1,"b":2} x', 1, 2, False),
    (b'{"a":1,"b":2}{"a":3}', 1, 2, False),
    (b"", None, None, False),
    (b" \n", None, None, False),
    (b"null", None, None, True),
    (b"5", None, None, True),
    (b"[]", None, None, True),
    (b'[{"a":1}]', None, None, True),
    (b"{}", None, None, False),
    (b'{"a":1,"a":2}', 2, None, False),
    (b'{"a":1,"a":"x"}', 1, None, True),
    (b'{"a":"x","a":1}', 1, None, True),
    (b'{"a":1,"a":null}', None, None, False),
    (b'{"A":1}', None, None, False),
    (b'\xef\xbb\xbf{"a":1}', None, None, True),
    (b'{"b":1,\n "a":\r\n\t2}', 2, 1, False),
    (b'{"a":1,"z":tru,"b":2}', None, None, True),
    (b'{"a":1,"z":Inf,"b":2}', None, None, True),
    (b'{"a":1,"z":NaN,"b":2}', 1, 2, False),
    (b'{"a":1,"z":{"y":[1,2,{}]},"b":2}', 1, 2, False),
    (b'{"a":1,"z":"\xff"}', 1, None, False),
    (b'{"\\u0061":1}', 1, None, False),
    (b'{"a":1}\x00', 1, None, False),
    (b'\x00{"a":1}', None, None, True),
    (b'{"a":1,"z":"Inf"}', 1, None, False),
    (b'{"a":1,"z":[Inf]}', None, None, True),
]


@pytest.mark.parametrize(("record", "a", "b", "bad"), WHOLE, ids=[repr(row[0]) for row in WHOLE])
def test_records(record: bytes, a: int | None, b: int | None, bad: bool) -> None:
    schema = pa.schema([("a", pa.int32()), CORRUPT, ("b", pa.int32())])
    text = record.decode(errors="replace") if bad else None
    assert rows("json", schema, [record]) == [(a, text, b)]


def test_records_in_one_block_do_not_change_each_other() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.int32()), CORRUPT])
    records = [row[0] for row in WHOLE]
    expected = [(a, b, record.decode(errors="replace") if bad else None) for record, a, b, bad in WHOLE]
    assert rows("json", schema, [*records]) == expected
    assert rows("json", schema, [*records * 30]) == expected * 30


NESTED = pa.schema(
    [
        ("s", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("l", pa.list_(pa.int32())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("ls", pa.list_(pa.struct([("a", pa.int32())]))),
        ("ms", pa.map_(pa.string(), pa.struct([("a", pa.int32())]))),
        ("ss", pa.struct([("s", pa.struct([("a", pa.int32())])), ("c", pa.int32())])),
    ]
)
# The columns that are not NULL, and whether the record is malformed.
PARTS: list[tuple[str, dict[str, Any], bool]] = [
    ('{"s":{"a":1,"b":"x"}}', {"s": (1, "x")}, False),
    ('{"s":{"a":"x","b":"y"}}', {"s": (None, "y")}, True),
    ('{"s":{"a":"x","b":"y","a":5}}', {"s": (5, "y")}, True),
    ('{"s":{"a":{"q":[1,2]},"b":"y"},"l":[1]}', {"s": (None, "y"), "l": [1]}, True),
    ('{"s":{"a":1,"b":"x"},"s":{"b":"z"}}', {"s": (None, "z")}, False),
    ('{"s":[1]}', {}, True),
    ('{"s":{}}', {"s": (None, None)}, False),
    ('{"s":""}', {}, True),
    ('{"l":[1,null,2]}', {"l": [1, None, 2]}, False),
    ('{"l":[1,"x",2],"s":{"a":1}}', {"s": (1, None)}, True),
    ('{"l":[]}', {"l": []}, False),
    ('{"l":{"a":1}}', {}, True),
    ('{"m":{"a":1,"b":null}}', {"m": [("a", 1), ("b", None)]}, False),
    ('{"m":{"a":"x","b":2}, "l":[7]}', {"l": [7]}, True),
    ('{"m":{"a":1,"a":2}}', {"m": [("a", 1), ("a", 2)]}, False),
    ('{"m":[]}', {}, True),
    ('{"ls":[{"a":1},null,{"a":2}]}', {"ls": [(1,), None, (2,)]}, False),
    ('{"ls":[{"a":1},{"a":"x"},{"a":3}]}', {"ls": [(1,), (None,), (3,)]}, True),
    ('{"ls":[{"a":1},5,{"a":3}],"l":[9]}', {"l": [9]}, True),
    ('{"ms":{"x":{"a":1},"y":{"a":"q"}}}', {"ms": [("x", (1,)), ("y", (None,))]}, True),
    ('{"ms":{"x":{"a":1},"y":5},"l":[3]}', {"l": [3]}, True),
    ('{"ss":{"s":{"a":"x"},"c":4}}', {"ss": ((None,), 4)}, True),
    ('{"ss":{"s":5,"c":4}}', {"ss": (None, 4)}, True),
]


@pytest.mark.parametrize(("record", "there", "bad"), PARTS, ids=[row[0] for row in PARTS])
def test_what_is_kept_of_nested_values(record: str, there: dict[str, Any], bad: bool) -> None:
    expected = (*(there.get(f.name) for f in NESTED), record if bad else None)
    assert rows("json", NESTED.append(CORRUPT), [record.encode()]) == [expected]


def test_non_finite_numbers_can_be_malformed() -> None:
    for text in ("NaN", '"NaN"', "-INF", "Infinity"):
        assert one(pa.float64(), text, allowNonNumericNumbers="false") == MALFORMED
    assert one(pa.float64(), "1", allowNonNumericNumbers="false") == "1.0"


CLEAN = pa.schema([("i", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(6, 2)), ("n", pa.string())])


def clean(i: int) -> bytes:
    return json.dumps({"i": i, "t": f"2020-01-02T03:04:05.{i % 1000:03}Z", "d": i % 100 / 4, "n": f"n {i}"}).encode()


def clean_row(i: int) -> tuple[object, ...]:
    return i, 1577934245000000 + i % 1000 * 1000, Decimal(i % 100) / 4, f"n {i}"


@pytest.mark.parametrize(
    "bad",
    [
        b'{"i":"x"}',
        b'{"i":1.0}',
        b"{",
        b"",
        b"{}{}",
        b'{"t":5}',
        b'{"d":99999}',
        b'{"i":1,"i":2}',
        b"\xff",
        b'{"d":1.005}',
    ],
)
def test_one_record_among_many(bad: bytes) -> None:
    expected = [clean_row(i) for i in range(3000)]
    records = [clean(i) for i in range(3000)]
    alone = rows("json", CLEAN, [bad])
    for place in (0, 1500, 2999):
        mixed = [*records[:place], bad, *records[place:]]
        assert rows("json", CLEAN, [*mixed]) == [*expected[:place], *alone, *expected[place:]]


@pytest.mark.parametrize("every", [1, 2, 7, 50])
def test_bad_records_all_over(every: int) -> None:
    records = [b'{"i":"x","n":"bad"}' if i % every == 0 else clean(i) for i in range(2000)]
    expected = [(None, None, None, "bad") if i % every == 0 else clean_row(i) for i in range(2000)]
    assert rows("json", CLEAN, [*records]) == expected


def test_the_exact_path_sees_few_records_of_a_block_with_a_bad_one() -> None:
    records = [clean(i) for i in range(10_000)]
    for bad, most in ((b'{"i":"x"}', 1), (b'{"i":1.0}', 200)):
        some: Any = decoder(parse({"valueFormat": "json"}), CLEAN)
        seen: list[int] = []
        exact = some.exact
        some.exact = lambda found, exact=exact, seen=seen: seen.append(len(found)) or exact(found)
        some.decode(pa.array([*records[:5000], bad, *records[5000:]], pa.binary()))
        assert 1 <= sum(seen) <= most


def test_timestamps_as_seconds_keep_the_fast_path() -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("l", pa.list_(pa.timestamp("us", "UTC")))])
    records = [f'{{"t":{i},"l":[{i}]}}'.encode() for i in range(1000)]
    some: Any = decoder(parse({"valueFormat": "json"}), schema)
    columns, doubted = some.fast(pa.array(records))
    assert doubted is None
    assert plain(columns[0]) == [i * 10**6 for i in range(1000)]
    assert plain(columns[1]) == [[i * 10**6] for i in range(1000)]


def test_blocks_of_slices_and_no_records() -> None:
    schema = pa.schema([("a", pa.int32())])
    some = decoder(parse({"valueFormat": "json"}), schema)
    values = pa.array([f'{{"a":{i}}}'.encode() for i in range(10)])
    assert some.decode(values.slice(3, 4)).columns[0].to_pylist() == [3, 4, 5, 6]
    assert some.decode(values.slice(0, 0)).columns[0].to_pylist() == []
    assert some.decode(pa.nulls(2, pa.binary())).columns[0].to_pylist() == [None, None]


def test_both_paths_on_records_that_look_like_parts_of_each_other() -> None:
    """Records that together form as many objects as there are records."""
    schema = pa.schema([("a", pa.int32())])
    for records in (
        [b'{"a":1}{"a":2}', b""],
        [b'{"a":', b'{"a":1}}'],
        [b'{"a":1,"z":[{}', b'{"y":1}]}'],
        [b'{"a":1}{"a":2}', b'{"a":3}\x00}', b'{"a":4}'],
        [b'{"a":1,"z":"', b'"}'],
        [b'{"a":1} {"a":2}', b'{"a":3,', b'"b":4}'],
    ):
        assert both_roads("json", schema, records) < len(records)


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    schemas.flatmap(lambda s: st.tuples(st.just(s), st.lists(json_records(s, clean=True), min_size=1, max_size=10))),
    st.sampled_from(
        [
            {},
            {"timeZone": "Europe/Berlin"},
            {"timeZone": "+05:30", "allowNonNumericNumbers": "false"},
            {"dateFormat": "yyyy-MM-dd", "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSSXXX"},
        ]
    ),
)
def test_both_paths_agree(case: tuple[pa.Schema, list[bytes]], options: dict[str, str]) -> None:
    schema, records = case
    both_roads("json", schema, records, **options)


@pytest.mark.parametrize(
    "number", ["6.095316505258658e+59", "12.5E58", "1.5e45", "-9.9e70", f"{'1' * 30}.5e9", "1.25e1"]
)
def test_decimals_with_an_exponent(number: str) -> None:
    """pyarrow's reader gives 0.00 and others for the first ones."""
    inner = pa.struct([pa.field("d", pa.decimal128(6, 2))])
    schema = pa.schema([("d", pa.decimal128(6, 2)), ("s", inner)])
    records = [b'{"d": %b, "s": {"d": %b}}' % (text, text) for text in (number.encode(), b"0")]
    both_roads("json", schema, records)
    found = decoder(parse({"valueFormat": "json"}), schema).decode(pa.array(records, pa.binary()))
    assert found.columns[0].to_pylist() == [Decimal("12.50") if number == "1.25e1" else None, Decimal("0.00")]


@pytest.mark.parametrize(
    "number",
    [
        "1e-999999999",
        '"-1.5E-0999999999"',
        '"\\u0031e-999999999"',
        "0." + "0" * 300 + "1",
        f"0.{'1' * 16}e-99",
        "1e-115",
    ],
    ids=lambda number: number[:20],
)
def test_decimals_with_more_digits_than_arrow_can_shift(number: str) -> None:
    """pyarrow would read beyond a table of its own; the first ones ended the process."""
    schema = pa.schema([("a", pa.decimal128(38, 10)), ("id", pa.string())])
    records = [f'{{"a": {number} ,"id":"{i}"}}'.encode() for i in range(3)]
    assert rows("json", schema, records) == [(Decimal(0), str(i)) for i in range(3)]


def test_digits_around_an_e_in_a_text_keep_the_fast_path() -> None:
    schema = pa.schema([("a", pa.decimal128(10, 2)), ("id", pa.string())])
    texts = ["4f9e1234-9e45-4e12-8e-345-1e99ab12cdef", "9e12", "x1e-999999999"]
    records = [f'{{"id":"{text}x","a":1.5}}'.encode() for text in texts]
    assert both_roads("json", schema, records) == len(records)


def test_the_fast_path_takes_most_records() -> None:
    """Otherwise the property above would prove nothing."""
    flat = pa.schema([f for f in COLUMNS if f.name not in ("m", "ms")])
    found: list[bytes] = []

    @settings(max_examples=150, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(json_records(flat, text_of_all=False, damaged=False))
    def collect(record: bytes) -> None:
        found.append(record)

    collect()
    assert both_roads("json", flat, found) > len(found) / 4


def test_maps_take_the_exact_path() -> None:
    schema = pa.schema([("m", pa.map_(pa.string(), pa.list_(pa.map_(pa.string(), pa.date32())))), ("a", pa.int32())])
    records = [b'{"a":1,"m":{"x":[{"y":"2020-01-02"},null],"z":null}}', b'{"m":{}}', b"{}"]
    assert rows("json", schema, [*records]) == [
        ([("x", [[("y", 18263)], None]), ("z", None)], 1),
        ([], None),
        (None, None),
    ]


@pytest.mark.parametrize(
    "kind",
    [pa.null(), pa.duration("us"), pa.map_(pa.int32(), pa.string()), pa.timestamp("ns"), pa.uint8(), pa.large_string()],
)
def test_types_that_are_refused(kind: pa.DataType) -> None:
    for nested in (kind, pa.list_(kind), pa.struct([("x", kind)])):
        with pytest.raises(BacklogError, match="JSON cannot be decoded to"):
            decoded("json", pa.schema([("a", nested)]), [])
