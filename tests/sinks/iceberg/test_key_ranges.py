"""Files that may hold keys of a batch: never too few, and only those whose bounds do not exclude them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from backlog_spark.sinks.iceberg.columns import arrow_schema, conformed
from backlog_spark.sinks.iceberg.files import TableFiles
from backlog_spark.sinks.iceberg.key_ranges import KeyRanges
from tests.sinks.iceberg.places import created, table_at


def in_files(path: Path, column: pa.DataType, files: list[list[Any]]) -> None:
    """A table with a file for each list."""
    table = created(path, pa.schema([("k", column)]))
    for values in files:
        made = TableFiles.of(table).write(pa.table({"k": pa.array(values, column)}))
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for file in made:
                append.append_data_file(file)


def found(path: Path, keys: list[Any], column: pa.DataType, *, only_ends: bool = False) -> list[int]:
    """The numbers of the files, in the order of their rows' first value."""
    table = table_at(path)
    wanted = conformed(pa.table({"k": pa.array(keys, column)}), arrow_schema(table.schema()))
    tasks = KeyRanges(table.schema(), wanted, only_ends=only_ends).candidates(table)
    order = [snapshot.snapshot_id for snapshot in table.snapshots()]
    entries = {e["data_file"]["file_path"]: e["snapshot_id"] for e in table.inspect.entries().to_pylist()}
    return sorted(order.index(entries[task.file.file_path]) for task in tasks)


def day(number: int) -> datetime.date:
    return datetime.date(2024, 1, number)


CASES = {
    "integers": (pa.int64(), [[1, 10], [11, 20], [21, 30, None]], [[(5, 25), [0, 2]], [(10, 11), [0, 1]], [(31,), []]]),
    "a gap between the ends": (pa.int32(), [[1, 2], [5, 6], [9, 10]], [[(1, 10), [0, 2]], [(6,), [1]]]),
    "null": (pa.int64(), [[1], [None, 5], [None]], [[(None,), [1, 2]], [(None, 1), [0, 1, 2]], [(5,), [1]]]),
    "texts beyond 16 characters": (
        pa.string(),
        [["a" * 20 + "b", "a" * 20 + "d"], ["b"]],
        [[("a" * 20 + "c",), [0]], [("a" * 16 + "b",), [0]], [("aa",), []], [("c",), []]],
    ),
    "bytes": (pa.binary(), [[b"\x00", b"\x7f"], [b"\x80", b"\xff"]], [[(b"\x80\x01",), [1]], [(b"\x01",), [0]]]),
    "decimals": (
        pa.decimal128(20, 0),
        [[Decimal(1)], [Decimal(2**63), Decimal(2**64 - 1)]],
        [[(Decimal(2**63 + 5),), [1]], [(Decimal(1),), [0]], [(Decimal(7),), []]],
    ),
    "days": (pa.date32(), [[day(1), day(5)], [day(6), day(9)]], [[(day(3),), [0]], [(day(5), day(6)), [0, 1]]]),
    "moments": (
        pa.timestamp("us", "UTC"),
        [[datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)], [datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)]],
        [[(datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),), [1]]],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_files_by_bounds(tmp_path: Path, case: str) -> None:
    column, files, expected = CASES[case]
    in_files(tmp_path, column, files)
    for keys, numbers in expected:
        assert found(tmp_path, list(keys), column) == numbers, keys


def test_only_the_ends_of_a_range(tmp_path: Path) -> None:
    in_files(tmp_path, pa.int64(), [[1, 2], [5, 6], [9, 10], [None]])
    assert found(tmp_path, [2, 9, 9], pa.int64(), only_ends=True) == [0, 1, 2]
    assert found(tmp_path, [3, 4, None], pa.int64(), only_ends=True) == [3]


def test_long_values_have_no_bounds(tmp_path: Path) -> None:
    in_files(tmp_path, pa.string(), [["a", "z" * 5000], ["b"]])
    assert found(tmp_path, ["zz"], pa.string()) == [0]
    assert found(tmp_path, ["A"], pa.string()) == [0], "its bounds are unknown"


def test_types_without_order_skip_nothing(tmp_path: Path) -> None:
    in_files(tmp_path, pa.float64(), [[1.0], [2.0]])
    assert found(tmp_path, [5.0], pa.float64()) == [0, 1]
