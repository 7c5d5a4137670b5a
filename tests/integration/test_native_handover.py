"""Spark's own readers as phases: the last one begins at the newest time of the earlier ones, on a real broker."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs

from .test_foreign import wait, written
from .topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

    from servers.kafka import KafkaServer

DDL = "n long, at timestamp, p long"
FIRST_MS = 1_767_225_600_000  # 2026-01-01
MINUTE_MS = 60_000


def rows(spark: SparkSession, first: int, end: int) -> DataFrame:
    """Row n is of minute n."""
    return spark.range(first, end, 1, 2).selectExpr(
        "id AS n", f"timestamp_millis({FIRST_MS} + id * {MINUTE_MS}) AS at", "id % 2 AS p"
    )


def send(topic: Topic, numbers: range) -> None:
    for n in numbers:
        at_ms = FIRST_MS + n * MINUTE_MS
        at = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat()
        topic.send([{"n": n, "p": n % 2, "at": at}], at_ms=at_ms)


def live(kafka: KafkaServer, topic: Topic, asked: list[int | None], zone: str = "timestamp") -> Any:
    def make(reader: DataStreamReader, ctx: bs.RunContext) -> DataFrame:
        asked.append(ctx.starting_timestamp)
        options = {
            "kafka.bootstrap.servers": kafka.address(),
            "subscribe": topic.name,
            "startingTimestamp": str(ctx.starting_timestamp or 0),
            "startingOffsetsByTimestampStrategy": "latest",
        }
        frame = reader.format("kafka").options(**options).load()
        schema = f"n long, at {zone}, p long"
        return frame.selectExpr(f"from_json(cast(value AS string), '{schema}') AS r").select("r.*")

    return make


def run(spark: SparkSession, root: Path, phases: dict[str, Any], **options: Any) -> bs.NativeQuery:
    return bs.backlog_query(
        lambda ctx: ctx.frame.select("n").writeStream.format("delta").option("path", str(root / "target")),
        checkpoint=str(root / "checkpoint"), spark=spark, interval="300 ms", interval_during_backlog="0",
        source=bs.hybrid(spark, "orders", phases=phases, **options),
    )  # fmt: skip


def reads(path: str, by: str) -> Any:
    """The ways to declare a phase of files."""
    calls = {
        "parquet": lambda reader: reader.schema(DDL).parquet(path),
        "load": lambda reader: reader.format("parquet").schema(DDL).option("maxFilesPerTrigger", 1).load(path),
        "option": lambda reader: reader.format("parquet").options(path=path).schema(DDL).load(),
    }
    return lambda reader, ctx: calls[by](reader)


@pytest.mark.grid
@pytest.mark.parametrize("by", ["parquet", *(pytest.param(n, marks=pytest.mark.grid) for n in ("load", "option"))])
def test_overlapping_records_are_left_out(spark: SparkSession, kafka: KafkaServer, tmp_path: Path, by: str) -> None:
    topic = Topic(kafka, f"handover_{by}", 3)
    old = tmp_path / "o ld+,%41"
    # A key with a NULL in it is never known.
    keyless = rows(spark, 95, 96).selectExpr("CAST(NULL AS bigint) AS n", "at", "p")
    rows(spark, 0, 100).unionByName(keyless).write.partitionBy("p").parquet(str(old))
    # The topic has the newest of the files' rows again, and before them one that was never in a file.
    send(topic, range(80, 100))
    topic.send([{"n": 1000, "p": 0, "at": "2026-01-01T01:35:00Z"}], at_ms=FIRST_MS + 95 * MINUTE_MS)
    # And a later version of a row of the files, of a time before their end.
    topic.send([{"n": 95, "p": 1, "at": "2026-01-01T01:35:30Z"}], at_ms=FIRST_MS + 95 * MINUTE_MS)
    topic.send([{"n": None, "p": 1, "at": "2026-01-01T01:35:00Z"}], at_ms=FIRST_MS + 95 * MINUTE_MS)
    send(topic, range(100, 120))
    asked: list[int | None] = []
    phases = {"old": reads(str(old), by), "live": live(kafka, topic, asked)}
    options = {"timestamp_column": "at", "starting_overlap": "9 minutes", "dedup_key": ["n", "p"]}
    query = run(spark, tmp_path, phases, **options)
    try:
        wait(lambda: query.backlogProgress.rows >= 101 and (tmp_path / "checkpoint" / "commits" / "1").exists(), query)
    finally:
        query.stop()
    # A file that comes now was not read, so that it does not count.
    rows(spark, 500, 501).write.mode("append").partitionBy("p").parquet(str(old))
    send(topic, range(120, 130))
    query = run(spark, tmp_path, phases, **options)
    try:
        wait(lambda: _count(spark, tmp_path / "target") == 134, query)
    finally:
        query.stop()
    assert query.exception() is None
    assert set(asked) == {None, FIRST_MS + 90 * MINUTE_MS}  # None: when the query first starts
    assert written(spark, tmp_path / "target") == Counter([*range(130), 1000, 95, None, None])


@pytest.mark.grid
def test_files_then_a_delta_table_then_a_topic(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "handover_delta", 1)
    rows(spark, 0, 50).write.json(str(tmp_path / "old"))
    table = str(tmp_path / "table")
    rows(spark, 40, 45).write.format("delta").save(table)
    send(topic, range(40, 60))
    asked: list[int | None] = []
    phases = {
        "old": lambda reader, ctx: reader.schema(DDL).json(str(tmp_path / "old")),
        "table": lambda reader, ctx: reader.format("delta").load(table).select("n", "at", "p"),
        "live": live(kafka, topic, asked),
    }
    query = run(spark, tmp_path, phases, timestamp_column="at", starting_overlap="6 minutes", dedup_key="n")
    try:
        wait(lambda: _count(spark, tmp_path / "target") == 65, query)
        # The newest row is a file's, not the table's. What is written to the table now is not read.
        rows(spark, 70, 71).write.format("delta").mode("append").save(table)
        send(topic, range(60, 61))
        wait(lambda: _count(spark, tmp_path / "target") == 66, query)
    finally:
        query.stop()
    assert set(asked) == {None, FIRST_MS + 43 * MINUTE_MS}
    assert written(spark, tmp_path / "target") == Counter([*range(61), *range(40, 45)])


@pytest.mark.grid
def test_times_without_a_zone_and_phases_without_rows(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "handover_ntz", 1)
    send(topic, range(20))
    ddl = "n long, at timestamp_ntz, p long"
    for case, end, first in (("rows", 10, 9), ("none", 0, 0)):
        root = tmp_path / case
        made = rows(spark, 0, end)
        made.withColumn("at", made.at.cast("timestamp_ntz")).write.orc(str(root / "old"))
        asked: list[int | None] = []
        phases = {
            "old": lambda reader, ctx, root=root: reader.schema(ddl).orc(str(root / "old")),
            "live": live(kafka, topic, asked, "timestamp_ntz"),
        }
        query = run(spark, root, phases, timestamp_column="at")
        try:
            wait(lambda root=root, end=end, first=first: _count(spark, root / "target") == end + 20 - first, query)  # type: ignore[misc]
        finally:
            query.stop()
        assert set(asked) == {None, *([FIRST_MS + first * MINUTE_MS] if end else [])}
        assert written(spark, root / "target") == Counter([*range(end), *range(first, 20)])


def _count(spark: SparkSession, target: Path) -> int:
    return sum(written(spark, target).values()) if any((target / "_delta_log").glob("*.json")) else 0


def test_what_cannot_be_handed_over_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    rows(spark, 0, 4).write.parquet(str(tmp_path / "old"))
    rows(spark, 0, 4).write.format("delta").save(str(tmp_path / "table"))

    def old(reader: Any, ctx: bs.RunContext) -> DataFrame:
        return reader.schema(DDL).parquet(str(tmp_path / "old"))  # type: ignore[no-any-return]

    def rate(reader: Any, ctx: bs.RunContext) -> DataFrame:
        return reader.format("rate").load().selectExpr("value AS n", "timestamp AS at", "value AS p")  # type: ignore[no-any-return]

    def fails(number: int, make: Any, **options: Any) -> BaseException:
        options = {"timestamp_column": "at", **options}
        query = run(spark, tmp_path / str(number), {"old": make, "live": rate}, **options)
        with pytest.raises((bs.BacklogError, bs.SettingError)) as told:
            query.awaitTermination(300)
        return told.value

    with pytest.raises(bs.SettingError, match=r"dedup_key = \('n',\): needs a timestamp_column"):
        bs.hybrid(spark, "orders", phases={"old": old, "live": rate}, dedup_key="n")
    with pytest.raises(bs.SettingError, match=r"starting_overlap = '1 h': needs a timestamp_column"):
        bs.hybrid(spark, "orders", phases={"old": old, "live": rate}, starting_overlap="1 h")
    with pytest.raises(bs.BacklogError, match="phase old has no column when; it has n, at, p"):
        run(spark, tmp_path / "0", {"old": old, "live": rate}, timestamp_column="when")
    with pytest.raises(bs.BacklogError, match=r"timestamp_column n of the phase old is bigint"):
        run(spark, tmp_path / "0", {"old": old, "live": rate}, timestamp_column="n")
    elsewhere = {"old": lambda reader, ctx: old(spark.readStream, ctx), "live": rate}
    with pytest.raises(bs.BacklogError, match="phase old of orders was not made with the reader that the function got"):
        run(spark, tmp_path / "1", elsewhere, timestamp_column="at")
    assert "uses the format rate-micro-batch, whose rows cannot be read again" in str(
        fails(2, lambda r, ctx: r.format("rate-micro-batch").option("rowsPerBatch", 1).load().selectExpr(
            "value AS n", "timestamp AS at", "value AS p"))
    )  # fmt: skip
    later = fails(3, lambda r, ctx: r.format("delta").option("startingVersion", 0).load(str(tmp_path / "table")))
    assert "with it the phase old has not read all rows of the table" in str(later)


def test_a_checkpoint_keeps_its_hand_over_settings(spark: SparkSession, tmp_path: Path) -> None:
    rows(spark, 0, 4).write.parquet(str(tmp_path / "old"))

    def old(reader: Any, ctx: bs.RunContext) -> DataFrame:
        return reader.schema(DDL).parquet(str(tmp_path / "old"))  # type: ignore[no-any-return]

    query = run(spark, tmp_path, {"old": old, "live": old}, timestamp_column="at")
    wait(lambda: (tmp_path / "checkpoint" / "commits" / "0").exists(), query)
    query.stop()
    with pytest.raises(bs.BacklogError, match=r"made with the hand-over .*'at'.*; the query has \{\}"):
        run(spark, tmp_path, {"old": old, "live": old})
