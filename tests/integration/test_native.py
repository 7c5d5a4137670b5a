"""Spark's own readers as phases, and rules on Spark's own Kafka source: on a real broker."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from backlog_spark.decide.steps import Mode

from .test_foreign import rules, wait, written
from .topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from servers.kafka import KafkaServer


def parquet(folder: Path, files: int, rows: int = 100) -> int:
    folder.mkdir()
    for n in range(files):
        pq.write_table(pa.table({"n": list(range(n * rows, n * rows + rows))}), folder / f"{n:04}.parquet")
    return files * rows


def live(reader: DataStreamReader, kafka: KafkaServer, topic: Topic, limit: int | None = None) -> DataFrame:
    options: dict[str, Any] = {} if limit is None else {"maxOffsetsPerTrigger": limit}
    frame = (
        reader.format("kafka")
        .option("kafka.bootstrap.servers", kafka.address())
        .option("subscribe", topic.name)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )
    return frame.selectExpr("from_json(cast(value AS string), 'n long').n AS n")


@pytest.mark.slow
@pytest.mark.parametrize("during", ["20 seconds", *(pytest.param(d, marks=pytest.mark.grid) for d in ("0", None))])
def test_files_then_kafka(spark: SparkSession, kafka: KafkaServer, tmp_path: Path, during: str | None) -> None:
    topic = Topic(kafka, f"native_{len(during or '')}")
    count = parquet(tmp_path / "old", 12)
    target, checkpoint = tmp_path / "target", tmp_path / "checkpoint"
    topic.send({"n": n} for n in range(count, count + 50))
    built: list[bs.RunContext] = []

    def old(reader: DataStreamReader, ctx: bs.RunContext) -> DataFrame:
        return reader.schema("n long").option("maxFilesPerTrigger", ctx.scaled(3)).parquet(str(tmp_path / "old"))

    orders = bs.hybrid(
        spark, "orders", phases={"old": old, "live": lambda reader, ctx: live(reader, kafka, topic, ctx.read_limit)}
    )

    def build(ctx: bs.RunContext) -> DataStreamWriter:
        built.append(ctx)
        return ctx.frame.writeStream.format("delta").option("path", str(target))

    def start() -> bs.NativeQuery:
        return bs.backlog_query(
            build, checkpoint=str(checkpoint), spark=spark, source=orders, interval="1 second",
            interval_during_backlog=during,
        )  # fmt: skip

    query = start()
    try:
        topic.send({"n": n} for n in range(count + 50, count + 80))
        wait(lambda: query.backlogProgress.rows == count + 80, query)
        assert query.mode is Mode.STREAM
        assert not query.isProcessingBacklog
    finally:
        query.stop()
    commits = query.backlogProgress.commits_in_backlog
    # An interval of 0 is one commit, unset is the query's own limit, three files a batch.
    assert commits == 1 if during == "0" else commits == 4 if during is None else commits >= 2
    phases = [ctx.phase for ctx in built]
    assert phases == sorted(phases, reverse=True)
    assert phases[-1] == "live"
    assert {ctx.in_backlog for ctx in built if ctx.phase == "old"} == {during is not None}
    expected = [Mode.BACKLOG, Mode.STREAM] if during is not None else [Mode.STREAM]
    assert [s.mode for s in query.history] == expected
    # Files that come now are nobody's any more; the topic goes on where it was.
    pq.write_table(pa.table({"n": [-1]}), tmp_path / "old" / "late.parquet")
    query = start()
    try:
        assert built[-1].phase == "live"
        topic.send({"n": n} for n in range(count + 80, count + 100))
        wait(lambda: query.backlogProgress.rows == 20, query)
    finally:
        query.stop()
    assert written(spark, target) == Counter(range(count + 100))


@pytest.mark.grid
def test_delta_then_kafka_does_not_follow_the_table(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "native_delta")
    source, target = tmp_path / "source", tmp_path / "target"
    spark.range(100).toDF("n").write.format("delta").save(str(source))
    topic.send({"n": n} for n in range(100, 110))
    orders = bs.hybrid(
        spark,
        "orders",
        phases={
            "old": lambda reader, ctx: reader.format("delta").load(str(source)),
            "live": lambda reader, ctx: live(reader, kafka, topic),
        },
    )
    query = bs.backlog_query(
        lambda ctx: ctx.frame.writeStream.format("delta").option("path", str(target)),
        checkpoint=str(tmp_path / "checkpoint"), spark=spark, source=orders, interval_during_backlog="0",
    )  # fmt: skip
    try:
        wait(lambda: query.backlogProgress.rows == 110, query)
        spark.range(1000, 1010).toDF("n").write.format("delta").mode("append").save(str(source))
        topic.send([{"n": 110}])
        wait(lambda: query.backlogProgress.rows == 111, query)
    finally:
        query.stop()
    assert written(spark, target) == Counter(range(111))


def test_what_cannot_be_phases(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    parquet(tmp_path / "old", 1)
    checkpoint = str(tmp_path / "checkpoint")

    def files(reader: DataStreamReader, ctx: bs.RunContext) -> DataFrame:
        return reader.schema("n long").parquet(str(tmp_path / "old"))

    def build(ctx: bs.RunContext) -> DataStreamWriter:
        return ctx.frame.writeStream.format("noop")

    def run(phases: dict[str, Any], at: str = checkpoint) -> None:
        orders = bs.hybrid(spark, "orders", phases=phases)
        query = bs.backlog_query(build, checkpoint=at, spark=spark, source=orders)
        query.awaitTermination(300)

    with pytest.raises(bs.BacklogError, match="was given 1 phases"):
        bs.hybrid(spark, "orders", phases={"old": files})
    with pytest.raises(bs.SettingError, match="'a b': is not a valid source name"):
        bs.hybrid(spark, "orders", phases={"old": files, "a b": files})
    with pytest.raises(bs.BacklogError, match="phase old of orders did not return a streaming DataFrame"):
        run({"old": lambda reader, ctx: spark.range(3), "live": files})
    with pytest.raises(bs.BacklogError, match=r"phase live .* has the columns .*m.*bigint.*, the one before"):
        run({"old": files, "live": lambda r, ctx: files(r, ctx).withColumnRenamed("n", "m")})
    orders = bs.hybrid(spark, "orders", phases={"old": files, "live": files})
    query = bs.backlog_query(build, checkpoint=checkpoint, spark=spark, source=orders)
    wait(lambda: (tmp_path / "checkpoint" / "commits" / "0").exists(), query)
    query.stop()
    with pytest.raises(bs.BacklogError, match=r"about orders with the phases \['old', 'live'\]; .*\['older', 'live'\]"):
        run({"older": files, "live": files})
    plain = str(tmp_path / "plain")
    spark.readStream.schema("n long").parquet(str(tmp_path / "old")).writeStream.format("noop").option(
        "checkpointLocation", plain
    ).trigger(availableNow=True).start().awaitTermination(300)
    with pytest.raises(bs.BacklogError, match="made by a query without phases"):
        run({"old": files, "live": files}, plain)
    with pytest.raises(bs.BacklogError, match=r"ctx\.frame is for a query with phases"):
        bs.backlog_query(build, checkpoint=str(tmp_path / "other"), spark=spark)


@pytest.mark.grid
def test_an_old_topic_is_backlog_once(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "native_old", 3)
    five_days = 5 * 86_400_000
    topic.send(({"n": n} for n in range(40_000)), at_ms=int(time.time() * 1000) - five_days)
    target = tmp_path / "target"
    built: list[bs.RunContext] = []

    def build(ctx: bs.RunContext) -> DataStreamWriter:
        built.append(ctx)
        limit = 5_000 if not ctx.in_backlog else min(ctx.read_limit or 0, 15_000)
        return live(spark.readStream, kafka, topic, limit).writeStream.format("delta").option("path", str(target))

    with rules(spark, offsetsBehindLatest="10000", minStay="0 s"):
        query = bs.backlog_query(
            build, checkpoint=str(tmp_path / "checkpoint"), spark=spark, interval="500 ms",
            interval_during_backlog="30 seconds",
        )  # fmt: skip
        try:
            wait(lambda: query.backlogProgress.rows >= 40_000 and not built[-1].in_backlog, query)
            for n in range(5):
                topic.send([{"n": 40_000 + n}])
                wait(lambda n=n: query.backlogProgress.rows == 40_001 + n, query)  # type: ignore[misc]
        finally:
            query.stop()
    assert written(spark, target) == Counter(range(40_005))
    assert [s.mode for s in query.history] == [Mode.STREAM, Mode.BACKLOG, Mode.STREAM]
    assert [ctx.in_backlog for ctx in built].count(False) == 1


@pytest.mark.grid
def test_keyed_operators_on_a_streaming_dataframe_run_sorted_while_a_rule_says_so(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = Topic(kafka, "native_keyed", 2)
    topic.send({"n": n} for n in range(100))
    target = str(tmp_path / "target")

    def start() -> bs.BacklogQuery:
        # With a limit, what is behind it is known after a batch; without one a batch reads all there is.
        frame = live(spark.readStream, kafka, topic, 5_000).selectExpr("n % 7 AS k", "n")
        return (
            bs.stream(frame)
            .key_by("k")
            .aggregate("sum(n) AS total, count(*) AS rows")
            .write("totals")
            .trigger(processing_time="1 second", interval_during_backlog=0)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .to(bs.DeltaUpsert(target, keys=["k"]))
            .start(spark)
        )

    def totals(rows: int) -> dict[int, tuple[int, int]]:
        return {k: (sum(range(k, rows, 7)), len(range(k, rows, 7))) for k in range(7)}

    def found() -> dict[int, tuple[int, int]]:
        return {r.k: (r.total, r.rows) for r in spark.read.format("delta").load(target).collect()}

    with rules(spark, offsetsBehindLatest="5000", minStay="0 s"):
        query = start()
        try:
            wait(lambda: query.backlogProgress.rows == 100, query)
            assert query.mode is Mode.STREAM
            topic.send({"n": n} for n in range(100, 11_100))
            wait(lambda: query.backlogProgress.rows == 11_100 and query.mode is Mode.STREAM, query)
            wait(lambda: found() == totals(11_100), query)
            topic.send([{"n": 11_100}])
            wait(lambda: query.backlogProgress.rows == 11_101, query)
        finally:
            query.stop()
    assert query.exception() is None
    assert [s.mode for s in query.history] == [Mode.STREAM, Mode.BACKLOG, Mode.STREAM]
    assert found() == totals(11_101)
