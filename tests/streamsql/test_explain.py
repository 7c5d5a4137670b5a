"""The output of `explain` for streams and for running queries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from tests.operators.conftest import Collect, wait
from tests.operators.events import events, source
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader


def test_streams(spark: SparkSession, streams: dict[str, bs.BacklogStream], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = streams["a"], streams["b"]
    both = a.map("user", "v").union(b.map("user", "v")).filter("v > 3").transform(doubled)
    bs.explain(both, spark=spark)
    assert capsys.readouterr().out == (
        "transform doubled\n"
        "  filter v > 3\n"
        "    union\n"
        "      map user, v\n"
        "        watermark ts, delay 5 s\n"
        "          source a: scripted\n"
        "      map user, v\n"
        "        watermark ts, delay 5 s\n"
        "          source b: scripted\n"
    )
    told = "at an interval during backlog of 0 sorted while a source reports backlog"
    totals = a.key_by("user").sum("v")
    assert bs.explained(totals, spark=spark).split("\n")[:2] == [
        "aggregate user_sum_v by user",
        f"  * {told}; stream otherwise",
    ]
    pairs = totals.key_by("user").join(b.map("user", "item").key_by("user"))
    text = bs.explained(pairs, spark=spark)
    later = "but not in a later stay, as rows of a second input enter after the first operator"
    assert text.count(f"* {told}, {later}; stream otherwise") == 2
    assert "\n  left: aggregate user_sum_v by user\n" in text
    assert "\n  right: map user, item\n" in text
    rows = spark.readStream.format("rate").load()
    live = bs.stream(rows, use_processing_time=True).map("CAST(value AS STRING) AS user", "value AS clicks")
    text = bs.explained(live.temporal_join(totals, on="user"), spark=spark)
    assert "streaming DataFrame: timestamp, value, event time by the clock after its backlog\n" in text
    timed = bs.stream(rows).with_watermark("timestamp", "1 second", idle_timeout="1 minute").key_by("value")
    assert "watermark timestamp, delay 1 s, idle after 1 min\n" in bs.explained(
        timed.over("count(*) AS n"), spark=spark
    )
    with pytest.raises(bs.BacklogError, match="no column 'nothing'"):
        bs.explained(a.key_by("user").over("sum(nothing)"), spark=spark)


def test_the_two_hybrid_sources_name_each_other(spark: SparkSession, tmp_path: Path) -> None:
    for folder in ("old", "live"):
        pq.write_table(pa.table({"n": [1, 2, 3]}), (tmp_path / folder).with_suffix(".parquet"))
    options = {"path": str(tmp_path / "old.parquet"), "schema": "n BIGINT", "metadataLocation": str(tmp_path / "m")}
    kafka = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t", "valueFormat": "json"}
    text = bs.explained(bs.source("hybrid", name="orders", options={**options, **kafka}), spark=spark)
    assert text == (
        "source orders: hybrid\n"
        '  * bs.source("hybrid") is the default for files, then Kafka. Take bs.hybrid, Spark\'s own readers, if '
        "reading the files takes too long, or if only Spark reads their format."
    )
    alone = bs.source("hybrid", name="orders", options={**options, "phases": "files"})
    assert bs.explained(alone, spark=spark) == "source orders: hybrid"

    def phase(name: str) -> Callable[[DataStreamReader, bs.RunContext], DataFrame]:
        return lambda reader, ctx: reader.schema("n BIGINT").parquet(str(tmp_path / f"{name}*"))

    query = bs.backlog_query(
        lambda ctx: ctx.frame.writeStream.format("noop"),
        name="both", checkpoint=str(tmp_path / "c"), spark=spark,
        source=bs.hybrid(spark, "orders", phases={name: phase(name) for name in ("old", "live")}),
    )  # fmt: skip
    try:
        wait(lambda: query.backlogProgress.rows == 6, query)
        assert bs.explained(query) == (
            "query both: stream mode, 6 rows committed\n"
            "  phases of orders: old, live; now live\n"
            '    * bs.hybrid runs Spark\'s own readers, one phase after the other. Take bs.source("hybrid"), the '
            "default for files, then Kafka, unless reading the files then takes too long, or only Spark reads their "
            "format."
        )
    finally:
        query.stop()
    rate = spark.readStream.format("rate").load()
    plain = bs.backlog_query(
        lambda ctx: rate.writeStream.format("noop"), name="rates", checkpoint=str(tmp_path / "r"), spark=spark
    )
    try:
        assert bs.explained(plain).startswith("query rates: stream mode, ")
        assert "\n" not in bs.explained(plain)
    finally:
        plain.stop()


def doubled(frame: object) -> object:
    return frame


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_a_query_that_leaves_backlog(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "s", events(1, 5, 0), backlog=True)
    sink = Collect()
    writer = source(tmp_path).key_by("user").count().write("counts").to(sink)
    writer = writer.trigger(processing_time="50 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(spark)
    try:
        assert "    * sorted: s reported backlog, and the interval during backlog is 0\n" in bs.explained(query)
        append(tmp_path / "s", events(2, 5, 5), backlog=False)
        wait(lambda: query.backlogProgress.rows >= 10, query)
        head, operator, why, *_ = bs.explained(query).split("\n")
        assert head == "query counts: stream mode, 10 rows committed"
        assert operator == "  aggregate user_count by user"
        first = min(number for number, is_backlog in sink.backlog.items() if not is_backlog)
        assert why == f"    * stream: the query has left backlog at batch {first}"
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("during", "why"),
    [
        (None, "stream: no interval during backlog is set"),
        ("30 minutes", "stream: the interval during backlog is 30 min, and spark.backlog.sortedBatch.enabled is false"),
        (0, "stream: no source reported backlog at the start; a later backlog runs as stream, as state of n from two"),
    ],
)
def test_a_query_that_runs_as_stream(spark: SparkSession, tmp_path: Path, during: str | int | None, why: str) -> None:
    append(tmp_path / "s", events(1, 5, 0), backlog=False)
    stream = source(tmp_path).key_by("user").over("row_number() AS n", name="n")
    writer = stream.write("numbers").trigger(processing_time="1 second", interval_during_backlog=during).to(Collect())
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(spark)
    try:
        assert why in bs.explained(query)
    finally:
        query.stop()
