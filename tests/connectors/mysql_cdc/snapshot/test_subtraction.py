"""Subtracting changes from a chunk's rows, with any division into pieces."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.mysql_cdc.output.rows import rows_to_table
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.schema.types import Column
from backlog_spark.connectors.mysql_cdc.server.bounded import PIECE_BYTES, pieces
from backlog_spark.connectors.mysql_cdc.snapshot.subtraction import Surplus, TouchedKeys

COLUMNS = (
    Column("a", "int", "int", nullable=True),
    Column("b", "varchar", "varchar(9)", nullable=True, charset="utf8mb4"),
    Column("at", "datetime", "datetime", nullable=True),
    Column("x", "double", "double", nullable=True),
)
ROWS = st.tuples(
    st.none() | st.integers(0, 3),
    st.none() | st.sampled_from(["", "x", "y"]),
    st.none() | st.sampled_from([0, 1_795_000_000_000_000]),
    # One number, two in Arrow. Of a FLOAT the server tells but one of them.
    st.sampled_from([0.0, -0.0]),
)
SIZES = st.integers(1, 9)


def cut(rows: list[Any], size: int) -> list[list[Any]]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def table_of(schema: TableSchema, rows: list[Any]) -> Any:
    return rows_to_table(schema, [list(row) for row in rows])


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@given(st.lists(ROWS, max_size=40), st.dictionaries(ROWS, st.integers(1, 4), max_size=30), SIZES, SIZES)
def test_rows_are_taken_out_as_often_as_they_count(
    rows: list[Any], counts: dict[Any, int], of_rows: int, of_counts: int
) -> None:
    schema = TableSchema("d", "t", COLUMNS)
    surplus = Surplus(schema, cut([(list(row), n) for row, n in counts.items()], of_counts))
    stay = [row for piece in cut(rows, of_rows) for row in rows_of(surplus.taken_out(table_of(schema, piece)))]
    surplus.close()
    given_rows = Counter(rows_of(table_of(schema, rows)))
    away: Counter[Any] = Counter()
    for row, n in counts.items():
        away[rows_of(table_of(schema, [row]))[0]] += n
    assert Counter(stay) == given_rows - away
    assert surplus.left() == (away - given_rows).total()


@pytest.mark.parametrize("key", [("a",), ("b",), ("a", "b")])
@given(st.lists(ROWS, max_size=40), st.lists(ROWS, max_size=30), SIZES, SIZES)
def test_rows_of_keys_are_taken_out(
    key: tuple[str, ...], rows: list[Any], gone: list[Any], of_rows: int, of_keys: int
) -> None:
    schema = TableSchema("d", "t", COLUMNS, key=key)
    at = schema.indexes(key)
    rows = [row for row in rows if None not in row[:2]]
    keys = [tuple(row[i] for i in at) for row in gone if None not in row[:2]]
    touched = TouchedKeys(schema, cut(keys, of_keys))
    stay = [row for piece in cut(rows, of_rows) for row in rows_of(touched.taken_out(table_of(schema, piece)))]
    touched.close()
    assert stay == rows_of(table_of(schema, [row for row in rows if tuple(row[i] for i in at) not in keys]))


@given(st.lists(st.integers(0, PIECE_BYTES), max_size=30), st.integers(1, 10))
def test_a_piece_ends_where_it_is_full(sizes: list[int], most: int) -> None:
    found = list(pieces(sizes, lambda size: size, most))
    assert [size for piece in found for size in piece] == sizes
    assert all(piece for piece in found)
    for piece in found:
        assert len(piece) <= most
        assert sum(piece[:-1]) < PIECE_BYTES
    for piece in found[:-1]:
        assert len(piece) == most or sum(piece) >= PIECE_BYTES
