"""Queries that cannot start, or fail for good: each ends with one line of this package that says what to do."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPSERT: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}


def files(root: Path, path: str = "good", **options: str) -> bs.BacklogStream:
    """A source of files below a directory that has ``good``, ``empty``, ``broken`` and a plain file."""
    given = {"schema": "id BIGINT, name STRING", "metadataLocation": f"{root}/meta", **options}
    return bs.source("hybrid", name="files", phases="files", path=f"{root}/{path}", **given)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("good", "empty", "broken"):
        (tmp_path / name).mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}), tmp_path / "good" / "a.parquet")
    (tmp_path / "broken" / "a.parquet").write_text("no Parquet")
    (tmp_path / "file").write_text("")
    return tmp_path


def start(
    spark: SparkSession, root: Path, stream: bs.BacklogStream, sink: bs.Sink | None = None, checkpoint: str = "c"
) -> bs.BacklogQuery:
    where = checkpoint if "://" in checkpoint else f"{root}/{checkpoint}"
    writer = stream.write("refused").trigger(available_now=True).option("checkpointLocation", where)
    return writer.to(sink or bs.DeltaAppend(f"{root}/target")).start(spark)


def one_line(error: bs.BacklogError, said: str) -> None:
    """No class of Java, no trace, and a next step."""
    text = str(error)
    assert re.search(said, text), text
    assert error.hint, text
    assert "\n" not in text.strip(), text
    assert not re.search(r"\b(java|org|pyspark|py4j)\.[\w.]*(Exception|Error)\b", text), text


Case = Callable[[Path], tuple[bs.BacklogStream, bs.Sink | None, str]]


def stream(make: Callable[[Path], bs.BacklogStream]) -> Case:
    return lambda root: (make(root), None, "c")


def sink(make: Callable[[Path], bs.Sink]) -> Case:
    return lambda root: (files(root), make(root), "c")


def checkpoint(name: str) -> Case:
    return lambda root: (files(root), None, name)


SOURCES: dict[str, tuple[Case, str]] = {
    "no such file": (stream(lambda r: files(r, "nothing")), r"path = .*nothing': is not there\. Correct it"),
    "a pattern without files": (stream(lambda r: files(r, "good/*.csv")), r"path = .*: no file is there"),
    "half a pattern": (stream(lambda r: files(r, "good/[a.parquet")), r"path = .*: no file is there"),
    "an empty directory": (stream(lambda r: files(r, "empty")), r"path = .*: no file is there"),
    "no Parquet": (stream(lambda r: files(r, "broken")), r"cannot be read as parquet.* Set fileFormat"),
    "another format": (stream(lambda r: files(r, fileFormat="json")), r"it is a file of Parquet"),
    "no such column": (stream(lambda r: files(r, schema="n BIGINT")), r"schema = 'n': no phase has such a column"),
    "no type": (stream(lambda r: files(r, schema="id BIGGINT")), r"schema of the source .*BIGGINT.* as in SQL"),
    "Spark: no such file": (
        stream(lambda r: bs.source("parquet", name="p", schema="id BIGINT", path=r / "nothing")),
        r"PATH_NOT_FOUND.*nothing.*Correct the path",
    ),
    "Spark: no schema": (
        stream(lambda r: bs.source("csv", name="p", path=r / "good")),
        r"Schema must be specified.*schema='id BIGINT",
    ),
    "Spark: no number": (
        stream(lambda r: bs.source("rate", name="p", rowsPerSecond="many")),
        r'"many".*must be a number',
    ),
    "Spark: no table": (
        stream(lambda r: bs.source("delta", name="p", path=r / "nothing")),
        r"Table schema is not set.*no Delta table",
    ),
    "no such format": (stream(lambda r: bs.source("mysqlcdc", name="p")), r"'mysqlcdc'.*Did you mean mysql_cdc"),
    "filter: no such column": (stream(lambda r: files(r).filter("idd > 1")), r"`idd`.*Check the name of the column"),
    "filter: half an expression": (stream(lambda r: files(r).filter("id >")), r"Correct the SQL expression: id >"),
    "map: no such column": (stream(lambda r: files(r).map("idd")), r"`idd`.*Check the name of the column"),
    "map: half an expression": (stream(lambda r: files(r).map("id +")), r"Correct the SQL expression: id \+"),
    "map: no such function": (stream(lambda r: files(r).map("upperr(name)")), r"Did you mean upper\?"),
    "transform: a number": (stream(lambda r: files(r).transform(lambda df: 3)), r"returned 3\. Return a DataFrame"),  # type: ignore[arg-type,return-value]
    "transform: no such column": (
        stream(lambda r: files(r).transform(lambda df: df.where(df.idd > 1))),
        r"`idd`.*Check the name of the column",
    ),
    "key_by: no such column": (stream(lambda r: files(r).key_by("idd").count()), r"no column 'idd'; it has id, name"),
    "with_watermark: no time": (
        stream(lambda r: files(r).with_watermark("name", "1 s").key_by("id").count()),
        r"must be a timestamp",
    ),
}
TARGETS: dict[str, tuple[Case, str]] = {
    "below a plain file": (sink(lambda r: bs.DeltaAppend(r / "file" / "t")), r"Cannot create .*file/t.*plain file"),
    "where nobody can write": (sink(lambda r: bs.DeltaAppend("/proc/t")), r"Cannot create .*/proc/t.*create and write"),
    "an upsert there": (
        sink(lambda r: bs.DeltaUpsert("/proc/t", keys=["id"], **UPSERT)), r"Cannot create .*/proc/t.*create and write"
    ),
    "no such file system": (sink(lambda r: bs.DeltaAppend("foo://bucket/t")), r'scheme "foo".*spark\.jars\.packages'),
    "no package for it": (sink(lambda r: bs.DeltaAppend("s3a://bucket/t")), r"S3AFileSystem not found.*hadoop-aws"),
    "no such key": (sink(lambda r: bs.DeltaUpsert(r / "t", keys=["idd"], **UPSERT)), r"keys = \['idd'\].*columns are"),
    "no such partition": (sink(lambda r: bs.DeltaAppend(r / "t", partition_by=["z"])), r"partition_by = \['z'\]"),
    "no such property": (
        sink(lambda r: bs.DeltaAppend(r / "t", properties={"delta.nothing": "1"})), r"delta\.nothing.*Correct the name"
    ),
    "files that are no table": (sink(lambda r: bs.DeltaAppend(r / "good")), r"is not a Delta table but holds"),
    "a checkpoint below a plain file": (checkpoint("file/c"), r"not a directory.*can create and write"),
    "a checkpoint without a file system": (checkpoint("foo://bucket/c"), r'scheme "foo".*spark\.jars\.packages'),
}  # fmt: skip


@pytest.mark.parametrize("name", [*SOURCES, *TARGETS])
def test_what_cannot_start_is_refused_in_one_line(spark: SparkSession, root: Path, name: str) -> None:
    case, said = (SOURCES | TARGETS)[name]
    with pytest.raises(bs.BacklogError) as told:
        start(spark, root, *case(root)).stop()
    one_line(told.value, said)


def test_a_target_with_other_columns_is_refused(spark: SparkSession, root: Path) -> None:
    spark.range(3).selectExpr("cast(id AS string) id", "id name").write.format("delta").save(f"{root}/types")
    spark.range(3).selectExpr("id x").write.format("delta").save(f"{root}/names")
    for name, said in (("types", r"column 'id' of type string.*cast"), ("names", r"no column 'id'.*ADD COLUMNS")):
        with pytest.raises(bs.BacklogError) as told:
            start(spark, root, files(root), bs.DeltaAppend(root / name)).stop()
        one_line(told.value, said)


def test_an_error_of_a_users_function_stays_what_it_is(spark: SparkSession, root: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        start(spark, root, files(root).transform(lambda df: 1 / 0))  # type: ignore[arg-type,return-value]


class Broken(bs.Sink):
    """A target that is gone after the start."""

    def open(self, context: Any) -> None:
        pass

    def write(self, batch_df: Any, batch: Any) -> None:
        raise OSError(28, "No space left on device", "/lake/t")


class Strange(Broken):
    def write(self, batch_df: Any, batch: Any) -> None:
        raise KeyError("address")


@pytest.mark.parametrize(
    ("broken", "said"),
    [(Broken(), r"Batch 0 .*No space left on device.*The disk is full"), (Strange(), r"Batch 0 .*'address'.*repeats")],
    ids=["full", "strange"],
)
def test_a_sink_that_fails_for_good_ends_the_query(spark: SparkSession, root: Path, broken: bs.Sink, said: str) -> None:
    before = spark.conf.get("spark.backlog.restart.maxAttempts", "3")
    spark.conf.set("spark.backlog.restart.maxAttempts", "0")
    try:
        query = start(spark, root, files(root), broken)
        with pytest.raises(bs.BacklogError) as told:
            query.awaitTermination(300)
    finally:
        spark.conf.set("spark.backlog.restart.maxAttempts", str(before))
    one_line(told.value, said)
    assert query.jobStatus == "FAILED"


@contextlib.contextmanager
def small_disk(where: Path) -> Iterator[Path]:
    """A file system of 256 kB. Only root can make one."""
    where.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", where], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", where], check=False)


@pytest.mark.slow
def test_a_full_disk_is_named(spark: SparkSession, root: Path) -> None:
    many = [f"{number:020d}{number * 7919:030d}" for number in range(100_000)]
    pq.write_table(pa.table({"id": range(100_000), "name": many}), root / "good" / "many.parquet")
    before = spark.conf.get("spark.backlog.restart.maxAttempts", "3")
    spark.conf.set("spark.backlog.restart.maxAttempts", "0")
    try:
        with small_disk(root / "small") as small:
            query = start(spark, root, files(root), bs.DeltaAppend(small / "t"))
            with pytest.raises(bs.BacklogError) as told:
                query.awaitTermination(300)
    finally:
        spark.conf.set("spark.backlog.restart.maxAttempts", str(before))
    one_line(told.value, r"No space left on device.*The disk is full")
