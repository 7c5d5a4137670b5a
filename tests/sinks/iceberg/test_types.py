"""Values of all types that sources have, by both writers: exactly as pyiceberg reads them back."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from backlog_spark.errors import BacklogError
from backlog_spark.sinks import BatchInfo, IcebergAppend, IcebergUpsert, SinkContext
from backlog_spark.sinks.iceberg.columns import new_schema
from tests.sinks.iceberg.places import TABLE, catalog_at, table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UTC = datetime.UTC
# Type, type in Iceberg, and values. The first value is also written as a key.
KINDS: dict[str, tuple[st.DataType, str, list[Any]]] = {
    "tinyint": (st.ByteType(), "int", [-128, 127, None]),
    "smallint": (st.ShortType(), "int", [-32768, 32767, None]),
    "int": (st.IntegerType(), "int", [-(2**31), 2**31 - 1, None]),
    "bigint": (st.LongType(), "long", [-(2**63), 2**63 - 1, None]),
    "bigint_unsigned": (st.DecimalType(20, 0), "decimal(20, 0)", [Decimal(2**64 - 1), Decimal(0), None]),
    "decimal": (st.DecimalType(38, 10), "decimal(38, 10)", [Decimal("-1.0000000001"), Decimal("9" * 28), None]),
    "boolean": (st.BooleanType(), "boolean", [True, False, None]),
    "float": (st.FloatType(), "float", [1.5, float("-inf"), None]),
    "double": (st.DoubleType(), "double", [-0.1, float("inf"), None]),
    "text": (st.StringType(), "string", ["", "é\U0001f600\n'\"", None]),
    "blob": (st.BinaryType(), "binary", [b"\x00\xff", b"", None]),
    "date": (st.DateType(), "date", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
    "datetime": (
        st.TimestampNTZType(), "timestamp",
        [datetime.datetime(1000, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), None],
    ),
    "timestamp": (
        st.TimestampType(), "timestamptz",
        [datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime.datetime(2037, 1, 19, 3, 14, 7, 9, UTC), None],
    ),
    "list": (st.ArrayType(st.IntegerType()), "list<int>", [[1, None], [], None]),
    "map": (st.MapType(st.StringType(), st.LongType()), "map<string, long>", [{"a": 1, "b": None}, {}, None]),
    "struct": (
        st.StructType().add("a", st.LongType()).add("b", st.StringType()), "struct<…>",
        [(1, None), (None, "x"), None],
    ),
}  # fmt: skip
SCHEMA = st.StructType([st.StructField("id", st.IntegerType()), *(st.StructField(n, k[0]) for n, k in KINDS.items())])
ROWS = [(number, *(values[number] for _, _, values in KINDS.values())) for number in range(3)]


def plain(value: Any) -> Any:
    """A value as Arrow gives it back."""
    return {"a": value[0], "b": value[1]} if isinstance(value, tuple) else value


def found_in(lake: Path) -> list[tuple[Any, ...]]:
    rows = table_at(lake).scan().to_arrow()
    columns = [dict_of(rows[name]) for name in SCHEMA.names]
    return sorted(zip(*columns, strict=True), key=lambda row: row[0])


def dict_of(column: pa.ChunkedArray) -> list[Any]:
    values = column.to_pylist()
    return [dict(v) if pa.types.is_map(column.type) and v is not None else v for v in values]


@pytest.mark.parametrize("zone", ["UTC", pytest.param("America/New_York", marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_backlog", [True, False])
def test_values_are_exact(spark: SparkSession, tmp_path: Path, is_backlog: bool, zone: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    sink = IcebergAppend(TABLE, catalog_at(tmp_path))
    sink.open(SinkContext(session, "app", SCHEMA, False))
    sink.write(session.createDataFrame(ROWS, SCHEMA), BatchInfo(0, is_backlog))
    assert found_in(tmp_path) == [tuple(map(plain, row)) for row in ROWS]
    types = {field.name: str(field.field_type) for field in table_at(tmp_path).schema().fields}
    expected = {"id": "int"} | {name: kind for name, (_, kind, _) in KINDS.items()}
    assert {**types, "struct": "struct<…>"} == expected


KEYS = ["int", "bigint_unsigned", "decimal", "boolean", "text", "blob", "date", "datetime", "timestamp"]


@pytest.mark.parametrize(
    ("writer", "rows", "keys"),
    [("direct", 100_000, KEYS), ("files", 0, KEYS), pytest.param("files", 9, ["double", "float"], id="floats")],
)
def test_keys_of_all_types_are_found(
    spark: SparkSession, tmp_path: Path, writer: str, rows: int, keys: list[str]
) -> None:
    kept = [SCHEMA[name] for name in (*keys, "id")]
    schema = st.StructType(kept)
    values = [tuple(row[SCHEMA.names.index(field.name)] for field in kept) for row in ROWS]
    plain_rows: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}
    for batch in range(2):
        at = (batch - 1, batch - 1) if batch else (None, None)
        sink = IcebergUpsert(TABLE, keys, catalog_at(tmp_path), small_batch_rows=rows, **plain_rows)
        sink.open(SinkContext(spark, "app", schema, False, *at))
        again = [(*row[:-1], row[-1] + 10 * batch) for row in values]
        sink.write(spark.createDataFrame(again, schema), BatchInfo(batch, False))
        assert sink.written is not None
        assert sink.written.writer == writer
    found = table_at(tmp_path).scan().to_arrow()
    assert sorted(found["id"].to_pylist()) == [10, 11, 12]


def test_types_that_iceberg_lacks_are_refused() -> None:
    for kind in (st.DayTimeIntervalType(), st.VariantType(), st.ArrayType(st.NullType())):
        with pytest.raises(BacklogError, match=r"Column 'x' is .*, for which Iceberg's format 2 has no type\. Cast it"):
            new_schema([st.StructField("x", kind)])
