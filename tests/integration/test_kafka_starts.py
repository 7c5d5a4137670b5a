"""No gap between phases of Spark's own readers: Kafka begins where it would have when the query first started."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.native.hybrid import pinned, starting_offsets
from backlog_spark.spark.jvm.internals import SWITCH

from .test_foreign import wait, written
from .test_native_handover import FIRST_MS, MINUTE_MS, live, reads, rows, run, send
from .topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

    from servers.kafka import KafkaServer


def options(kafka: KafkaServer, topic: Topic, **more: Any) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": kafka.address(), "subscribe": topic.name, **more}
    return {name.lower(): str(value) for name, value in given.items()}


def test_where_it_begins(spark: SparkSession, kafka: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    topic = Topic(kafka, "native_starts", 1)
    send(topic, range(10, 20))

    def starts(pin: Any, reached_ms: int | None = None, listed: Any = None, **more: Any) -> Any:
        found = starting_offsets(spark, options(kafka, topic, **more), pin, reached_ms, listed)
        return json.loads(found)[topic.name]

    def at(minute: int) -> int:
        return FIRST_MS + minute * MINUTE_MS

    by_pattern = {"kafka.bootstrap.servers": kafka.address(), "subscribepattern": "native_star.s"}
    for asked in (by_pattern, options(kafka, topic)):
        pin = json.loads(json.dumps(pinned(spark, asked)))
        assert (pin["earliest"], pin["latest"]) == ({topic.name: {"0": 0}}, {topic.name: {"0": 10}})
    assert len(pin["topics"][topic.name]) == 22
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "off")
        plainly = pinned(spark, options(kafka, topic))
        assert {key: plainly[key] for key in ("topics", "earliest", "latest")} == {
            key: pin[key] for key in ("topics", "earliest", "latest")
        }
    topic.grow(2)
    send(topic, range(20, 22))
    # What Spark takes for the latest, if it is not told otherwise, is that of the first start.
    assert starts(pin) == {"0": 10, "1": 0}
    assert starts(pin, startingOffsets="earliest") == {"0": 0, "1": 0}
    assert starts(pin, startingOffsets=json.dumps({topic.name: {"0": 7}})) == {"0": 7, "1": 0}
    assert starts(pin, startingTimestamp=at(13)) == {"0": 3, "1": 0}
    assert starts(pin, at(15), startingTimestamp=at(13)) == {"0": 3, "1": 0}
    with pytest.raises(bs.BacklogError, match=r"of 2099-01-01T00:00:00.000Z. That was in the future"):
        starts(pin, 4_070_908_800_000, startingTimestamp=4_070_908_800_000)
    lenient = {"failOnDataLoss": "false", "startingOffsetsByTimestampStrategy": "latest"}
    assert starts(pin, 4_070_908_800_000, startingTimestamp=4_070_908_800_000, **lenient) == {"0": 10, "1": 0}
    now = pinned(spark, options(kafka, topic))
    assert starts(pin, at(30), now, startingTimestamp=at(30)) == {"0": now["latest"][topic.name]["0"], "1": 0}
    topic.remove_before(4)
    for more in ({"startingOffsets": "earliest"}, {"startingTimestamp": 0}):
        with pytest.raises(bs.BacklogError, match=f"Records of {topic.name}-0 .*lost"):
            starts(pin, **more)
        assert starts(pin, **more, failOnDataLoss="false") == {"0": 4, "1": 0}
    # Rows end at minute 11, the topic begins at minute 14; had they ended at 14 an older record would be wanting.
    with pytest.raises(
        bs.BacklogError, match=r"from 2026-01-01T00:11:00.000Z to 2026-01-01T00:14:00.000Z \(offset 4\)"
    ):
        starts(pinned(spark, options(kafka, topic)), at(11), startingTimestamp=at(11))
    assert starts(pin, at(15), startingTimestamp=at(15)) == {"0": 5, "1": 0}


def test_what_cannot_be_asked_is_refused(spark: SparkSession, kafka: KafkaServer) -> None:
    topic = Topic(kafka, "native_refused", 1)
    nobody = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "1000"}
    nobody |= {"kafka.request.timeout.ms": "500", "kafka.ssl.key.password": "hidden"}
    with pytest.raises(bs.BacklogError, match=r"127\.0\.0\.1:1.* could not be asked .*Timeout") as caught:
        pinned(spark, {**options(kafka, topic), **nobody})
    assert "hidden" not in str(caught.value)
    with pytest.raises(bs.BacklogError, match="has no native_missing"):
        pinned(spark, {**options(kafka, topic), "subscribe": "native_missing"})


@pytest.mark.slow
@pytest.mark.parametrize("loses", [True, False])
def test_what_happens_while_files_are_read(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path, loses: bool
) -> None:
    topic = Topic(kafka, f"native_meanwhile_{loses}", 1)
    rows(spark, 0, 20).write.parquet(str(tmp_path / "old"))
    send(topic, range(20, 30))
    made: list[int | None] = []

    def live(reader: DataStreamReader, ctx: bs.RunContext) -> DataFrame:
        made.append(ctx.starting_timestamp)
        if len(made) == 2:  # the files have been read
            if loses:
                topic.remove_before(5)
            else:
                topic.grow(2)
                send(Topic.again(kafka, topic.name), range(30, 50))
        given = options(kafka, topic, startingOffsets="earliest" if loses else "latest")
        frame = reader.format("kafka").options(**given).load()
        schema = "n long, at timestamp, p long"
        return frame.selectExpr(f"from_json(cast(value AS string), '{schema}') AS r").select("r.*")

    phases = {"old": reads(str(tmp_path / "old"), "parquet"), "live": live}
    query = run(spark, tmp_path, phases)
    if loses:
        with pytest.raises(bs.BacklogError, match=f"Records of {topic.name}-0 are lost: the next offset is 0.* is 5"):
            query.awaitTermination(300)
        assert written(spark, tmp_path / "target") == Counter(range(20))
        return
    expected = Counter([*range(20), *range(30, 50)])
    try:
        wait(lambda: query.backlogProgress.rows == 40, query)
    finally:
        query.stop()
    # Where it began is in Spark's own log: the options do not matter any more.
    assert (tmp_path / "checkpoint" / "sources" / "orders_live" / "0").exists()
    send(topic, range(50, 60))
    query = run(spark, tmp_path, phases)
    try:
        wait(lambda: query.backlogProgress.rows == 10, query)
    finally:
        query.stop()
    assert written(spark, tmp_path / "target") == expected + Counter(range(50, 60))


@pytest.mark.grid
def test_files_that_are_written_before_their_phase_begins_are_not_read_from_the_topic_too(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = Topic(kafka, "native_archived", 1)
    for name, first, end in (("old", 0, 15), ("more", 15, 22)):
        rows(spark, first, end).write.parquet(str(tmp_path / name))
    send(topic, range(10, 22))
    made: list[str] = []

    def more(reader: DataStreamReader, ctx: bs.RunContext) -> DataFrame:
        made.append(ctx.phase)
        if len(made) == 2:  # the first phase has been read
            send(topic, range(22, 50))
            rows(spark, 22, 50).write.mode("append").parquet(str(tmp_path / "more"))
        return reads(str(tmp_path / "more"), "parquet")(reader, ctx)  # type: ignore[no-any-return]

    asked: list[int | None] = []
    reads_topic = live(kafka, topic, asked)

    def last(reader: DataStreamReader, ctx: bs.RunContext) -> DataFrame:
        made = reads_topic(reader, ctx)
        if len(asked) == 2:
            raise RuntimeError("ends before its first batch")
        return made  # type: ignore[no-any-return]

    phases = {"old": reads(str(tmp_path / "old"), "parquet"), "more": more, "live": last}
    query = run(spark, tmp_path, phases, timestamp_column="at", dedup_key="n")  # which starts again by itself
    try:
        wait(lambda: len(asked) > 2, query)
        send(topic, range(50, 52))
        wait(lambda: 51 in written(spark, tmp_path / "target"), query)
    finally:
        query.stop()
    assert written(spark, tmp_path / "target") == Counter(range(52))


def test_latest_of_an_empty_topic(spark: SparkSession, kafka: KafkaServer) -> None:
    topic = Topic(kafka, "native_empty", 1)
    pin = pinned(spark, options(kafka, topic))
    topic.send([{"n": 1}], at_ms=int(time.time() * 1000))
    assert json.loads(starting_offsets(spark, options(kafka, topic), pin, None)) == {topic.name: {"0": 0}}
