"""Records of CSV. Expected values are Spark 4.2's, by ``from_csv``, unless a test says otherwise."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode import decoder, parse
from backlog_spark.errors import BacklogError

from .plain import both_roads, decoded, rows
from .records import CSV_COLUMNS, csv_records, schemas

CORRUPT = pa.field("_corrupt_record", pa.string())
ABC = pa.schema([("a", pa.string()), ("b", pa.string()), ("c", pa.int32()), CORRUPT])

# The columns a STRING, b STRING, c INT, and whether the record is malformed.
RECORDS: list[tuple[str, str | None, str | None, int | None, bool]] = [
    ("x,y,1", "x", "y", 1, False),
    ("x,y", "x", "y", None, True),
    ("x", "x", None, None, True),
    ("", None, None, None, False),
    ("x,y,1,2", "x", "y", 1, True),
    ("x,y,z", "x", "y", None, True),
    ("x,y,", "x", "y", None, False),
    ("x,,1", "x", None, 1, False),
    (",,", None, None, None, False),
    (",", None, None, None, True),
    ('"x","y",1', "x", "y", 1, False),
    ('"x,q","y",1', "x,q", "y", 1, False),
    ('"x""q",y,1', '"x""q"', "y", 1, False),
    ('"x\\"q",y,1', 'x"q', "y", 1, False),
    ('"x\\\\",y,1', "x\\", "y", 1, False),
    ("x\\,y,y,1", "x\\", "y", None, True),
    ('x\\"z,y,1', 'x\\"z', "y", 1, False),
    ('x"y,z,1', 'x"y', "z", 1, False),
    ('"x"y,z,1', '"x"y', "z", 1, False),
    ('"x" ,z,1', "x", "z", 1, False),
    ('"x,z,1', "x,z,1", None, None, True),
    (" x , y , 1 ", " x ", " y ", None, True),
    (' "x",y,1', ' "x"', "y", 1, False),
    ("x,y,+1", "x", "y", 1, False),
    ("x,y,1.0", "x", "y", None, True),
    ("x,y,2147483648", "x", "y", None, True),
    ('"",y,1', None, "y", 1, False),
    ('x,y,""', "x", "y", None, False),
    ("x\ny,z,1", "x\ny", "z", 1, False),
    ('"x\ny",z,1', "x\ny", "z", 1, False),
    ("x,y\r,1", "x", "y\r", 1, False),
    ("#x,y,1", "#x", "y", 1, False),
    ('x,y,"1"', "x", "y", 1, False),
    ('"x""",y,1', 'x""', "y", 1, False),
    ('"x\\q",y,1', "x\\q", "y", 1, False),
    ('"x\\\\"q",y,1', '"x\\"q"', "y", 1, False),
    ("\ufeffx,y,1", "\ufeffx", "y", 1, False),
    ("x\x00,y,1", "x\x00", "y", 1, False),
    ('"', '"', None, None, True),
    ('""', None, None, None, True),
    ('"""', '"', None, None, True),
    ('"a"b"c",y,1', '"a"b"c"', "y", 1, False),
    ('"a,b"c,d",y,1', '"a,b"c', 'd"', None, True),
    ("x,y,１", "x", "y", 1, False),
    ("x,y,1,", "x", "y", 1, True),
    ('"x\\', "x", None, None, True),
    ('"x"\n,y,1', "x", "y", 1, False),
    ('""x,y,1', '""x', "y", 1, False),
    ('"" ,y,1', None, "y", 1, False),
    ('"\\"",y,1', '"', "y", 1, False),
    ('"\\\\\\"",y,1', '\\"', "y", 1, False),
    ("a\\\\b,y,1", "a\\\\b", "y", 1, False),
    ('"a"",y,1', 'a"', "y", 1, False),
    ('"a""b,y,1', '"a""b', "y", 1, False),
    (" ", " ", None, None, True),
]


@pytest.mark.parametrize(("record", "a", "b", "c", "bad"), RECORDS, ids=[repr(row[0]) for row in RECORDS])
def test_records(record: str, a: str | None, b: str | None, c: int | None, bad: bool) -> None:
    assert rows("csv", ABC, [record.encode()]) == [(a, b, c, record if bad else None)]


def test_records_in_one_block_do_not_change_each_other() -> None:
    records = [row[0].encode() for row in RECORDS]
    expected = [(a, b, c, record if bad else None) for record, a, b, c, bad in RECORDS]
    assert rows("csv", ABC, [*records * 20]) == expected * 20


@pytest.mark.parametrize(
    ("record", "shown"), [("x,y,1\n", "x,y,1"), ("x,y,1\r\n", "x,y,1"), ("\r\n", ""), ("x\n\n", "x\n"), ("x\r", "x\r")]
)
def test_the_end_of_a_line_is_not_shown(record: str, shown: str) -> None:
    assert rows("csv", ABC, [record.encode()])[0][3] == shown


def test_an_escape_after_the_closing_quote() -> None:
    """By hand: Spark's parser mixes such a field up with the next."""
    assert rows("csv", ABC, [b'"x"\\"y",z,1', b'"x"\\,z,1']) == [('"x"\\"y"', "z", 1, None), ('"x"\\', "z", 1, None)]


# Text, as tinyint, bigint, float, double, boolean, decimal(6,2). What is no such value is None.
VALUES: list[tuple[str, int | None, int | None, str | None, str | None, bool | None, str | None]] = [
    ("1", 1, 1, "1.0", "1.0", None, "1.00"),
    ("+1", 1, 1, "1.0", "1.0", None, "1.00"),
    ("128", None, 128, "128.0", "128.0", None, "128.00"),
    (" 1", None, None, "1.0", "1.0", None, None),
    ("1e2", None, None, "100.0", "100.0", None, "100.00"),
    ("NaN", None, None, "nan", "nan", None, None),
    ("Inf", None, None, "inf", "inf", None, None),
    ("-Inf", None, None, "-inf", "-inf", None, None),
    ("+Infinity", None, None, "inf", "inf", None, None),
    ("nan", None, None, None, None, None, None),
    ("true", None, None, None, None, True, None),
    ("FALSE", None, None, None, None, False, None),
    ("1d", None, None, "1.0", "1.0", None, None),
    ("0x1p3", None, None, "8.0", "8.0", None, None),
    ("0x10", None, None, None, None, None, None),
    ("1_0", None, None, None, None, None, None),
    (".5", None, None, "0.5", "0.5", None, "0.50"),
    ("1e400", None, None, "inf", "inf", None, None),
    ("１", 1, 1, None, None, None, "1.00"),
    ("99999", None, 99999, "99999.0", "99999.0", None, None),
    ("1.005", None, None, "1.0049999952316284", "1.005", None, "1.01"),
    ("-0", 0, 0, "-0.0", "-0.0", None, "0.00"),
]


@pytest.mark.parametrize("expected", VALUES, ids=[row[0] for row in VALUES])
def test_values(expected: tuple[Any, ...]) -> None:
    kinds = [pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.decimal128(6, 2)]
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])
    text, *values, money = expected
    record = ",".join([text] * 6).encode()
    assert rows("csv", schema, [record]) == [(*values, None if money is None else Decimal(money))]


def test_quotes_around_a_number_with_commas() -> None:
    assert rows("csv", pa.schema([("a", pa.decimal128(6, 2))]), [b'"1,234.5"']) == [(Decimal("1234.5"),)]


def test_null_value() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int32())])
    records: list[bytes | None] = [b"-,-", b'"-",1', b",", b'"",1', b"x,"]
    expected = [(None, None), (None, 1), (None, None), ("", 1), ("x", None)]
    assert rows("csv", schema, records, nullValue="-") == expected


AB = pa.schema([("a", pa.string()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("options", "record", "expected"),
    [
        ({"escape": '"'}, '"x""y",b', ('x"y', "b")),
        ({"escape": '"'}, '"""x""",b', ('"x"', "b")),
        ({"escape": '"'}, '"""",b', ('"', "b")),
        ({"escape": '"'}, '"",b', (None, "b")),
        ({"escape": '"'}, '"x\\",b', ("x\\", "b")),
        ({"escape": '"'}, '"x"y",b', ('"x"y"', "b")),
        ({"escape": '"'}, '"x""y,b', ('x"y,b', None)),
        ({"escape": ""}, '"x""y",b', ('"x""y"', "b")),
        ({"escape": ""}, '"x\\"y",b', ('"x\\"y"', "b")),
        ({"quote": ""}, '"x,"y"', ('"x', '"y"')),
        ({"quote": "\0"}, '"x,"y"', ('"x', '"y"')),
        ({"quote": "'", "sep": "§"}, "'x§z'§y", ("x§z", "y")),
        ({"sep": "||"}, 'x|y||"z||w"', ("x|y", "z||w")),
        ({"sep": "\\t"}, "x\ty", ("x", "y")),
        ({"delimiter": ";"}, "x;y,z", ("x", "y,z")),
        ({"sep": "."}, "x.y", ("x", "y")),
        ({"sep": "|"}, "x|y", ("x", "y")),
        ({"sep": "]", "quote": "^", "escape": "-"}, "^x]-^^]y", ("x]^", "y")),
    ],
)
def test_separators_quotes_and_escapes(options: dict[str, str], record: str, expected: tuple[Any, ...]) -> None:
    assert rows("csv", AB, [record.encode()], **options) == [expected]
    assert rows("csv", AB, [record.encode()] * 50, **options) == [expected] * 50


def test_one_record_among_many() -> None:
    schema = pa.schema([("a", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("n", pa.string())])
    records = [f'{i},2020-01-02 03:04:05,"name, {i}"'.encode() for i in range(3000)]
    expected = [(i, 1577934245000000, f"name, {i}") for i in range(3000)]
    for bad in (b"x,y", b"", b"\xff,,", b"1,2020-02-30 00:00:00,z", b'"', b"\n,,", b",,,", b'1,,"x'):
        alone = rows("csv", schema, [bad])
        for place in (0, 1500, 3000):
            mixed = [*records[:place], bad, *records[place:]]
            assert rows("csv", schema, [*mixed]) == [*expected[:place], *alone, *expected[place:]]


def test_the_exact_path_sees_only_bad_records() -> None:
    some: Any = decoder(parse({"valueFormat": "csv"}), pa.schema([("a", pa.int64()), ("n", pa.string())]))
    seen: list[int] = []
    exact = some.exact
    some.exact = lambda found: seen.append(len(found)) or exact(found)
    records = [f"{i},n{i}".encode() for i in range(10_000)]
    records[5000:5000] = [b"x,y", b"a,b,c"]
    some.decode(pa.array(records))
    assert seen == [2]


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(
    schemas.filter(lambda s: not any(pa.types.is_nested(f.type) for f in s)).flatmap(
        lambda s: st.tuples(st.just(s), st.lists(csv_records(s, clean=True), min_size=1, max_size=10))
    ),
    st.sampled_from(
        [
            {},
            {"timeZone": "Europe/Berlin", "escape": '"'},
            {"nullValue": "-", "quote": ""},
            {"dateFormat": "yyyy-MM-dd", "timestampFormat": "yyyy-MM-dd HH:mm:ss"},
        ]
    ),
)
def test_both_paths_agree(case: tuple[pa.Schema, list[bytes]], options: dict[str, str]) -> None:
    schema, records = case
    both_roads("csv", schema, records, **options)


def test_the_fast_path_takes_most_records() -> None:
    """Otherwise the property above would prove nothing."""
    found: list[bytes] = []
    some = pa.schema([f for f in CSV_COLUMNS if f.name in ("text", "day", "at", "money", "i64", "bool")])

    @settings(max_examples=150, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(csv_records(some, clean=True))
    def collect(record: bytes) -> None:
        found.append(record)

    collect()
    assert both_roads("csv", some, found) > len(found) / 10


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.null(), pa.duration("us")])
def test_types_that_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(BacklogError, match="CSV is not decoded to"):
        decoded("csv", pa.schema([("a", kind)]), [])
