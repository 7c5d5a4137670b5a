"""Which writer a batch goes by: what is allowed, the budget of rows, and the newest change of a key (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.delta.deltars.limits import (
    has_exact_statistics,
    in_range_of_int96,
    refusal_of_store,
    refusal_of_table,
)
from backlog_spark.sinks.delta.schema import widens
from backlog_spark.sinks.newest_changes import newest_changes
from backlog_spark.sinks.small_batches import RowBudget, is_comparable

ELSEWHERE = "delta-rs would use another location, because of a character in the table's path"
ID = {"name": "id", "type": "long", "nullable": True, "metadata": {}}


def field(**changed: Any) -> dict[str, Any]:
    return {**ID, **changed}


@pytest.mark.parametrize(
    ("version", "features", "configuration", "fields", "partitions", "expected"),
    [
        (2, [], {}, [ID], [], None),
        (1, [], {"owner": "x", "delta.targetFileSize": "1mb"}, [ID], ["id"], None),
        (7, ["appendOnly", "invariants", "timestampNtz", "deletionVectors"], {}, [ID], [], None),
        (7, ["columnMapping"], {}, [ID], [], "the table has the feature columnMapping"),
        (7, ["somethingNew"], {}, [ID], [], "the table has the feature somethingNew"),
        (3, [], {}, [ID], [], "the table has writer version 3"),
        (2, [], {"delta.constraints.c": "id > 0"}, [ID], [], "the table has constraints"),
        (2, [], {"delta.appendOnly": "TRUE"}, [ID], [], "the table has delta.appendOnly"),
        (2, [], {}, [field(nullable=False)], [], "column id is NOT NULL"),
        (2, [], {}, [field(metadata={"delta.generationExpression": "1"})], [], "column id has properties of its own"),
        (2, [], {}, [field(metadata={"comment": "of the order"})], [], None),
        (2, [], {}, [field(type="timestamp")], ["id"], "partition column id is timestamp"),
        (2, [], {}, [field(type="string")], ["id"], "partition column id may have a path that is not ASCII"),
    ],
)
def test_tables(
    version: int,
    features: Sequence[str],
    configuration: dict[str, str],
    fields: list[dict[str, Any]],
    partitions: Sequence[str],
    expected: str | None,
) -> None:
    assert refusal_of_table(version, features, configuration, fields, partitions) == expected


def test_files_that_are_not_rewritten_may_have_any_path() -> None:
    assert refusal_of_table(2, [], {}, [field(type="string")], ["id"], merges=False) is None


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        ("file:/lake/t", {}, None),
        ("s3a://lake/t", {}, "storage_options are not set"),
        ("s3a://lake/t", {"aws_region": "eu-1"}, None),
        ("hdfs://name:9000/t", {"x": "y"}, "the store hdfs is written by Spark alone"),
        ("file:/lake/é 'x' {a}~&=+;,@!$", {}, None),
        *((f"file:/lake/{name}", {}, ELSEWHERE) for name in ("%20", "a#b", "a?b", "a[1]", "a^", "a|b", "a\\b", "t ")),
    ],
)
def test_stores(path: str, options: dict[str, str], expected: str | None) -> None:
    assert refusal_of_store(path, options) == expected


@pytest.mark.parametrize(
    ("name", "value", "unsafe"),
    [
        ("AWS_S3_ALLOW_UNSAFE_RENAME", "true", ["s3a"]),
        ("aws_s3_allow_unsafe_rename", " True", ["s3a"]),
        ("allow_unsafe_rename", "1", ["s3a", "file"]),
        ("Mount_Allow_Unsafe_Rename", "yes", ["file"]),
        ("AWS_S3_ALLOW_UNSAFE_RENAME", "FALSE", []),
        ("conditional_put", "Disabled", ["s3a"]),
        ("AWS_CONDITIONAL_PUT", "disabled", ["s3a"]),
        ("aws_conditional_put", "dynamo:locks", ["s3a"]),
        ("Conditional_Put", "ETag", []),
    ],
)
def test_options_by_which_a_commit_may_replace_another(name: str, value: str, unsafe: Sequence[str]) -> None:
    given, region = {name: value}, {"aws_region": "eu-1"}
    for scheme in ("s3a", "file"):
        path = f"{scheme}://lake/t"
        for reason in (refusal_of_store(path, {**region, **given}), refusal_of_store(path, region, given)):
            assert (reason is not None) == (scheme in unsafe)
            assert reason is None or name in reason


def test_types() -> None:
    assert all(map(is_comparable, [LongType(), StringType(), BinaryType(), TimestampType()]))
    others: list[DataType] = [DoubleType(), StringType("UNICODE_CI"), ArrayType(LongType()), StructType()]
    assert not any(map(is_comparable, others))
    exact = [pa.int8(), pa.string(), pa.date32(), pa.timestamp("us", "UTC"), pa.bool_(), pa.decimal128(15, 2)]
    assert all(map(has_exact_statistics, exact))
    wrong = [pa.float64(), pa.decimal128(16, 0), pa.struct([("a", pa.int64())]), pa.list_(pa.int64()), pa.binary()]
    assert not any(map(has_exact_statistics, wrong))


def test_int96() -> None:
    inside, late = datetime(2020, 1, 1), datetime(2262, 1, 1)
    assert in_range_of_int96(inside, inside)
    assert not in_range_of_int96(inside, late)
    assert not in_range_of_int96(datetime(1677, 12, 31), inside)
    assert not in_range_of_int96(None, None)


def test_bytes_become_rows_by_the_width_of_the_rows_before() -> None:
    fields = [StructField("id", LongType()), StructField("text", StringType())]
    assert RowBudget(100, 1 << 20, fields).rows == 100
    assert RowBudget(0, 1 << 20, fields).rows == 0
    budget = RowBudget(1_000_000, 1 << 20, fields)
    assert budget.rows == (1 << 20) // (16 + 1024)
    budget.take(0, 0)
    budget.take(10, 10_000)  # 1,000 bytes a row, and the next ones may have four times as much
    assert budget.rows == (1 << 20) // 4_000
    budget.shrink()
    assert budget.most_rows == 500_000


Change = tuple[int | None, str, int | None]
KINDS = ["insert", "update_postimage", "update_preimage", "delete"]
changes = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 4)), st.sampled_from(KINDS), st.one_of(st.none(), st.integers(0, 3)))
)


def table(rows: Sequence[Change]) -> pa.Table:
    ids, kinds, order = zip(*rows, strict=True) if rows else ((), (), ())
    number = pa.array(range(len(rows)), pa.int64())
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "kind": pa.array(kinds, pa.string()), "seq": pa.array(order, pa.int64()),
         "n": number}
    )  # fmt: skip


@given(changes)
def test_the_newest_change_of_each_key(rows: list[Change]) -> None:
    expected: dict[int | None, tuple[int, bool]] = {}
    for key, kind, seq in rows:
        rank = (-1 if seq is None else seq, kind in ("insert", "update_postimage"))
        expected[key] = max(expected.get(key, rank), rank)
    newest, deletes = newest_changes(table(rows), ["id"], "kind", "seq", "sink")
    found = {}
    for row, is_delete in zip(newest.to_pylist(), deletes.to_pylist(), strict=True):
        assert rows[row["n"]] == (row["id"], row["kind"], row["seq"])
        found[row["id"]] = (-1 if row["seq"] is None else row["seq"], not is_delete)
    assert found == expected
    assert len(newest) == len(expected)


def test_rows_that_no_merge_can_take() -> None:
    with pytest.raises(BacklogError, match=r"^sink: unknown kind = NULL\. Known: insert"):
        newest_changes(table([(1, None, 1)]), ["id"], "kind", "seq", "sink")  # type: ignore[list-item]
    with pytest.raises(BacklogError, match="unknown kind = upsert"):
        newest_changes(table([(1, "insert", 1), (2, "upsert", 1)]), ["id"], "kind", "seq", "sink")
    twice: list[Change] = [(1, "delete", None), (1, "insert", None), (1, "insert", None)]
    with pytest.raises(BacklogError, match="two rows of one key"):
        newest_changes(table(twice), ["id"], "kind", None, "sink")
    newest, deletes = newest_changes(table(twice[:2]), ["id"], "kind", None, "sink")
    assert newest["n"].to_pylist() == [1]
    assert deletes.to_pylist() == [False]
    newest, _ = newest_changes(table([(1, "x", 1), (2, "y", 1)]), ["id"], None, "seq", "sink")
    assert len(newest) == 2


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (ByteType(), LongType(), True),
        (IntegerType(), LongType(), True),
        (LongType(), IntegerType(), False),
        (LongType(), LongType(), False),
        (FloatType(), DoubleType(), True),
        (IntegerType(), DoubleType(), False),
        (IntegerType(), StringType(), False),
        (DateType(), TimestampNTZType(), True),
        (DecimalType(5, 2), DecimalType(7, 4), True),
        (DecimalType(5, 2), DecimalType(9, 2), True),
        (DecimalType(5, 2), DecimalType(6, 4), False),  # 123.45 would not fit
        (DecimalType(5, 2), DecimalType(9, 1), False),
        (DecimalType(5, 2), DecimalType(5, 2), False),
    ],
)
def test_types_that_are_wider(old: DataType, new: DataType, expected: bool) -> None:
    assert widens(old, new) is expected
