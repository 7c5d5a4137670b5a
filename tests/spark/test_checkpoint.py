"""Spark's offset and commit logs, and the checkpoint's identity."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm.py4j_helpers import qualified
from backlog_spark.spark.jvm.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Offset = dict[str, Any] | str | None


def flags(position: int, processing: bool, backlog: bool, **more: Any) -> dict[str, Any]:
    """An offset of one of our sources."""
    return {"position": position, "isProcessingBacklog": processing, "isBacklog": backlog, **more}


def write_log(checkpoint: Path, batch_id: int, *offsets: Offset, version: str = "v1") -> None:
    """Write an offset log entry as Spark's OffsetSeqLog does."""
    lines = [version, json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})]
    for offset in offsets:
        lines.append("-" if offset is None else offset if isinstance(offset, str) else json.dumps(offset))
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch_id)).write_text("\n".join(lines))


MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing"


@pytest.fixture(params=["FileContextBasedCheckpointFileManager", "FileSystemBasedCheckpointFileManager"])
def either_manager(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark's two managers. The second one cannot replace a file, and does not report it."""
    with session_conf(spark, {MANAGER: f"{MANAGERS}.{request.param}"}):
        yield


def test_empty_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path / "none"))
    assert checkpoint.latest_batch() is None
    assert checkpoint.latest_committed() is None
    assert checkpoint.offsets(0) is None
    assert checkpoint.read_metadata("identity") is None
    assert not (tmp_path / "none").exists()


def test_logs(spark: SparkSession, tmp_path: Path) -> None:
    ours = flags(3, True, True, table="größe")
    write_log(tmp_path, 9, None, ours, "17", "not json", '{"topic":{"0":5}}')
    write_log(tmp_path, 10, ours)
    (tmp_path / "offsets" / ".11.0a1b.tmp").write_text("half")
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "9").write_text('v1\n{"nextBatchWatermarkMs":0}')
    checkpoint = Checkpoint(spark, f"file://{tmp_path}")
    assert checkpoint.offsets(9) == [None, ours, None, None, {"topic": {"0": 5}}]
    assert (checkpoint.latest_batch(), checkpoint.latest_committed()) == (10, 9)


def test_offsets_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(5):
        write_log(tmp_path, number, flags(number, True, True))
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert [checkpoint.offsets(number) for number in range(5)] == [[flags(n, True, True)] for n in range(5)]
    assert checkpoint.offsets(5) is None
    write_log(tmp_path, 5, flags(5, True, True))
    for file in (tmp_path / "offsets").glob("[0-4]"):
        file.unlink()
    assert [checkpoint.offsets(n) is not None for n in range(6)] == [False, False, True, True, True, True]


def test_offsets_of_named_sources(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path, 0, f"orders:{json.dumps(flags(1, True, True))}", 'live:{"topic":{"0":5}}', version="v2")
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert checkpoint.offsets(0) == [flags(1, True, True), {"topic": {"0": 5}}]


def test_other_log_versions_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path, 0, flags(1, True, True), version="v3")
    with pytest.raises(BacklogError, match=r"'v3'.*offsetLog\.formatVersion=1"):
        Checkpoint(spark, str(tmp_path)).offsets(0)


def test_sources_of_the_second_format_are_identified_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """Unnamed sources have their index as name, are in any order, and are missing without an offset."""
    ours, other = flags(1, True, True), flags(1, False, False)
    write_log(tmp_path, 4, f"2:{json.dumps(other)}", f"0:{json.dumps(ours)}", version="v2")
    moved = flags(2, False, True)
    write_log(tmp_path, 5, '1:{"logOffset":0}', f"2:{json.dumps(other)}", f"0:{json.dumps(moved)}", version="v2")
    write_log(tmp_path, 6, f"2:{json.dumps(flags(2, True, True))}", "1:-", f"0:{json.dumps(moved)}", version="v2")
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert checkpoint.offsets(4) == [ours, None, other]
    assert checkpoint.offsets(5) == [moved, {"logOffset": 0}, other]
    assert checkpoint.offsets(6) == [moved, None, flags(2, True, True)]


def test_named_sources_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path, 1, f"old:{json.dumps(flags(1, True, True))}", version="v2")
    write_log(tmp_path, 2, f"live:{json.dumps(flags(2, False, False))}", version="v2")
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert checkpoint.offsets(2) == [flags(2, False, False)]


def test_identity_is_made_once(spark: SparkSession, tmp_path: Path) -> None:
    identity = Checkpoint(spark, str(tmp_path)).identity()
    assert str(uuid.UUID(identity)) == identity
    write_log(tmp_path, 0, flags(1, True, True))
    assert Checkpoint(spark, str(tmp_path)).identity() == identity
    assert Checkpoint(spark, str(tmp_path / "another")).identity() != identity
    assert json.loads((tmp_path / "backlog" / "identity.json").read_text()) == {"version": 1, "id": identity}


@pytest.mark.usefixtures("either_manager")
def test_identity_of_concurrent_first_starts_is_one(spark: SparkSession, tmp_path: Path) -> None:
    ready = threading.Barrier(4)
    found: list[str] = []

    def start() -> None:
        checkpoint = Checkpoint(spark, str(tmp_path))
        ready.wait()
        found.append(checkpoint.identity())

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_identity_is_refused_on_a_checkpoint_without_it(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path, 3, flags(1, True, True))
    with pytest.raises(BacklogError, match=r"identity\.json is missing, but the checkpoint has batches up to 3"):
        Checkpoint(spark, str(tmp_path)).identity()
    assert not (tmp_path / "backlog").exists()


@pytest.mark.parametrize("content", ['{"id": 7}', '{"id": "mine"}', "{}", "[]", "", '{"id"'])
def test_damaged_identity_is_refused(spark: SparkSession, tmp_path: Path, content: str) -> None:
    (tmp_path / "backlog").mkdir()
    (tmp_path / "backlog" / "identity.json").write_text(content)
    with pytest.raises(BacklogError, match=r"identity\.json"):
        Checkpoint(spark, str(tmp_path)).identity()


@pytest.mark.usefixtures("either_manager")
def test_metadata_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert checkpoint.write_metadata("end-1", {"run": 1})
    assert not checkpoint.write_metadata("end-1", {"run": 2})
    assert checkpoint.read_metadata("end-1") == {"run": 1}


@pytest.mark.usefixtures("either_manager")
def test_metadata_is_replaced_by_a_new_file(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert checkpoint.newest_metadata("plan") is None
    for run in range(12):
        assert checkpoint.replace_metadata("plan", {"run": run})
        assert checkpoint.newest_metadata("plan") == {"run": run}
    assert checkpoint.names_in("backlog") == ["plan-11.json"]
    # A driver that was killed before it removed the older one.
    (tmp_path / "backlog" / "plan-9.json").write_text('{"run": 9}')
    (tmp_path / "backlog" / "plan-of-others-12.json").write_text('{"run": 12}')
    assert checkpoint.newest_metadata("plan") == {"run": 11}
    assert checkpoint.replace_metadata("plan", {"run": 12})
    assert sorted(checkpoint.names_in("backlog")) == ["plan-12.json", "plan-of-others-12.json"]


@pytest.mark.usefixtures("either_manager")
def test_of_two_concurrent_replacements_one_fails(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = Checkpoint(spark, str(tmp_path)), Checkpoint(spark, str(tmp_path))
    assert mine.replace_metadata("plan", {"run": 0})
    # Both have looked before either writes.
    monkeypatch.setattr(mine, "_versions", lambda name: [0])
    assert other.replace_metadata("plan", {"run": 1})
    assert not mine.replace_metadata("plan", {"run": 2})
    assert other.newest_metadata("plan") == {"run": 1}


@pytest.mark.usefixtures("either_manager")
def test_a_file_replaces_an_older_one(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    checkpoint.make_directory("offsets")
    for text in ("v1\n{}", "v1\n{ }\n-", "v1"):
        checkpoint.write_file("offsets/3", text)
        assert checkpoint.read_file("offsets/3") == text


def test_locations_are_whole_however_they_are_written(spark: SparkSession, tmp_path: Path) -> None:
    for written in (f"{tmp_path}/c/", f"file://{tmp_path}/x/../c", f"{tmp_path}//c", os.path.relpath(tmp_path / "c")):
        checkpoint = Checkpoint(spark, written)
        assert checkpoint.qualified() == f"file:{tmp_path}/c"
        # Sources that are not of the JVM take a path without a scheme for a local one.
        assert checkpoint.location_of("backlog/sources/s") == f"file:{tmp_path}/c/backlog/sources/s"
    with session_conf(spark, {"fs.defaultFS": "hdfs://localhost:1"}):
        assert qualified(spark, "/c/x").toString() == "hdfs://localhost:1/c/x"
        assert qualified(spark, "file:///c/x").toString() == "file:/c/x"


@pytest.mark.usefixtures("either_manager")
def test_files_that_were_being_written_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert checkpoint.replace_metadata("plan", {"run": 0})
    checkpoint.make_directory("backlog/events")
    checkpoint.write_file("backlog/events/1.jsonl", "{}")
    for name in ("backlog/plan-1.json", "backlog/events/2.jsonl"):
        checkpoint._files.createAtomic(checkpoint._path(name), False).write(b"half")
    assert len(list((tmp_path / "backlog").rglob("*.tmp"))) == 2
    checkpoint.remove_unfinished()
    left = {path.name for path in (tmp_path / "backlog").rglob("*") if path.is_file() and path.suffix != ".crc"}
    assert left == {"plan-0.json", "1.jsonl"}
    assert not list((tmp_path / "backlog").rglob("*.tmp.crc"))
