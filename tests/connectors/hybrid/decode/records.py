"""Difficult records: malformed ones, and records that readers of the format read differently."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pyarrow as pa
from hypothesis import strategies as st

__all__ = ["COLUMNS", "CSV_COLUMNS", "csv_records", "json_records", "schemas"]

UTC = pa.timestamp("us", "UTC")

# One column of each kind that JSON is decoded to.
COLUMNS = pa.schema(
    [
        ("bool", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("money", pa.decimal128(6, 2)),
        ("long", pa.decimal128(38, 10)),
        ("whole", pa.decimal128(20, 0)),
        ("day", pa.date32()),
        ("at", UTC),
        ("local", pa.timestamp("us")),
        ("clock", pa.time64("ns")),
        ("s", pa.struct([("a", pa.int32()), ("t", UTC), ("s", pa.struct([("m", pa.decimal128(6, 2))]))])),
        ("l", pa.list_(pa.field("element", pa.int32()))),
        ("ls", pa.list_(pa.field("element", pa.struct([("a", pa.int32()), ("d", pa.date32())])))),
        ("ll", pa.list_(pa.field("element", pa.list_(pa.field("element", pa.float64()))))),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("ms", pa.map_(pa.string(), pa.struct([("a", pa.int32())]))),
    ]
)

# As words, which are easier to look over than lists of strings.
NUMBERS = (  # noqa: SIM905
    "0 -0 1 -1 127 128 255 256 -128 -129 32767 32768 -32769 2147483647 2147483648 -2147483649 9223372036854775807"
    " 9223372036854775808 -9223372036854775808 -9223372036854775809 123456789012345678901234567890 1.0 1.5 -0.0 0.1 1e2"
    " 1E-3 1e400 -1e400 1e-400 4.9e-324 1.7976931348623159e308 16777217 16777217.0000001 1.005 1.015 -1.005 9999.99"
    " 9999.994 9999.995 10000 0.5 2.5 99999999999999999999 99999999999999999999.5 1e19 1e28 1e30 0e400 3.4028236e38"
    " 1234567890.12345678901234567890 1000000000000000000000000000000e-28 12345678901234567890123456.1234567891"
).split()
TEXTS = (  # noqa: SIM905
    "x é 😀 NaN Infinity -Infinity +INF INF nan true false null 1 -1 1.5 +1 1e2 1,234.5 .5 5. 1_0 0x1 １"
    " aGk= aGk aGkKaGk= -_-_ a=Gk +/+/ 2020-01-02 2020-1-2 2020-01 2020 20200102 18262 2020-02-30 2020-02-29 0000-01-01"
    " -0001-01-01 10000-01-01 2020-01-02T03:04:05Z 2020-01-02T03:04:05.123456789+02:00 2020-01-02T03:04:05.1"
    " 2020-01-02T03:04 2020-01-02T03:04:05+18:00 2020-01-02T03:04:05+18:01 2020-01-02T03:04:05-0530"
    " 2020-01-02T03:04:05CET 2020-01-02T24:00:00 2020-01-02T23:59:60Z 1969-12-31T23:59:59.999999Z 2020-01-02T03:04:05z"
    " 2020-01-02T03:04:05.GMT-00:00 1883-11-18T12:03:57America/New_York 2020-03-29T02:30:00Europe/Berlin"
    " 9999-12-31T23:59:59.999999Z 294247-01-10T04:00:54.775808Z 2020-01-02GMT 2020-01-02T03:04:05.123GMT"
).split()
TEXTS += [
    "",
    " ",
    "a b",
    "2020-01-02 03:04:05",
    " 2020-01-02 ",
    "2020-01-02 03:04:05 +02:00",
    "2020-01-02 03:04:05 PST",
]
TEXTS += ["a\nb", "a\tb", 'say "x"', "back\\slash", "\x7f", "\u2028", "\x00", "\ufeff", "aGk= ", "aG k="]
# Parts of records, each valid in some place and wrong in most.
BROKEN = list("{}[],:\"'-\\#\x00\x01\ufeff")
BROKEN += [
    "tru",
    "nul",
    "Nan",
    "Inf",
    "INF",
    "NaN",
    "+1",
    "01",
    "1.",
    ".5",
    "1x",
    "\\x",
    '"\\ud800"',
    "/*c*/",
    '{"a":1}',
]


def _escaped(text: str) -> str:
    """A JSON string, all of it in escapes."""
    data = text.encode("utf-16-be", "surrogatepass")
    return '"' + "".join(f"\\u{data[i : i + 2].hex()}" for i in range(0, len(data), 2)) + '"'


texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=6))
strings = st.one_of(texts.map(lambda t: json.dumps(t, ensure_ascii=False)), texts.map(_escaped))
numbers = st.one_of(
    st.sampled_from(NUMBERS), st.integers(-(2**70), 2**70).map(str), st.floats(allow_nan=False).map(repr)
).filter(lambda n: "inf" not in n)
anything = st.recursive(
    st.one_of(numbers, strings, st.sampled_from(["true", "false", "null"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.lists(st.tuples(st.sampled_from("abst"), inner), max_size=3).map(
            lambda items: "{" + ", ".join(f'"{k}":{v}' for k, v in items) + "}"
        ),
    ),
    max_leaves=4,
)


def _quoted(choices: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return choices.map(json.dumps)


def _fitting(type: pa.DataType, text_of_all: bool) -> st.SearchStrategy[str]:
    """JSON for a column: mostly values that fit, in various forms."""
    likely: st.SearchStrategy[str]
    if pa.types.is_struct(type):
        likely = _objects(list(type), text_of_all)
    elif pa.types.is_list(type):
        likely = st.lists(_values(type.value_type, text_of_all), max_size=3).map(lambda items: f"[{', '.join(items)}]")
    elif pa.types.is_map(type):
        items = st.tuples(st.sampled_from(["k", "l", "", "é"]), _values(type.item_type, text_of_all))
        likely = st.lists(items, max_size=3).map(lambda items: "{" + ",".join(f'"{k}":{v}' for k, v in items) + "}")
    elif pa.types.is_boolean(type):
        likely = st.sampled_from(["true", "false"])
    elif pa.types.is_integer(type):
        likely = st.integers(-(2 ** (type.bit_width - 1)), 2 ** (type.bit_width - 1) - 1).map(str)
    elif pa.types.is_floating(type):
        likely = st.one_of(numbers, st.sampled_from(['"NaN"', '"-INF"', "NaN", "-Infinity", "+INF"]))
    elif pa.types.is_decimal(type):
        likely = st.one_of(numbers, _quoted(numbers), st.decimals(-9999, 9999, places=3).map(str))
    elif pa.types.is_date(type):
        likely = _quoted(st.dates().map(str))
    elif pa.types.is_timestamp(type):
        likely = st.one_of(_quoted(st.datetimes().map(str)), _quoted(st.datetimes().map(lambda t: f"{t}Z")))
        if type.tz is not None:
            likely = st.one_of(likely, st.integers(-(2**40), 2**40).map(str))
    elif pa.types.is_time(type):
        likely = _quoted(st.times().map(str))
    elif pa.types.is_binary(type):
        likely = _quoted(st.binary(max_size=5).map(lambda b: base64.b64encode(b).decode()))
    else:
        likely = strings
    return likely


def _values(type: pa.DataType, text_of_all: bool) -> st.SearchStrategy[str]:
    likely = _fitting(type, text_of_all)
    if pa.types.is_string(type) and not text_of_all:
        return st.one_of(likely, st.just("null"))
    # About one in ten is anything at all.
    return st.integers(0, 11).flatmap(lambda n: {11: anything, 10: st.just("null")}.get(n, likely))


def _objects(fields: list[pa.Field], text_of_all: bool) -> st.SearchStrategy[str]:
    def member(field: pa.Field) -> st.SearchStrategy[str]:
        return _values(field.type, text_of_all).map(lambda value: f"{json.dumps(field.name)}: {value}")

    some = st.lists(st.sampled_from(fields), max_size=4, unique_by=lambda f: f.name)
    chosen = (some if len(fields) > 4 else st.just(fields)).flatmap(
        lambda fs: st.tuples(*(member(f) for f in fs)).map(list)
    )
    more = st.lists(st.builds('"{}":{}'.format, st.sampled_from(["zz", "", "A", fields[0].name]), anything), max_size=1)
    return st.builds(lambda a, b: "{" + ", ".join(a + b) + "}", chosen, more)


def _damaged(text: str, place: int, part: str, how: int) -> str:
    at = place % (len(text) + 1)
    ways: list[Callable[[], str]] = [
        lambda: text[:at],
        lambda: text[:at] + part + text[at:],
        lambda: text[:at] + text[at + 1 :],
        lambda: text + part,
        lambda: part + text,
        lambda: text.replace('"', "'"),
        lambda: text + text,
    ]
    return ways[how % len(ways)]()


def json_records(
    schema: pa.Schema, *, text_of_all: bool = True, damaged: bool = True, clean: bool = False
) -> st.SearchStrategy[bytes]:
    """Records for a schema.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns.
    text_of_all : bool
        Whether columns of strings may get other values.
    damaged : bool
        Whether some are no JSON.
    clean : bool
        Whether most are the same in shape, so that the fast path takes them.
    """
    good = _objects(list(schema), text_of_all)
    odd = st.one_of(
        st.sampled_from(["", " ", "null", "5", "[]", '[{"i32": 1}]', "{}", " {} ", '{"i32":1}\n', "\ufeff{}", "{}{}"]),
        st.builds(_damaged, good, st.integers(0, 200), st.sampled_from(BROKEN), st.integers(0, 6)),
    )
    invalid = good.map(lambda t: t.encode().replace(b'"', b'"\xff', 3))
    last = 60 if clean else 8
    return st.integers(0, last).flatmap(
        lambda n: (
            (odd.map(str.encode) if n == last else invalid if n == last - 1 else good.map(str.encode))
            if damaged
            else good.map(str.encode)
        )
    )


CSV_COLUMNS = pa.schema([f for f in COLUMNS if not pa.types.is_nested(f.type) and not pa.types.is_binary(f.type)])


def _csv_field(type: pa.DataType) -> st.SearchStrategy[str]:
    fitting = _fitting(type, True).map(lambda t: json.loads(t) if t.startswith('"') else t)
    odd = st.sampled_from([*TEXTS, *NUMBERS, "null", "-", "1d", "0x1p3", "1f ", "TRUE", "inf", "Inf", "-Inf"])
    return st.integers(0, 11).flatmap(lambda n: odd if n == 11 else texts if n == 10 else fitting)


def _csv_written(text: str, sep: str, how: int) -> str:
    """A field without quotes, in quotes, or in broken quotes."""
    inside = text.replace("\\", "\\\\").replace('"', '\\"')
    ways = [text, f'"{inside}"', f'"{text}"', f'"{inside}" ', f'"{inside}"x', f'"{inside}', f'{text}"', f'"{inside}""']
    safe = '"' not in text and sep not in text
    return ways[how] if how < len(ways) else text if safe else ways[1]


def csv_records(schema: pa.Schema, *, sep: str = ",", clean: bool = False) -> st.SearchStrategy[bytes]:
    """Records for a schema. With ``clean`` most of them are regular."""

    def field(column: pa.Field) -> st.SearchStrategy[str]:
        return st.builds(_csv_written, _csv_field(column.type), st.just(sep), st.integers(0, 200 if clean else 40))

    fields = st.tuples(*(field(column) for column in schema)).map(list)

    def record(fields: list[str], count: int | None, end: str) -> bytes:
        cut = fields[:count] if count is None or count <= len(fields) else [*fields, "more"]
        return (sep.join(cut) + end).encode()

    ends = st.sampled_from([""] * 30 + ["\n", "\r\n", " ", '"'])
    counts = st.sampled_from([None] * (60 if clean else 10) + list(range(len(schema) + 2)))
    whole = st.builds(record, fields, counts, ends)
    odd = st.sampled_from(["", " ", sep, '"', '""', "\n", "\ufeff", sep * len(schema), '"' + sep]).map(str.encode)
    invalid = whole.map(lambda r: r[:5] + b"\xff" + r[5:])
    last = 60 if clean else 20
    return st.integers(0, last).flatmap(lambda n: {last: odd, last - 1: invalid}.get(n, whole))


scalars = st.sampled_from([f.type for f in COLUMNS if not pa.types.is_nested(f.type)])
types = st.recursive(
    scalars,
    lambda inner: st.one_of(
        inner.map(lambda t: pa.list_(pa.field("element", t))),
        st.lists(inner, min_size=1, max_size=3).map(lambda ts: pa.struct([(f"a{i}", t) for i, t in enumerate(ts)])),
    ),
    max_leaves=3,
)
schemas = st.lists(types, min_size=1, max_size=5).map(lambda ts: pa.schema([(f"c{i}", t) for i, t in enumerate(ts)]))
