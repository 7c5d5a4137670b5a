"""Hundreds of difficult records against Spark's own ``from_json`` and ``from_csv``, and its JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from backlog_spark.connectors.hybrid.decode import decoder, parse
from backlog_spark.connectors.hybrid.decode.base import text_of
from backlog_spark.connectors.hybrid.decode.json_scan import Malformed, scan

from .plain import plain
from .records import COLUMNS, CSV_COLUMNS, csv_records, json_records

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

CORRUPT = pa.field("_corrupt_record", pa.string())
ABC = pa.schema([("a", pa.string()), ("b", pa.string()), ("c", pa.int32())])


def some(records: st.SearchStrategy[bytes], count: int) -> list[bytes]:
    """The same records in every run."""
    found: list[bytes] = []

    @settings(max_examples=count, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(records)
    def collect(record: bytes) -> None:
        found.append(record)

    # Hypothesis also draws constants of the project's modules that are imported by then.
    with patch.object(providers, "_get_local_constants", providers.Constants):
        collect()
    return found


def by_spark(
    spark: SparkSession, format: str, schema: pa.Schema, records: list[bytes], variants: list[dict[str, str]]
) -> list[list[tuple[Any, ...]]]:
    """The rows under each variant of the options, all of one job."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    kinds = from_arrow_schema(schema.append(CORRUPT))
    ddl = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in kinds)
    frame = spark.createDataFrame([(i, bytearray(r)) for i, r in enumerate(records)], "i int, v binary")
    text = F.col("v").cast("string")

    def parsed(options: dict[str, str]) -> Column:
        full = {"columnNameOfCorruptRecord": CORRUPT.name, **options}
        return F.from_json(text, kinds, full) if format == "json" else F.from_csv(text, ddl, full)

    columns = [parsed(options).alias(f"v{n}") for n, options in enumerate(variants)]
    table = frame.select("i", *columns).orderBy("i").toArrow()
    nothing = (None,) * (len(schema) + 1)
    return [[nothing if row is None else row for row in plain(table[f"v{n}"])] for n in range(len(variants))]


def ours(format: str, schema: pa.Schema, records: list[bytes], options: dict[str, str]) -> list[tuple[Any, ...]]:
    made = decoder(parse({"valueFormat": format, **options}), schema.append(CORRUPT))
    columns = made.decode(pa.array(records, pa.binary())).columns
    return list(zip(*(plain(column) for column in columns), strict=True))


def test_json(spark: SparkSession) -> None:
    # Strings of other values, where from_json is no model, are the next test's.
    records = some(json_records(COLUMNS, text_of_all=False), 400)
    variants = [
        {},
        {"timeZone": "Europe/Berlin"},
        {"timeZone": "-05:30", "allowNonNumericNumbers": "false"},
        {
            "timestampFormat": "yyyy-MM-dd HH:mm:ss[.SSSSSS][XXX]",
            "timestampNTZFormat": "yyyy-MM-dd HH:mm:ss[.SSSSSS]",
            "dateFormat": "y-M-d",
        },
    ]
    expected = by_spark(spark, "json", COLUMNS, records, variants)
    malformed = 0
    for options, rows in zip(variants, expected, strict=True):
        found = ours("json", COLUMNS, records, options)
        for record, spark_row, row in zip(records, rows, found, strict=True):
            if not is_json(record, options):
                # Spark's parser may find back into a broken text and keep some columns.
                assert row == (*[None] * len(COLUMNS), spark_row[-1]), record
                malformed += 1
            else:
                assert row == spark_row, (record, options)
    assert malformed < len(records)


def is_json(record: bytes, options: dict[str, str]) -> bool:
    try:
        scan(text_of(record), non_finite=options.get("allowNonNumericNumbers") != "false")
    except Malformed:
        return False
    return True


def test_text_of_other_values_as_in_json_files(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.string()), ("s", pa.struct([("t", pa.string())]))])
    records = some(json_records(schema, damaged=False), 200)
    records += [
        b'{"text":{"b" : 1.0, "c":[ 1 ,2]}}', b'{"text":1.50}', b'{"text":-0}', b'{"text":NaN}', b'{"text": 1e5 }',
        b'{"s":{"t": [ true,null,"\\u00e9"] }}', '{"text":{"é":"😀"}}'.encode(), b'{"text":12345678901234567890.10}',
    ]  # fmt: skip
    records = [record for record in records if b"\n" not in record]
    (tmp_path / "records.json").write_bytes(b"\n".join(records))
    table = spark.read.schema("text string, s struct<t: string>").json(str(tmp_path)).coalesce(1).toArrow()
    expected = list(zip(plain(table["text"]), plain(table["s"]), strict=True))
    assert [row[:2] for row in ours("json", schema, records, {})] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "variants"),
    [
        (ABC, [{}, {"escape": '"'}, {"nullValue": "x"}]),
        (
            CSV_COLUMNS,
            [
                {},
                {
                    "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS",
                    "dateFormat": "y-M-d",
                    "timeZone": "America/New_York",
                },
            ],
        ),
    ],
    ids=["quotes", "types"],
)
def test_csv(spark: SparkSession, schema: pa.Schema, variants: list[dict[str, str]]) -> None:
    # What univocity mixes up: U+0000 next to quotes, and an escape behind a quote.
    records = [record for record in some(csv_records(schema), 600) if b"\0" not in record and b'"\\' not in record]
    for options, rows in zip(variants, by_spark(spark, "csv", schema, records, variants), strict=True):
        found = ours("csv", schema, records, options)
        for record, expected, row in zip(records, rows, found, strict=True):
            assert shown(row) == shown(without_today(schema, expected, row)), (record, options)


def shown(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row with its record without the line end: after a stray quote univocity keeps less or more of it."""
    return (*row[:-1], row[-1] and row[-1].rstrip("\r\f"))


def without_today(schema: pa.Schema, expected: tuple[Any, ...], row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Spark's row, except where it took a time of day for a timestamp of today."""
    at = schema.get_field_index("at")
    today = at >= 0 and row[at] is None and expected[at] is not None
    return (*expected[:at], None, *expected[at + 1 : -1], row[-1]) if today else expected
