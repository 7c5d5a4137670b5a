"""Key values as SQL, JSON and order bytes: properties of all key types."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.mysql_cdc.schema.key_order import OrderBytes
from backlog_spark.connectors.mysql_cdc.schema.keys import (
    Key,
    key_from_json,
    key_kind,
    key_range,
    key_to_json,
    order_encoder,
    text_literal,
    weight_order,
)
from backlog_spark.connectors.mysql_cdc.schema.types import Column
from backlog_spark.errors import BacklogError

BIG = Column("b", "bigint", "bigint(20) unsigned", nullable=False)
DECIMAL = Column("d", "decimal", "decimal(38,10)", nullable=False, precision=38, scale=10)
BYTES = Column("v", "varbinary", "varbinary(9)", nullable=False)
TEXT = Column("t", "varchar", "varchar(9)", nullable=False, charset="latin1", collation="latin1_swedish_ci")
DAY = Column("day", "date", "date", nullable=False)
MOMENT = Column("at", "timestamp", "timestamp(6)", nullable=False)

BIGS = st.integers(-(2**63), 2**64 - 1)
DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1)
DAYS = st.dates().map(lambda d: d.toordinal() - dt.date(1970, 1, 1).toordinal())
# Few bytes, so that one value often begins another
SHORT = st.lists(st.sampled_from([0, 1, 2, 254, 255]), max_size=5).map(bytes)


@given(st.tuples(BIGS, DECIMALS, SHORT, DAYS, SHORT), st.tuples(BIGS, DECIMALS, SHORT, DAYS, SHORT))
def test_order_bytes_compare_as_the_values_do(a: Any, b: Any) -> None:
    columns = (BIG, DECIMAL, BYTES, DAY, BYTES)
    for n in range(1, 6):
        orders = OrderBytes(columns[-n:])
        x, y = a[-n:], b[-n:]
        assert (orders.known(x) < orders.known(y)) == (x < y)
        assert (orders.known(x) == orders.known(y)) == (x == y)


@given(st.one_of(st.none(), BIGS), st.one_of(st.none(), BIGS))
def test_null_is_before_every_value(a: int | None, b: int | None) -> None:
    column = Column("b", "bigint", "bigint(20)", nullable=True)
    low, high = (((x is not None), x or 0) for x in (a, b))
    assert (order_encoder(column)(a) < order_encoder(column)(b)) == (low < high)


@given(SHORT, SHORT, st.sampled_from([b"\x01", b"\x02\x01"]))
def test_padded_weights_compare_as_if_followed_by_blanks_without_end(a: bytes, b: bytes, space: bytes) -> None:
    a, b = (x[: len(x) // len(space) * len(space)] for x in (a, b))
    endless = [x + space * 20 for x in (a, b)]
    x, y = (weight_order(w, space) for w in (a, b))
    length = min(map(len, endless))
    assert (x < y) == (endless[0][:length] < endless[1][:length])
    assert (x == y) == (endless[0][:length] == endless[1][:length])
    assert x == y or not (x.startswith(y) or y.startswith(x))


@given(SHORT, SHORT, SHORT, SHORT)
def test_weights_order_parts_of_a_key_one_after_the_other(a: bytes, b: bytes, c: bytes, d: bytes) -> None:
    assert (weight_order(a, b"") + weight_order(b, b"") < weight_order(c, b"") + weight_order(d, b"")) == (
        (a, b) < (c, d)
    )


PARTS = st.one_of(BIGS, DECIMALS, st.text(), st.binary())


@given(st.one_of(st.none(), st.lists(PARTS, min_size=1, max_size=4).map(tuple)))
def test_a_key_survives_json(key: Key | None) -> None:
    back = key_from_json(json.loads(json.dumps(key_to_json(key))))
    assert back == key
    assert [type(part) for part in back or ()] == [type(part) for part in key or ()]


def test_keys_in_offsets_are_small_and_a_single_integer_is_bare() -> None:
    assert key_to_json((2**64 - 1,)) == 18446744073709551615
    assert key_to_json((7, "é", b"\0\xff")) == [7, "é", {"hex": "00ff"}]
    assert key_to_json(("a",)) == ["a"]
    assert key_from_json(100) == (100,)  # as offsets had it when only integers could be keys


@given(DECIMALS, DAYS, st.datetimes(min_value=dt.datetime(1, 1, 1)))
def test_what_the_server_prints_of_a_literal_is_read_back(unscaled: int, days: int, moment: dt.datetime) -> None:
    micros = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    for column, value in ((DECIMAL, unscaled), (DAY, days), (MOMENT, micros), (BIG, unscaled % 2**64)):
        kind = key_kind(column)
        assert kind is not None
        printed = kind.literal(column, value).removeprefix("DATE").removeprefix("TIMESTAMP").strip("'")
        assert kind.parse(column, printed) == value


def test_literals() -> None:
    def literal(column: Column, value: object) -> str:
        kind = key_kind(column)
        assert kind is not None
        return kind.literal(column, value)

    assert literal(DECIMAL, -5) == "-0.0000000005"
    assert literal(BIG, 2**64 - 1) == "18446744073709551615"
    assert literal(DAY, 0) == "DATE'1970-01-01'"
    assert literal(MOMENT, 1) == "TIMESTAMP'1970-01-01 00:00:00.000001'"
    assert literal(BYTES, b"'\0") == "x'2700'"
    assert text_literal(TEXT, "'é") == "CONVERT(_utf8mb4 x'27c3a9' USING latin1) COLLATE latin1_swedish_ci"


def test_composite_keys_are_compared_column_by_column() -> None:
    a, b = Column("a", "int", "int(11)", nullable=False), Column("b", "int", "int(11)", nullable=False)
    assert key_range((a, b), (1, 2), None) == " WHERE `a` >= 1 AND (`a` > 1 OR (`a` = 1 AND `b` > 2))"
    assert key_range((a, b), None, (3, 4)) == " WHERE `a` <= 3 AND (`a` < 3 OR (`a` = 3 AND `b` <= 4))"
    assert key_range((), None, None) == ""


SMALL = st.integers(-2, 2)
KEYS = st.one_of(st.none(), st.tuples(SMALL, SMALL, SMALL))


@given(st.integers(1, 3), st.sets(st.tuples(SMALL, SMALL, SMALL)), KEYS, KEYS)
def test_a_range_holds_the_keys_after_the_first_up_to_the_last(n: int, keys: set[Any], first: Any, last: Any) -> None:
    columns = [Column(name, "int", "int(11)", nullable=False) for name in "abc"[:n]]
    low, high = (None if key is None else key[:n] for key in (first, last))
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (a, b, c)")
    database.executemany("INSERT INTO t VALUES (?, ?, ?)", keys)
    found = database.execute("SELECT * FROM t" + key_range(columns, low, high)).fetchall()
    database.close()
    assert set(found) == {key for key in keys if (low is None or key[:n] > low) and (high is None or key[:n] <= high)}


@given(st.sets(st.one_of(st.none(), SMALL)), st.lists(SMALL, unique=True).map(sorted))
def test_every_row_is_in_one_chunk_also_those_without_a_value(values: set[int | None], ends: list[int]) -> None:
    column = Column("a", "int", "int(11)", nullable=True)
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (a)")
    database.executemany("INSERT INTO t VALUES (?)", [(v,) for v in values])
    bounds: list[Key | None] = [None, *((end,) for end in ends), None]
    found: list[Any] = []
    for first, last in itertools.pairwise(bounds):
        found += [row[0] for row in database.execute("SELECT a FROM t" + key_range([column], first, last))]
    database.close()
    assert len(found) == len(values)
    assert set(found) == values


def test_a_zero_date_in_a_key_is_refused() -> None:
    with pytest.raises(BacklogError, match="'day' holds a zero or partial date"):
        order_encoder(DAY)(None)
