"""Fallbacks on Spark's public API, without its internals: slower, with the same results."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import types as st

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spark.checkpoint.files import Files, files_of
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.foreign.outstanding_files import _listing
from backlog_spark.spark.jvm import internals
from backlog_spark.spark.jvm.internals import INTERNALS, SWITCH, Internal, is_usable, probe, require
from backlog_spark.spark.jvm.own_settings import start_with
from backlog_spark.spark.jvm.py4j_helpers import java_class, qualified
from backlog_spark.spark.jvm.session import session_copy
from backlog_spark.spark.jvm.shuffle_once import exchanged
from backlog_spark.spark.plan.batch_frames import arrow_batches, bytes_of, empty_frame, is_repeatable
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")


def test_the_probe_finds_all_in_this_version(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(internals, "_found", {})
    probe(spark)
    assert internals._found.keys() == INTERNALS.keys()
    assert {name: lacks for name in INTERNALS if (lacks := internals.missing(name))} == {}
    assert not caplog.records


def test_what_another_version_lacks_is_logged_and_not_used(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    thread = "java.lang.Thread"
    known = {
        "all": Internal("one", {thread: ("getId()", "setName(java.lang.String)", "name")}, "all", "less"),
        "a class": Internal("one", {"java.lang.Threat": ("getId()",)}, "a class", "the other class"),
        "a field": Internal("one", {thread: ("getId()", "nama")}, "a field", "the other field"),
        "a method": Internal("two", {thread: ("getIdentity()",)}, "names"),
    }
    monkeypatch.setattr(internals, "INTERNALS", known)
    monkeypatch.setattr(internals, "_found", {})
    with caplog.at_level(logging.WARNING):
        probe(spark)
        probe(spark)
    assert [is_usable(name) for name in known] == [True, False, False, False]
    assert len(caplog.records) == 3, "each once"
    assert "Spark 4.2.0 lacks java.lang.Thread.nama (a field): the other field" in caplog.text
    require("all")
    with pytest.raises(
        BacklogError, match=r"Spark 4\.2\.0 .* for names \(java\.lang\.Thread\.getIdentity\(\)\).*Use Spark"
    ):
        require("a method")


def test_the_switch(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    probe(spark)
    assert {name for name in INTERNALS if is_usable(name)} == {name for name, i in INTERNALS.items() if not i.fallback}
    with pytest.raises(
        BacklogError, match="BACKLOG_SPARK_INTERNALS is off, and this query needs a run that ends between"
    ):
        require("end between batches")
    monkeypatch.setenv(SWITCH, "of")
    with pytest.raises(SettingError, match="BACKLOG_SPARK_INTERNALS = 'of': is neither on nor off"):
        probe(spark)


@pytest.mark.usefixtures("plainly")
def test_frames(spark: SparkSession, tmp_path: Path) -> None:
    schema = st.StructType(
        [
            st.StructField("a", st.ArrayType(st.IntegerType(), False), metadata={"x": 1}),
            st.StructField("b c", st.StructType([st.StructField("d", st.DecimalType(9, 2), False)])),
            st.StructField("t", st.TimestampType()),
        ]
    )
    made = empty_frame(spark, schema)
    assert (made.schema, made.count()) == (schema, 0)
    rows = spark.range(10)
    assert not is_repeatable(rows, of_batch=True)
    assert arrow_batches(rows) == {}
    assert exchanged(rows, ["id"]) is None
    assert session_copy(spark) is spark
    rows.repartition(3).write.parquet(str(tmp_path / "p q"))
    written = spark.read.parquet(str(tmp_path / "p q"))
    assert bytes_of(written) is None
    sizes = [path.stat().st_size for path in (tmp_path / "p q").glob("*.parquet")]
    assert _listing(written) == (len(sizes), sum(sizes))


@pytest.mark.usefixtures("plainly")
def test_settings_of_a_query_hold_while_it_starts(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).write.parquet(str(tmp_path / "in"))
    key, found = "spark.sql.streaming.pollingDelay", []
    before = spark.conf.get(key)

    def write(batch: DataFrame, batch_id: int) -> None:
        found.append((batch.sparkSession.conf.get(key), batch.count()))

    writer = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    start_with(spark, str(tmp_path / "c"), {key: "77ms"}, writer.start).awaitTermination(60)
    assert found == [("77ms", 1)]
    assert spark.conf.get(key) == before


def test_files_of_a_checkpoint_are_the_same_by_both_roads(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark's manager that renames by ``FileSystem`` leaves what it could not put over an older file.
    left: set[Path] = set()
    for switch in ("off", "on", "off"):
        monkeypatch.setenv(SWITCH, switch)
        checkpoint = Checkpoint(spark, str(tmp_path / "c"))
        identity = checkpoint.identity()
        checkpoint.make_directory("offsets")
        for text in (f"1 {switch}", f"2 {switch}"):
            checkpoint.write_file("offsets/0", text)
            assert checkpoint.read_file("offsets/0") == text
        checkpoint.replace_file("offsets/0", f"3 {switch}")
        checkpoint.replace_metadata("state", {"switch": switch})
        before, left = left, set((tmp_path / "c").rglob("*.tmp*"))
        assert left == before or switch == "on"
    monkeypatch.undo()
    checkpoint = Checkpoint(spark, str(tmp_path / "c"))
    assert checkpoint.identity() == identity
    assert checkpoint.newest_metadata("state") == {"switch": "off"}
    assert (checkpoint.latest_batch(), checkpoint.read_file("offsets/0")) == (0, "3 off")
    assert sorted(p.name for p in (tmp_path / "c").rglob("*") if p.is_file() and not p.name.startswith(".")) == [
        "0", "identity.json", "state-2.json",
    ]  # fmt: skip


def made_once(files: Files, path: Any) -> bool:
    stream = files.createAtomic(path, False)
    try:
        stream.write(b"mine")
        stream.close()
    except Py4JJavaError as error:
        if "FileAlreadyExistsException" not in str(error):
            raise
        stream.cancel()
        return False
    return True


@pytest.mark.usefixtures("plainly")
def test_a_file_of_a_checkpoint_is_made_once(spark: SparkSession, tmp_path: Path) -> None:
    files = files_of(spark, qualified(spark, str(tmp_path)))
    path = qualified(spark, str(tmp_path / "one.json"))
    assert [made_once(files, path), made_once(files, path)] == [True, False]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".one.json.crc", "one.json"]
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    spark.conf.set(manager, "com.example.Manager")
    try:
        with pytest.raises(SettingError, match="does not work with this Spark"):
            files_of(spark, path)
    finally:
        spark.conf.unset(manager)
    with pytest.raises(BacklogError, match="cannot rename a file atomically"):
        files_of(spark, java_class(spark, "org.apache.hadoop.fs.Path")("http://127.0.0.1/x"))


@pytest.mark.usefixtures("plainly")
def test_phases_of_sparks_own_files(spark: SparkSession, tmp_path: Path) -> None:
    for n, folder in enumerate(("old", "old", "live")):
        spark.range(n, n + 1, 1, 1).write.mode("append").parquet(str(tmp_path / folder))
    found: list[int] = []

    def phase(name: str) -> Any:
        return lambda reader, ctx: (
            reader.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / name))
        )

    query = bs.backlog_query(
        lambda ctx: ctx.frame.writeStream.foreachBatch(lambda b, n: found.extend(r.id for r in b.collect())),
        checkpoint=str(tmp_path / "c"), spark=spark, interval="100 ms",
        source=bs.hybrid(spark, "ids", phases={name: phase(name) for name in ("old", "live")}),
    )  # fmt: skip
    try:
        limit = time.monotonic() + 300
        while len(found) < 3:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            time.sleep(0.05)
    finally:
        query.stop()
    assert (set(found[:2]), found[2:]) == ({0, 1}, [2])


@pytest.mark.slow
@pytest.mark.usefixtures("plainly")
def test_a_keyed_query_goes_to_stream_mode_and_back(spark: SparkSession, tmp_path: Path) -> None:
    """Sorted batches, hand-over, live batches, and a run that ends because of later backlog."""

    def add(*rows: tuple[str, int], backlog: bool) -> None:
        keys, values = zip(*rows, strict=True)
        append(tmp_path / "s", pa.table({"k": list(keys), "v": list(values)}), backlog=backlog)

    add(("a", 1), ("b", 2), ("a", 3), backlog=True)
    add(("c", 4), ("a", 5), backlog=True)
    add(("b", 10), backlog=False)
    sink = Collect()
    stream = bs.source("scripted", name="s", path=tmp_path / "s").key_by("k").aggregate("sum(v) AS total", name="op")
    writer = stream.write("plainly").trigger(processing_time="100 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)
    try:
        wait(lambda: sink.newest(1).get(("b",)) == (12,), query)
        add(("c", 100), backlog=True)
        add(("a", 1000), backlog=True)
        add(("d", 1), backlog=False)
        wait(lambda: ("d",) in sink.newest(1), query)
        wait(lambda: query.backlogProgress.rows == 9, query)
        assert query.backlogProgress.restarts == 0
    finally:
        query.stop()
    assert query.exception() is None
    assert sink.newest(1) == {("a",): (1009,), ("b",): (12,), ("c",): (104,), ("d",): (1,)}


@pytest.mark.usefixtures("plainly")
def test_sorted_frames_together_with_a_source_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "s", pa.table({"k": ["a"], "v": [1]}), backlog=True)
    frame = spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS k", "value AS v")
    rows = bs.source("scripted", name="s", path=tmp_path / "s").union(bs.stream(frame))
    writer = rows.key_by("k").aggregate("sum(v) AS total", name="op").write("refused")
    writer = writer.trigger(processing_time="100 ms", interval_during_backlog=0)
    with pytest.raises(BacklogError, match=r"BACKLOG_SPARK_INTERNALS is off.*Unset it for this query"):
        writer.option("checkpointLocation", str(tmp_path / "c")).to(Collect()).start(spark)
