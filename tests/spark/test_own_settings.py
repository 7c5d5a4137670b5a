"""A query's own settings do not reach another query that starts in the same session at the same moment."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming import DataStreamReader
from pyspark.sql.streaming.listener import StreamingQueryListener

import backlog_spark as bs
from backlog_spark.spark.jvm import own_settings as pinned
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
DELAY = "spark.sql.streaming.pollingDelay"


class AtStart(StreamingQueryListener):
    """Starts something in another thread while a query named ``ours`` starts, and makes the query wait for it."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def onQueryStarted(self, event: Any) -> None:
        if event.name == "ours":
            thread = threading.Thread(target=self._act)
            thread.start()
            thread.join()

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


class Neighbour:
    """A plain query of Spark's, started while ours starts."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark, self._root = spark, root
        self.query: StreamingQuery | None = None
        self.seen: dict[str, str | None] = {}

    def start(self) -> None:
        for name in (PARTITIONS, PROVIDER, DELAY, "spark.sql.streaming.offsetLog.formatVersion"):
            self.seen[name] = self._spark.conf.get(name, None)
        frame = self._spark.readStream.format("rate").option("rowsPerSecond", 50).load().groupBy("value").count()
        writer = frame.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(self._root))
        self.query = writer.start()

    def offsets(self) -> tuple[str, dict[str, str]]:
        """The version of its offset log, and the settings in it."""
        deadline = time.monotonic() + 60
        while not (self._root / "offsets/0").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return logged(self._root)


def logged(checkpoint: Path) -> tuple[str, dict[str, str]]:
    version, told, *_ = (checkpoint / "offsets/0").read_text().split("\n")
    return version, json.loads(told)["conf"]


@pytest.fixture
def neighbour(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Neighbour]:
    plain = Neighbour(spark, tmp_path / "plain")
    listener = AtStart(plain.start)
    spark.streams.addListener(listener)
    spark.conf.set(PARTITIONS, "3")
    yield plain
    spark.conf.set(PARTITIONS, "2")
    spark.streams.removeListener(listener)
    if plain.query is not None:
        plain.query.stop()


def ours(spark: SparkSession, root: Path) -> tuple[bs.BacklogQuery, Collect]:
    append(root / "s", pa.table({"k": [1, 1, 2]}), backlog=True)
    append(root / "s", pa.table({"k": pa.array([], pa.int64())}), backlog=False)  # the stay ends, and puts out
    sink = Collect()
    counts = bs.source("scripted", name="s", path=root / "s").key_by("k").count()
    writer = counts.write("ours").option("checkpointLocation", str(root / "c")).to(sink)
    return writer.trigger(processing_time="1 second", interval_during_backlog=0).start(spark), sink


@pytest.mark.slow
def test_a_keyed_query(spark: SparkSession, tmp_path: Path, neighbour: Neighbour) -> None:
    before = {name: spark.conf.get(name, None) for name in (PARTITIONS, PROVIDER, DELAY)}
    query, sink = ours(spark, tmp_path)
    try:
        wait(lambda: sink.newest(1) == {(1,): (2,), (2,): (1,)}, query)
        assert {name: neighbour.seen[name] for name in before} == before
        conf = neighbour.offsets()[1]
        assert (conf[PARTITIONS], conf[PROVIDER].split(".")[-1]) == ("3", "HDFSBackedStateStoreProvider")
        conf = logged(tmp_path / "c")[1]
        assert conf[PARTITIONS] == "2"
        assert conf[PROVIDER].endswith("RocksDBStateStoreProvider")
        run: Any = query.streamingQuery
        field = pinned._delay_field(spark)
        assert field.getLong(run._jsq.streamingQuery()) == 100, "a tenth of the interval"
        assert neighbour.query is not None
        assert field.getLong(neighbour.query._jsq.streamingQuery()) == 10  # type: ignore[attr-defined]
    finally:
        query.stop()


@pytest.mark.slow
def test_phases(spark: SparkSession, tmp_path: Path, neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.range(5).write.parquet(str(tmp_path / "old"))
    spark.range(5, 8).write.parquet(str(tmp_path / "new"))
    of_load: list[str | None] = []
    numbers = {"plus_nothing": spark.udf.register("plus_nothing", lambda n: n, "long")}

    def parquet(reader: DataStreamReader, path: str) -> DataFrame:
        of_load.append(spark.conf.get(EVOLUTION))
        return plain_parquet(reader, path)

    plain_parquet = DataStreamReader.parquet
    monkeypatch.setattr(DataStreamReader, "parquet", parquet)

    def phase(name: str) -> Callable[[DataStreamReader, Any], DataFrame]:
        def make(reader: DataStreamReader, ctx: Any) -> DataFrame:
            frame = reader.schema("id long").parquet(str(tmp_path / name))
            assert frame.sparkSession is spark
            return frame.withColumn("id", numbers["plus_nothing"]("id"))

        return make

    found: list[int] = []
    source = bs.hybrid(spark, "numbers", phases={"old": phase("old"), "new": phase("new")})
    query = bs.backlog_query(
        lambda ctx: ctx.frame.writeStream.foreachBatch(lambda rows, _: found.extend(r.id for r in rows.collect())),
        checkpoint=str(tmp_path / "c"), name="ours", spark=spark, source=source,
    )  # fmt: skip
    try:
        wait(lambda: sorted(found) == list(range(8)), query)  # type: ignore[arg-type]
        assert neighbour.offsets()[0] == "v1"
        assert logged(tmp_path / "c")[0] == "v2"
        assert set(of_load) == {"false"}
    finally:
        query.stop()


@pytest.mark.slow
def test_where_the_copy_cannot_be_reached_the_session_is_set(
    spark: SparkSession, tmp_path: Path, neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned, "is_usable", lambda name: False)
    query, sink = ours(spark, tmp_path)
    try:
        wait(lambda: sink.newest(1) == {(1,): (2,), (2,): (1,)}, query)
        assert logged(tmp_path / "c")[1][PARTITIONS] == "2"
        assert spark.conf.get(PARTITIONS) == "3"
    finally:
        query.stop()


def test_a_query_without_its_settings_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.readStream.format("rate").load()
    writer = frame.writeStream.format("noop").queryName("other").option("checkpointLocation", str(tmp_path / "c"))
    for checkpoint, said in ((f"file:{tmp_path}/c", "many"), (f"file:{tmp_path}/d", "did not report its start")):
        with pytest.raises(bs.BacklogError, match=f"The settings of query 'other' could not be set: .*{said}"):
            pinned.start_with(spark, checkpoint, {PARTITIONS: "many"}, writer.start)
        assert [query.name for query in spark.streams.active] == []
