"""Dates and times of before 1582, as Spark's own readers of the same files give them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from backlog_spark.errors import BacklogError
from connectors.hybrid.files import FilePhase
from connectors.hybrid.files.calendars import rebased_days, rebased_instants
from connectors.hybrid.phases import Columns, Limit

from .reading import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = [-719164, -719165, -682945, -682946, -171596, -171595, -141428, -141427, 0, None, 2932896]
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


def test_days_and_instants_are_rebased_as_by_spark(spark: SparkSession) -> None:
    by = spark._jvm.org.apache.spark.sql.catalyst.util.RebaseDateTime  # type: ignore[union-attr]
    choose = random.Random(5)
    days = DAYS + [choose.randint(-2_500_000, -141_000) for _ in range(300)] + list(range(-171_605, -171_590))
    found = rebased_days(pa.array(days, pa.int32()).view(pa.date32())).view(pa.int32()).to_pylist()
    assert found == [None if day is None else by.rebaseJulianToGregorianDays(day) for day in days]
    micros = [None if day is None else day * 86_400_000_000 + choose.randrange(86_400_000_000) for day in days]
    instants = pa.array(micros, pa.timestamp("us", "UTC"))
    expected = [None if at is None else by.rebaseJulianToGregorianMicros("Etc/UTC", at) for at in micros]
    made = rebased_instants(instants, "Etc/UTC")
    assert made is not None
    assert made.view(pa.int64()).to_pylist() == expected
    assert rebased_instants(instants, "Europe/Berlin") is None


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
@pytest.mark.parametrize("mode", ["LEGACY", "CORRECTED"])
def test_parquet(spark: SparkSession, tmp_path: Path, kind: str, mode: str) -> None:
    with settings(
        spark,
        session_timeZone="UTC",
        parquet_outputTimestampType=kind,
        parquet_datetimeRebaseModeInWrite=mode,
        parquet_int96RebaseModeInWrite=mode,
    ):
        spark.sql(f"SELECT {DATES}, {NESTED}, {TIMES}").coalesce(1).write.parquet(str(tmp_path / "data"))
        assert ours(tmp_path, "parquet") == by_spark(spark, tmp_path, "parquet")


def test_each_kind_of_timestamp_of_parquet_has_its_own_mark(spark: SparkSession, tmp_path: Path) -> None:
    with settings(
        spark,
        session_timeZone="UTC",
        parquet_outputTimestampType="INT96",
        parquet_datetimeRebaseModeInWrite="LEGACY",
        parquet_int96RebaseModeInWrite="CORRECTED",
    ):
        spark.sql(f"SELECT {DATES}, {TIMES}").coalesce(1).write.parquet(str(tmp_path / "data"))
        assert ours(tmp_path, "parquet") == by_spark(spark, tmp_path, "parquet")


def test_old_times_of_parquet_in_other_zones_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with settings(
        spark,
        session_timeZone="Europe/Berlin",
        parquet_outputTimestampType="TIMESTAMP_MICROS",
        parquet_datetimeRebaseModeInWrite="LEGACY",
    ):
        later = "TIMESTAMP'1900-01-01 01:00:00' z"
        spark.sql(f"SELECT {DATES}, {TIMES}, {later}").coalesce(1).write.parquet(str(tmp_path / "data"))
        expected = by_spark(spark, tmp_path, "parquet")
        names = [name for name in expected if name not in "tuvy"]
        assert ours(tmp_path, "parquet", *names) == {name: expected[name] for name in names}
        for name in "tuvy":
            with pytest.raises(BacklogError, match=rf"column {name} has timestamps before 1900.*in Europe/Berlin.*UTC"):
                ours(tmp_path, "parquet", name)


@pytest.mark.parametrize(
    ("version", "is_old"), [("2.4.8", True), ("3.0.0", False), ("", False)], ids=["2.4", "3.0", "none"]
)
def test_files_of_older_sparks(spark: SparkSession, tmp_path: Path, version: str, is_old: bool) -> None:
    (tmp_path / "data").mkdir()
    table = pa.table({"d": pa.array(DAYS, pa.int32()).view(pa.date32())})
    told = {"org.apache.spark.version": version} if version else None
    pq.write_table(table.replace_schema_metadata(told), tmp_path / "data/a.parquet")
    found = ours(tmp_path, "parquet")
    assert found == by_spark(spark, tmp_path, "parquet")
    assert (found != plain(table)) == is_old


def test_the_newest_time_of_an_old_file_is_that_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
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
    rows = rows_of(source, Columns(schema))
    ended = source.ended(source.begin({}))
    newest = int(np.datetime64("1500-03-01T12:00:00", "ms").astype(int))
    assert int(np.datetime64(rows[0]["t"].replace(tzinfo=None), "ms").astype(int)) == newest
    assert newest in ended.values()


@pytest.mark.parametrize("compression", ["none", "zlib", "snappy", "zstd"])
def test_orc(spark: SparkSession, tmp_path: Path, compression: str) -> None:
    frame = spark.sql(f"SELECT {DATES}, {NESTED}, TIMESTAMP_NTZ'1500-03-01 12:00:00' x").coalesce(1)
    frame.write.option("compression", compression).orc(str(tmp_path / "data"))
    assert ours(tmp_path, "orc") == by_spark(spark, tmp_path, "orc")


@pytest.mark.parametrize("is_proleptic", [True, False])
def test_orc_that_says_its_calendar(spark: SparkSession, tmp_path: Path, is_proleptic: bool) -> None:
    frame = spark.sql(f"SELECT {DATES}").coalesce(1)
    frame.write.option("orc.proleptic.gregorian", str(is_proleptic).lower()).orc(str(tmp_path / "data"))
    assert ours(tmp_path, "orc") == by_spark(spark, tmp_path, "orc")


def test_orc_that_does_not(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    orc.write_table(pa.table({"d": pa.array(DAYS, pa.int32()).view(pa.date32())}), tmp_path / "data/a.orc")
    assert ours(tmp_path, "orc") == by_spark(spark, tmp_path, "orc")


def test_orc_whose_footer_cannot_be_unpacked(spark: SparkSession, tmp_path: Path) -> None:
    # With few columns the footer is not compressed.
    columns = ", ".join(f"DATE'{'1500-03-01' if i else '2020-01-01'}' column{i}" for i in range(50))
    frame = spark.sql(f"SELECT {columns}").coalesce(1)
    frame.write.option("compression", "lz4").orc(str(tmp_path / "data"))
    with pytest.raises(BacklogError, match=r"\.orc: column column7 has dates before 1582-10-15.*compressed as LZ4"):
        ours(tmp_path, "orc", "column7")
    assert ours(tmp_path, "orc", "column0") == {"column0": by_spark(spark, tmp_path, "orc")["column0"]}


def test_times_of_orc_beyond_nanoseconds_are_refused_by_their_column(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 1 id, TIMESTAMP'2020-01-01 00:00:00' since, TIMESTAMP'9999-12-31 23:59:59' until")
    frame.coalesce(1).write.orc(str(tmp_path / "data"))
    with pytest.raises(BacklogError, match=r"\.orc: column until has timestamps outside of 1677-09-21 to 2262-04-11"):
        ours(tmp_path, "orc", timeZone="UTC")
    assert ours(tmp_path, "orc", "id") == {"id": by_spark(spark, tmp_path, "orc")["id"]}


def test_values(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    days: list[Any] = [-171595, -141428, -141427]
    orc.write_table(pa.table({"d": pa.array(days, pa.int32()).view(pa.date32())}), tmp_path / "data/a.orc")
    found = [str(row["d"]) for row in rows_of(phase(tmp_path, "orc"), Columns(pa.schema([("d", pa.date32())])))]
    assert found == ["1500-03-01", "1582-10-04", "1582-10-15"]
