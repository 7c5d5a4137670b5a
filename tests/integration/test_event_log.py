"""The event log of a real query: backlog, switch, live batches, a failure, the end; and what it never says."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.common.settings import parse_settings
from backlog_spark.runner.metrics import served
from backlog_spark.spark.jvm.session import session_conf
from backlog_spark.tools.inspection import inspected
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint
from servers.kafka import KafkaServer
from tests.operators.conftest import Collect

from ..runner.test_metrics import scraped
from .topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SECRET = "s3cr3t-of-the-store"
_DOCS = Path(__file__).parents[2] / "docs" / "events.md"


class FailsOnce(Collect):
    """A sink that fails in the first live batch."""

    has_failed = False

    def __init__(self) -> None:
        super().__init__()
        self.descriptions: dict[int, str | None] = {}

    def write(self, batch_df: DataFrame, batch: bs.BatchInfo) -> None:
        if not batch.is_backlog and not self.has_failed and batch_df.count():
            self.has_failed = True
            raise OSError("the disk was full")
        self.descriptions[batch.batch_id] = batch_df.sparkSession.sparkContext.getLocalProperty("spark.job.description")
        super().write(batch_df, batch)


def documented() -> dict[str, set[str]]:
    """The fields of each kind, from the tables of the page."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", _DOCS.read_text(), re.MULTILINE)
    names = {kind: re.sub(r"\([^)]*\)", "", fields) for kind, fields in rows}
    return {kind: set(re.findall(r"`(\w+)`", fields)) for kind, fields in names.items()}


@pytest.mark.slow
def test_a_query_writes_down_what_happens(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "written_down", 1)
    (tmp_path / "old").mkdir()
    (tmp_path / "old/a.json").write_text('{"n": 1}\n{"n": 2}\n{"n": 1}\n')
    options = {
        "path": str(tmp_path / "old"), "fileFormat": "json", "subscribe": topic.name, "valueFormat": "json",
        "kafka.bootstrap.servers": kafka.address(), "startingOffsets": "earliest", "schema": "n BIGINT",
        "fs.token": _SECRET,
    }  # fmt: skip
    checkpoint = tmp_path / "checkpoint"

    def start(sink: bs.Sink, path: str = options["path"]) -> bs.BacklogQuery:
        numbers = bs.source("hybrid", name="numbers", options={**options, "path": path})
        return (
            numbers.key_by("n").count().write("counts")
            .trigger(processing_time="200 ms", interval_during_backlog="0")
            .option("checkpointLocation", str(checkpoint)).to(sink).start(spark)
        )  # fmt: skip

    with pytest.raises(bs.BacklogError):
        start(Collect(), path=str(tmp_path / "odl"))
    assert not (checkpoint / "offsets").exists()  # a first start that is refused plans nothing
    sink = FailsOnce()
    with session_conf(spark, {"spark.backlog.restart.delay": "10 ms", "spark.backlog.metrics.port": "0"}):
        query = start(sink)
        topic.send([{"n": 2}, {"n": 3}])
        while query.backlogProgress.commits_after == 0:
            assert query.isActive, query.exception()
            time.sleep(0.1)
        query.stop()
    stored = StoredCheckpoint(str(checkpoint))
    events = stored.events
    told = [event["kind"] for event in events if event["kind"] != "batch"]
    assert told[:4] == ["refused", "start", "run", "switch"]
    assert told[-1] == "end"
    assert told.count("restart") == 1
    restart = next(event for event in events if event["kind"] == "restart")
    assert "the disk was full" in restart["error"]
    switches = [event for event in events if event["kind"] == "switch"]
    assert [switch["mode"] for switch in switches] == ["backlog", "stream"]
    assert switches[1]["why"] == "source numbers has left its backlog"
    assert query.history[1].why == switches[1]["why"]
    batches = [event for event in events if event["kind"] == "batch"]
    assert [b["batch"] for b in batches] == list(range(len(batches)))  # each once, though one was tried twice
    assert sum(b["rows"] for b in batches if b["backlog"]) == 3
    assert all(state["rows"] >= 0 and state["bytes"] > 0 for b in batches for state in b["state"])
    assert all(b["written_ms"] for b in batches)
    # The metrics and Spark's UI tell the same.
    server = served(parse_settings({"spark.backlog.metrics.port": "0"}))
    assert server is not None
    found = scraped(server.port, "counts")
    assert found["backlog_spark_source_rows_total", "numbers"] == sum(b["rows"] for b in batches)
    assert found["backlog_spark_query_restarts_total",] == found["backlog_spark_query_switches_total", "stream"] == 1
    assert (found["backlog_spark_query_running",], found["backlog_spark_query_commit_interval_seconds",]) == (0, 0.2)
    backlog = next(b["batch"] for b in batches if b["backlog"])
    assert sink.descriptions[backlog] == f"counts: batch {backlog}, backlog"
    assert sink.descriptions[max(sink.descriptions)] == f"counts: batch {max(sink.descriptions)}, live rows"
    assert {(b["backlog"], b.get("interval_ms")) for b in batches if b["rows"]} == {(True, None), (False, 200)}
    assert {source["name"] for b in batches for source in b["sources"]} >= {"numbers"}
    # The page names each kind and field.
    fields = documented()
    for event in events:
        assert event.keys() - {"v", "at", "kind", "query"} <= fields[event["kind"]], event
    found = inspected(stored)
    assert found["query"] == "counts"
    assert found["status"].startswith("stopped at ")
    assert found["mode"] == "stream"
    assert [s["name"] for s in found["sources"] if s["name"]] == ["numbers"]
    assert found["planned"] == found["committed"]
    # Nothing that a store or a user keeps secret, and no value of a row's column.
    text = "".join(path.read_text() for path in (checkpoint / "backlog" / "events").glob("*.jsonl"))
    assert _SECRET not in text
    assert '"n"' not in text
    # A later start that is refused is written down.
    (checkpoint / "backlog" / "identity.json").unlink()
    with pytest.raises(bs.BacklogError, match="identity"):
        start(Collect())
    last = StoredCheckpoint(str(checkpoint)).events[-1]
    assert (last["kind"], "identity.json is missing" in last["error"]) == ("refused", True)


def test_it_can_be_turned_off(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text(json.dumps({"n": 1}))
    rows: Any = spark.readStream.schema("n BIGINT").json(str(tmp_path / "in"))
    spark.conf.set("spark.backlog.eventLog", "off")
    try:
        query = (
            bs.stream(rows).write("silent").trigger(available_now=True)
            .option("checkpointLocation", str(tmp_path / "c")).to(Collect()).start(spark)
        )  # fmt: skip
        query.awaitTermination(120)
    finally:
        spark.conf.unset("spark.backlog.eventLog")
    assert not (tmp_path / "c/backlog/events").exists()
    assert inspected(StoredCheckpoint(str(tmp_path / "c")))["query"] is None
