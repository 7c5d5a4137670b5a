"""Files or Delta, then a real broker, through Spark and its checkpoint into Delta: every row once."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from backlog_spark.decide.steps import Mode
from backlog_spark.spark.jvm.session import session_conf
from servers.kafka import KafkaServer

from .topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 300


def wait(condition: Callable[[], bool], query: bs.BacklogQuery) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < limit, (query.history, query.backlogProgress)
        time.sleep(0.1)


def parquet(folder: Path, numbers: range, files: int = 6) -> None:
    folder.mkdir()
    for n in range(files):
        part = numbers[len(numbers) * n // files : len(numbers) * (n + 1) // files]
        pq.write_table(pa.table({"n": list(part)}), folder / f"{n:04}.parquet", row_group_size=50)


class Job:
    """A query from the source hybrid into a Delta table; started any number of times."""

    def __init__(self, spark: SparkSession, kafka: KafkaServer, topic: str, root: Path, **options: Any) -> None:
        self.spark, self.root = spark, root
        given = {"kafka.bootstrap.servers": kafka.address(), "subscribe": topic, "startingOffsets": "earliest"}
        self.options = {**given, "valueFormat": "json", "schema": "n BIGINT", **options}

    def start(self, during: str | None = "0") -> bs.BacklogQuery:
        source = bs.source("hybrid", name="numbers", options=self.options)
        return (
            source.write("numbers")
            .trigger(processing_time="300 ms", interval_during_backlog=during)
            .option("checkpointLocation", str(self.root / "checkpoint"))
            .to(bs.DeltaAppend(str(self.root / "target")))
            .start(self.spark)
        )

    def written(self) -> Counter[int]:
        return Counter(r.n for r in self.spark.read.format("delta").load(str(self.root / "target")).collect())

    def offset(self, batch: int) -> dict[str, Any]:
        text = (self.root / "checkpoint" / "offsets" / str(batch)).read_text()
        found: dict[str, Any] = json.loads(text.splitlines()[2])
        return found


@pytest.mark.parametrize(
    "during", ["3 seconds", *(pytest.param(during, marks=pytest.mark.grid) for during in ("0", None))]
)
def test_files_then_a_topic_that_grows(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path, during: str | None
) -> None:
    topic = Topic(kafka, f"grows_{len(during or '')}")
    parquet(tmp_path / "old", range(600))
    topic.send({"n": n} for n in range(600, 650))
    job = Job(spark, kafka, topic.name, tmp_path, path=str(tmp_path / "old"), maxRowsPerBatch=200)
    query = job.start(during)
    try:
        topic.send({"n": n} for n in range(650, 680))
        wait(lambda: query.backlogProgress.rows == 680, query)
        assert query.mode is Mode.STREAM
        assert not query.isProcessingBacklog
        progress = query.backlogProgress
    finally:
        query.stop()
    assert progress.backlog_rows == 600
    assert progress.commits_in_backlog == (1 if during == "0" else 3)
    modes = [Mode.STREAM] if during is None else [Mode.BACKLOG, Mode.STREAM]
    assert [s.mode for s in query.history] == modes
    switch = next(b for b in range(9) if not job.offset(b)["isProcessingBacklog"])
    assert job.offset(switch)["isBacklog"] is True, "the last batch of files ends where the topic begins"
    assert set(job.offset(switch)["position"]["offsets"][topic.name].values()) == {0}
    # Files that come now are nobody's; the topic goes on where it was.
    pq.write_table(pa.table({"n": [-1]}), tmp_path / "old" / "late.parquet")
    query = job.start(during)
    try:
        topic.send({"n": n} for n in range(680, 700))
        wait(lambda: query.backlogProgress.rows == 20, query)
    finally:
        query.stop()
    assert job.written() == Counter(range(700))


@pytest.mark.grid
def test_a_delta_table_then_files_then_a_topic(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "three_phases", 1)
    table = tmp_path / "table"
    spark.range(0, 100).toDF("n").write.format("delta").save(str(table))
    spark.sql(f"DELETE FROM delta.`{table}` WHERE n >= 90")
    parquet(tmp_path / "old", range(90, 200), files=2)
    topic.send({"n": n} for n in range(200, 210))
    job = Job(
        spark, kafka, topic.name, tmp_path,
        phases="first:delta, old:files, live:kafka", metadataColumns="_phase, _offset", schema="",
        **{"phase.first.path": str(table), "phase.old.path": str(tmp_path / "old")},
    )  # fmt: skip
    query = job.start()
    try:
        wait(lambda: query.backlogProgress.rows == 210, query)
        spark.range(1000, 1010).toDF("n").write.format("delta").mode("append").save(str(table))
        topic.send([{"n": 210}])
        wait(lambda: query.backlogProgress.rows == 211, query)
    finally:
        query.stop()
    assert query.backlogProgress.commits_in_backlog == 1
    assert job.written() == Counter(range(211))
    found = spark.read.format("delta").load(str(tmp_path / "target"))
    assert dict(found.groupBy("_phase").count().collect()) == {"first": 90, "old": 110, "live": 11}
    assert sorted(r[0] for r in found.where("_phase = 'live'").select("_offset").collect()) == list(range(11))


def test_a_topic_that_begins_where_the_files_end(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    """The files' last hour is in the topic too. Older records are not read; common ones are read once."""
    topic = Topic(kafka, "overlap", 2)
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    times = [begin + dt.timedelta(minutes=n) for n in range(240)]
    (tmp_path / "old").mkdir()
    pq.write_table(pa.table({"n": list(range(180)), "at": times[:180]}), tmp_path / "old" / "1.parquet")
    for n in range(240):
        topic.send([{"n": n, "at": times[n].isoformat()}], at_ms=int(times[n].timestamp() * 1000))
    # One that came late: its time is before the files' end, and they do not have it.
    late = times[150] + dt.timedelta(seconds=7)
    topic.send([{"n": 1000, "at": late.isoformat()}], at_ms=int(late.timestamp() * 1000))
    # And a later version of a row that the files have: of the same key, and of a time before the files' end.
    topic.send([{"n": 150, "at": late.isoformat()}], at_ms=int(late.timestamp() * 1000))
    job = Job(
        spark, kafka, topic.name, tmp_path, path=str(tmp_path / "old"), schema="n BIGINT, at TIMESTAMP",
        timestampColumn="at", startingFrom="lastFileTimestamp", startingOverlap="1 hour", dedupKey="n",
    )  # fmt: skip
    query = job.start()
    try:
        wait(lambda: sum(job.written().values()) >= 242 if query.backlogProgress.rows >= 200 else False, query)
    finally:
        query.stop()
    assert job.written() == Counter([*range(240), 1000, 150])
    starts = job.offset(0)["position"]["offsets"][topic.name]
    assert sum(starts.values()) == 119, "it begins an hour before the files' last row"


@pytest.mark.slow
def test_what_retention_takes_while_files_are_read_is_noticed(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = Topic(kafka, "taken_meanwhile", 1)
    parquet(tmp_path / "old", range(600), files=10)
    topic.send({"n": n} for n in range(600, 620))
    options = {"path": str(tmp_path / "old"), "maxFilesPerBatch": 1}
    job = Job(spark, kafka, topic.name, tmp_path, **options)
    query = job.start(None)
    try:
        wait(lambda: query.backlogProgress.rows > 0, query)
    finally:
        query.stop()
    newest = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[2])
    assert newest["pinned"]["1"]["earliest"] == {topic.name: {"0": 0}}
    topic.grow(2)
    topic.remove_before(5)
    spark.conf.set("spark.backlog.restart.maxAttempts", "0")
    try:
        with pytest.raises(Exception, match=f"Records of {topic.name}-0 are lost: the next offset is 0.* is 5"):
            job.start(None).awaitTermination(LIMIT_S)
    finally:
        spark.conf.unset("spark.backlog.restart.maxAttempts")
    assert max(job.written()) < 600
    job.options["failOnDataLoss"] = "false"
    query = job.start(None)
    try:
        wait(lambda: 619 in job.written(), query)
    finally:
        query.stop()
    assert job.written() == Counter([*range(600), *range(605, 620)])


def test_no_files_and_an_empty_topic(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "nothing_yet", 1)
    (tmp_path / "old").mkdir()
    job = Job(spark, kafka, topic.name, tmp_path, path=str(tmp_path / "old" / "*.parquet"), allowEmpty="true")
    for expected in (0, 3):
        query = job.start()
        try:
            wait(lambda: not query.isProcessingBacklog, query)  # noqa: B023 - used before the next one
            topic.send({"n": n} for n in range(expected))
            wait(lambda: query.backlogProgress.rows == expected, query)  # noqa: B023
        finally:
            query.stop()
    assert job.written() == Counter(range(3))


@pytest.mark.grid
def test_partitions_are_added_and_the_broker_restarts(spark: SparkSession, tmp_path: Path) -> None:
    parquet(tmp_path / "old", range(100), files=1)
    with KafkaServer() as kafka:
        topic = Topic(kafka, "restarts", 1)
        topic.send({"n": n} for n in range(100, 200))
        options = {"kafka.metadata.max.age.ms": 1_000}
        job = Job(spark, kafka, topic.name, tmp_path, path=str(tmp_path / "old"), maxRowsPerBatch=20_000, **options)
        query = job.start(None)
        try:
            wait(lambda: query.backlogProgress.rows == 200, query)
            topic.grow(21)
            producing = Topic.again(kafka, topic.name)  # one that knows the new partitions
            producing.send({"n": n} for n in range(200, 400))
            wait(lambda: query.backlogProgress.rows == 400, query)
            producing.send({"n": n, "pad": "x" * 500} for n in range(400, 60_400))
            wait(lambda: query.backlogProgress.rows >= 10_000, query)
            kafka.kill()
            time.sleep(1)
            kafka.start()
            producing.send({"n": n} for n in range(60_400, 60_500))
            wait(lambda: query.backlogProgress.rows == 60_500, query)
        finally:
            query.stop()
        assert len(job.offset(max(range(99), key=lambda b: job_has(job, b)))["position"]["offsets"][topic.name]) == 21
    assert job.written() == Counter(range(60_500))


def job_has(job: Job, batch: int) -> int:
    """The batch, or -1 if there is none: the newest is the greatest."""
    return batch if (job.root / "checkpoint" / "offsets" / str(batch)).exists() else -1


def test_an_old_topic_is_backlog_once(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "five_days", 2)
    old = int(time.time() * 1000) - 5 * 86_400_000
    topic.send(({"n": n} for n in range(3_000)), at_ms=old)
    options = {"phases": "kafka", "backlogLagThreshold": "10 minutes", "maxRowsPerBatch": 1_000}
    job = Job(spark, kafka, topic.name, tmp_path, **options)
    query = job.start("1 second")
    try:
        for n in range(3_000, 3_004):
            wait(lambda n=n: query.backlogProgress.rows == n, query)  # type: ignore[misc]
            topic.send([{"n": n}])
        wait(lambda: query.backlogProgress.rows == 3_004, query)
    finally:
        query.stop()
    assert job.written() == Counter(range(3_004))
    assert query.backlogProgress.backlog_rows == 3_000
    assert [s.mode for s in query.history] == [Mode.STREAM, Mode.BACKLOG, Mode.STREAM], "the first batch finds out"


def test_old_rows_in_new_records_are_backlog_by_their_watermark(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    """The records are new, so the source's own thresholds say nothing (FLIP-309, current time minus watermark)."""
    topic = Topic(kafka, "old_rows", 2)
    old, rows = time.time() - 5 * 86_400, 6_000
    topic.send({"n": n, "at": old} for n in range(rows))
    source = bs.source(
        "hybrid", name="numbers", phases="kafka", maxRowsPerBatch=300, subscribe=topic.name, valueFormat="json",
        schema="n BIGINT, at DOUBLE",
        options={"kafka.bootstrap.servers": kafka.address(), "startingOffsets": "earliest"},
    )  # fmt: skip
    made = source.map("n", "timestamp_seconds(at) AS t").with_watermark("t", "1 second").map("n").write("numbers")
    made = made.trigger(processing_time="300 ms", interval_during_backlog="1 second")
    made = made.option("checkpointLocation", str(tmp_path / "checkpoint")).to(bs.DeltaAppend(str(tmp_path / "target")))
    with session_conf(spark, {"spark.backlog.rule.watermarkLag": "10 minutes"}):
        query = made.start(spark)
    try:
        for n in range(rows, rows + 4):
            wait(lambda n=n: query.backlogProgress.rows == n, query)  # type: ignore[misc]
            topic.send([{"n": n, "at": time.time()}])
        wait(lambda: query.backlogProgress.rows == rows + 4, query)
        wait(lambda: not query.isProcessingBacklog, query)
    finally:
        query.stop()
    found = spark.read.format("delta").load(str(tmp_path / "target")).collect()
    assert Counter(r.n for r in found) == Counter(range(rows + 4))
    assert [s.mode for s in query.history] == [Mode.STREAM, Mode.BACKLOG, Mode.STREAM]
    assert query.backlogProgress.backlog_rows > rows // 2


class Nth(bs.KeyedProcessFunction):
    """What it makes of rows cannot be merged with what it has made of others."""

    output = "n long, nth long"
    nth = bs.ValueState("long", default=0)

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.nth.update(self.nth.value() + 1)
        yield row.n, self.nth.value()


@pytest.mark.slow
def test_the_first_stay_in_an_old_topic_is_sorted(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "keyed_old", 2)
    topic.send(({"n": n} for n in range(2_000)), at_ms=int(time.time() * 1000) - 5 * 86_400_000)
    source = bs.source(
        "hybrid", name="numbers", phases="kafka", backlogLagThreshold="10 minutes",
        subscribe=topic.name, valueFormat="json", schema="n BIGINT",
        options={"kafka.bootstrap.servers": kafka.address(), "startingOffsets": "earliest"},
    )  # fmt: skip
    writer = source.map("n", "n % 7 AS k").key_by("k", order="n").process(Nth()).write("nths")
    query = (
        writer.trigger(processing_time="300 ms", interval_during_backlog="0")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .to(bs.DeltaAppend(str(tmp_path / "target")))
        .start(spark)
    )
    try:
        wait(lambda: query.backlogProgress.rows == 2_000, query)
        topic.send({"n": n} for n in range(2_000, 2_010))
        wait(lambda: query.backlogProgress.rows == 2_010, query)
    finally:
        query.stop()
    found = spark.read.format("delta").load(str(tmp_path / "target")).collect()
    assert Counter((r.n, r.nth) for r in found) == Counter((n, n // 7 + 1) for n in range(2_010))
    newest = max((tmp_path / "checkpoint" / "backlog").glob("plan-*.json"), key=lambda p: int(p.stem.split("-")[1]))
    runs = [(vehicle, epoch) for _, vehicle, epoch in json.loads(newest.read_text())["runs"]]
    assert runs[-2:] == [("sorted", 0), ("stream", -1)]


def test_a_topic_with_an_end_ends_the_query(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "with_an_end", 2)
    topic.send({"n": n} for n in range(100, 400))
    parquet(tmp_path / "old", range(100))
    options = {"path": str(tmp_path / "old"), "endingOffsets": "latest"}
    job = Job(spark, kafka, topic.name, tmp_path, **options)
    query = job.start("1 second")
    assert query.awaitTermination(LIMIT_S)
    assert query.jobStatus is bs.JobStatus.FINISHED
    assert job.written() == Counter(range(400))
    topic.send([{"n": 400}])
    again = job.start("1 second")
    assert again.awaitTermination(LIMIT_S)
    assert again.jobStatus is bs.JobStatus.FINISHED
    assert job.written() == Counter(range(400)), "the end is fixed with the first start"


def test_the_plain_source(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    bs.register(spark)
    topic = Topic(kafka, "plain", 1)
    topic.send({"n": n} for n in range(10, 13))
    parquet(tmp_path / "old", range(10), files=1)
    reader = spark.readStream.format("hybrid").option("path", str(tmp_path / "old")).option("subscribe", topic.name)
    reader = reader.option("kafka.bootstrap.servers", kafka.address()).option("startingOffsets", "earliest")
    with pytest.raises(Exception, match=r"metadataLocation = None: is needed.*Set it to a directory"):
        reader.load()
    frame = reader.option("metadataLocation", str(tmp_path / "meta")).option("valueFormat", "json").load()
    target = str(tmp_path / "target")
    writer = frame.writeStream.format("delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.option("path", target).trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S)
    assert Counter(r.n for r in spark.read.format("delta").load(target).collect()) == Counter(range(13))
