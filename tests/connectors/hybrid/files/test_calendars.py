"""Dates and times before 1582: equal to those of Spark's own readers, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.phases import Columns, Limit
from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = [-719164, -719165, -682945, -682946, -171596, -171595, -141428, -141427, 0, None, 2932896]
LATER = [None if day is None or day < -141427 else day for day in DAYS]
DATES = "DATE'0001-01-01' d, DATE'1500-03-01' e, DATE'1582-10-04' f, DATE'1582-10-15' g, DATE'9999-12-31' h"
NESTED = (
    "array(DATE'1500-03-01', NULL) a, named_struct('d', DATE'0001-01-01', 'n', 1) s, "
    "map(DATE'1400-01-01', DATE'1300-01-01') m"
)
TIMES = (
    "TIMESTAMP'0001-01-01 00:00:00' t, TIMESTAMP'1500-03-01 23:59:59.999' u, TIMESTAMP'1850-06-01 12:00:00' v, "
    "TIMESTAMP'9999-12-31 23:59:59' w, TIMESTAMP_NTZ'1500-03-01 12:00:00' x, "
    "array(TIMESTAMP'1500-03-01 00:00:00', NULL) y"
)


@contextmanager
def settings(spark: SparkSession, **given: str) -> Iterator[None]:
    """Settings of Spark's SQL, for as long as it takes."""
    names = {f"spark.sql.{name.replace('_', '.')}": value for name, value in given.items()}
    before = {name: spark.conf.get(name) for name in names}
    try:
        for name, value in names.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))


def phase(root: Path, form: str, **options: str) -> FilePhase:
    given = {"path": str(root / "data"), "metadataLocation": str(root / "meta"), "fileFormat": form}
    return FilePhase("old", given | options)


def ours(root: Path, form: str, *columns: str, **options: str) -> dict[str, str]:
    source = phase(root, form, **options)
    schema = source.schema()
    assert schema is not None
    schema = pa.schema([schema.field(name) for name in columns]) if columns else schema
    source.open(Columns(schema))
    start = source.begin({})
    step = source.next(start, Limit(), 0)
    batches = [b for p in source.partitions(start, step.position) for b in source.read(p)]
    return plain(pa.Table.from_batches(batches, schema))


def by_spark(spark: SparkSession, root: Path, form: str) -> dict[str, str]:
    return plain(spark.read.format(form).load(str(root / "data")).toArrow())


def plain(table: pa.Table) -> dict[str, str]:
    """Values as Arrow writes them: Python has no dates before the year 1."""
    return {name: str(table[name].combine_chunks().to_string()) for name in table.column_names}


def refused(root: Path, form: str, *columns: str) -> list[str]:
    """The columns that cannot be read."""
    errors: dict[str, BacklogError] = {}
    for column in columns:
        try:
            ours(root, form, column)
        except BacklogError as error:
            errors[column] = error
    assert all(f": column {c} has dates before 1582-10-15" in error.problem for c, error in errors.items())
    assert all("bs.hybrid" in error.hint for error in errors.values())
    return list(errors)


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_parquet_in_the_calendar_of_today(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    with settings(
        spark,
        session_timeZone="UTC",
        parquet_outputTimestampType=kind,
        parquet_datetimeRebaseModeInWrite="CORRECTED",
        parquet_int96RebaseModeInWrite="CORRECTED",
    ):
        spark.sql(f"SELECT {DATES}, {NESTED}, {TIMES}").coalesce(1).write.parquet(str(tmp_path / "data"))
        assert ours(tmp_path, "parquet") == by_spark(spark, tmp_path, "parquet")


@pytest.mark.parametrize(
    ("kind", "days", "int96", "expected"),
    [
        ("INT96", "LEGACY", "LEGACY", "defasmtuvy"),
        ("INT96", "LEGACY", "CORRECTED", "defasm"),
        ("INT96", "CORRECTED", "LEGACY", "tuvy"),
        ("TIMESTAMP_MICROS", "LEGACY", "LEGACY", "defasmtuvy"),
        ("TIMESTAMP_MILLIS", "LEGACY", "CORRECTED", "defasmtuvy"),
    ],
)
def test_old_values_of_parquet_are_refused_where_they_are_marked(
    spark: SparkSession, tmp_path: Path, kind: str, days: str, int96: str, expected: str
) -> None:
    with settings(
        spark,
        session_timeZone="UTC",
        parquet_outputTimestampType=kind,
        parquet_datetimeRebaseModeInWrite=days,
        parquet_int96RebaseModeInWrite=int96,
    ):
        times = f"{TIMES}, TIMESTAMP'1900-01-01 00:00:00' z"
        spark.sql(f"SELECT {DATES}, {NESTED}, {times}").coalesce(1).write.parquet(str(tmp_path / "data"))
        by = by_spark(spark, tmp_path, "parquet")
    assert refused(tmp_path, "parquet", *by) == list(expected)
    names = [name for name in by if name not in expected]
    assert ours(tmp_path, "parquet", *names) == {name: by[name] for name in names}


@pytest.mark.parametrize(
    ("version", "is_old"), [("2.4.8", True), ("3.0.0", False), ("", False)], ids=["2.4", "3.0", "none"]
)
def test_files_of_older_sparks(spark: SparkSession, tmp_path: Path, version: str, is_old: bool) -> None:
    (tmp_path / "data").mkdir()
    dates = {name: pa.array(days, pa.int32()).view(pa.date32()) for name, days in (("d", DAYS), ("e", LATER))}
    told = {"org.apache.spark.version": version} if version else None
    pq.write_table(pa.table(dates).replace_schema_metadata(told), tmp_path / "data/a.parquet")
    by = by_spark(spark, tmp_path, "parquet")
    assert refused(tmp_path, "parquet", "d", "e") == (["d"] if is_old else [])
    names = ["e"] if is_old else ["d", "e"]
    assert ours(tmp_path, "parquet", *names) == {name: by[name] for name in names}


def test_the_newest_time_of_an_old_file_is_refused_too(spark: SparkSession, tmp_path: Path) -> None:
    with settings(
        spark,
        session_timeZone="UTC",
        parquet_outputTimestampType="TIMESTAMP_MICROS",
        parquet_datetimeRebaseModeInWrite="LEGACY",
    ):
        spark.sql("SELECT TIMESTAMP'1500-03-01 12:00:00' t").coalesce(1).write.parquet(str(tmp_path / "data"))
    source = phase(tmp_path, "parquet", timestampColumn="t")
    schema = source.schema()
    assert schema is not None
    source.open(Columns(schema))
    with pytest.raises(BacklogError, match="column t has dates before 1582-10-15 or timestamps before 1900"):
        source.ended(source.begin({}))


@pytest.mark.parametrize("is_proleptic", [True, False])
def test_orc(spark: SparkSession, tmp_path: Path, is_proleptic: bool) -> None:
    frame = spark.sql(f"SELECT {DATES}, {NESTED}, TIMESTAMP_NTZ'1500-03-01 12:00:00' x").coalesce(1)
    frame.write.option("orc.proleptic.gregorian", str(is_proleptic).lower()).orc(str(tmp_path / "data"))
    by = by_spark(spark, tmp_path, "orc")
    assert refused(tmp_path, "orc", *by) == list("defasm")
    assert ours(tmp_path, "orc", *"ghx") == {name: by[name] for name in "ghx"}


def test_times_of_orc_beyond_nanoseconds_are_refused_by_their_column(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 1 id, TIMESTAMP'2020-01-01 00:00:00' since, TIMESTAMP'9999-12-31 23:59:59' until")
    frame.coalesce(1).write.orc(str(tmp_path / "data"))
    with pytest.raises(BacklogError, match=r"\.orc: column until has timestamps outside of 1677-09-21 to 2262-04-11"):
        ours(tmp_path, "orc", timeZone="UTC")
    assert ours(tmp_path, "orc", "id") == {"id": by_spark(spark, tmp_path, "orc")["id"]}
