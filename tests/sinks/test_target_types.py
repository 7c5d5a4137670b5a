"""Tables made beforehand: a row is found again by its key, whatever the types of the table's columns, or is refused."""

from __future__ import annotations

import random
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from backlog_spark.errors import BacklogError
from backlog_spark.sinks import BatchInfo, DeltaUpsert, SinkContext
from backlog_spark.sinks.delta.values import becomes_null, refuse_padded
from tests.sinks.test_direct_types import INFINITY, NAN, WRITERS, opened, rows_of, same, table, upsert, utc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARED = "__CHAR_VARCHAR_TYPE_STRING"


@pytest.mark.parametrize(
    ("declared", "is_refused"),
    [("", False), ("varchar(4)", False), ("char(4)", True), ("CHAR(4)", True), ("array<char(4)>", True),
     ("array<varchar(4)>", False), ("struct<a:varchar(4),b:char(1)>", True), ("map<string,char(4)>", True)],
)  # fmt: skip
def test_padded_keys(declared: str, is_refused: bool) -> None:
    columns = StructType([StructField("K", StringType(), True, {DECLARED: declared})])
    refuse_padded("/t", ["v"], columns)
    if not is_refused:
        refuse_padded("/t", ["k"], columns)
        return
    with pytest.raises(BacklogError) as refused:
        refuse_padded("/t", ["k"], columns)
    for told in ("at /t ", "'K'", f"of type {declared}", "it is string"):
        assert told in refused.value.problem


def test_keys_that_may_become_null() -> None:
    columns = StructType().add("a", StringType()).add("B", StringType()).add("c", IntegerType())
    assert becomes_null(["a", "b", "c"], ["b", "C"], columns) == ("b",)
    assert becomes_null(["a"], [], columns) == ()


@pytest.mark.slow
def test_a_table_that_pads_the_key_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    schema = "k string, v string, _change_type string"
    spark.sql(f"CREATE TABLE delta.`{tmp_path}` (k VARCHAR(4), v CHAR(4)) USING delta")
    sink = opened(spark, upsert(tmp_path, ["k"], "direct"), schema)
    assert len(spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}`").collect()) == 1
    # Another writer replaces the columns while the query runs.
    spark.sql(f"ALTER TABLE delta.`{tmp_path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}` DROP COLUMN k")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}` ADD COLUMN k CHAR(4)")
    rows = spark.createDataFrame([("a", "a", "insert")], schema)
    with pytest.raises(BacklogError, match=r"'k' of type char\(4\); in the stream it is string"):
        sink.write(rows, BatchInfo(0, False))
    for keys, named in ((["k"], "'k'"), (["v"], "'v'")):
        with pytest.raises(BacklogError, match=rf"{named} of type char\(4\); in the stream it is string"):
            opened(spark, upsert(tmp_path, keys, "spark"), schema)


@pytest.mark.parametrize(
    ("text", "is_backlog"), [("", False), pytest.param("__HIVE_DEFAULT_PARTITION__", True, marks=pytest.mark.grid)]
)
def test_a_key_that_a_partition_stores_as_null_fails_the_batch(
    spark: SparkSession, tmp_path: Path, text: str, is_backlog: bool
) -> None:
    given: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}
    sink = DeltaUpsert(str(tmp_path), ["k"], partition_by=["k"], **given)
    sink.open(SinkContext(spark, "app", StructType.fromDDL("k string, v int"), True))
    with pytest.raises(Exception, match=f"key column k is a partition column .* stores '{text}' as NULL"):
        sink.write(spark.createDataFrame([(text, 1), ("x", 1)], "k string, v int"), BatchInfo(0, is_backlog))
    assert rows_of(table(spark, tmp_path)) == []


TEXTS = ["", " ", "a", "a ", "a   ", "A", "é", "bb", "bb ", "abcd", "null", "a/b", "%20", "\U0001f600"]
VALUES: dict[str, list[Any]] = {
    "string": TEXTS,
    "binary": [b"", b"a", b"a ", b"\xff", b"\xff\xfe"],
    "tinyint": [-128, 0, 127],
    "int": [-(2**31), 0, 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1, 2**53, 2**53 + 1],
    "decimal(9,2)": [Decimal("1.00"), Decimal("1.01"), Decimal("-9999999.99")],
    "decimal(38,10)": [Decimal("1.0000000001"), Decimal(1), Decimal(f"{'9' * 28}.{'1' * 10}")],
    "float": [0.0, NAN, 1.5, 1.401298464324817e-45, INFINITY, 0.10000000149011612],
    "double": [0.0, NAN, 0.1, 0.10000000149011612, 5e-324, INFINITY],
    "boolean": [True, False],
    "date": [date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 4)],
    # Local times that are twice, or not at all, in zones with summer time.
    "timestamp": [utc(1, 1, 1), utc(2020, 10, 25, 0, 30), utc(2020, 10, 25, 1, 30), utc(1900, 1, 1, 0, 0, 0, 1)],
    "timestamp_ntz": [datetime(1, 1, 1), datetime(2020, 3, 29, 2, 30), datetime(2020, 1, 1, 0, 0, 0, 1)],
    "array<string>": [[], ["a"], ["a "], ["a", None]],
    "struct<a: string>": [("a",), ("a ",), ("",)],
}
TARGETS = [*VALUES, "smallint", "char(4)", "varchar(4)", "array<char(4)>", "struct<a: varchar(4)>", "decimal(9,0)"]
NESTED = ("array", "struct")


@pytest.mark.grid
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("is_partition", [False, True])
def test_keys_of_all_types_in_tables_of_all_types(
    spark: SparkSession, tmp_path: Path, target: str, is_partition: bool
) -> None:
    if is_partition and target.startswith((*NESTED, "char")):
        return
    for number, (kind, values) in enumerate(VALUES.items()):
        for writer in WRITERS:
            path = tmp_path / f"{number}{writer}"
            by = " PARTITIONED BY (k)" if is_partition else ""
            spark.sql(f"CREATE TABLE delta.`{path}` (k {target}, v int) USING delta{by}")
            chosen = [v for v in values if not (is_partition and v in ("", b""))]
            if target.startswith(("char", "array<char")) or not _same_type(kind, target):
                with pytest.raises(BacklogError, match=r"'k'.*(is|type) ") as refused:
                    opened(spark, upsert(path, ["k"], writer), f"k {kind}, v int, _change_type string")
                assert StructType.fromDDL(f"k {kind}")["k"].dataType.simpleString() in str(refused.value)
                break
            found, expected = _played(spark, path, kind, chosen, writer)
            assert found == expected, (kind, target, writer)


def _same_type(kind: str, target: str) -> bool:
    return kind == target.replace("varchar(4)", "string")


def _played(spark: SparkSession, path: Path, kind: str, values: list[Any], writer: str) -> tuple[list[Any], list[Any]]:
    """The table after a few random batches, and what a dict has."""
    schema = f"k {kind}, v int, _change_type string"
    rng, sink = random.Random(f"{kind} {path}"), upsert(path, ["k"], writer)
    opened(spark, sink, schema)
    expected: dict[str, tuple[Any, int]] = {}
    for batch in range(3):
        rows = []
        for number, value in enumerate(values):
            change = "insert" if batch == 0 else rng.choice(["update_postimage", "delete", ""])
            if change:
                rows.append((value, 100 * batch + number, change))
                expected.pop(repr(value), None)
            if change and change != "delete":
                expected[repr(value)] = ({"a": value[0]} if kind.startswith("struct") else value, 100 * batch + number)
        sink.write(spark.createDataFrame(rows, schema).coalesce(1), BatchInfo(batch, False))
    return rows_of(table(spark, path)), sorted(map(same, expected.values()), key=repr)
