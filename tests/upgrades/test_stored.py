"""Checkpoints of this and of earlier versions are continued by this code, with exact results: see `.queries`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlog_spark.connectors.hybrid.kafka.positions import KafkaPosition
from backlog_spark.connectors.hybrid.offsets import HybridOffset
from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.errors import BacklogError

from .queries import FOLDER, PLACE, QUERIES, locked, unpack, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Those of the newest version in `make test`, the others in `make slow`.
NEWEST = max(versions(), key=lambda each: [*map(int, each.split("."))])
KEPT = [
    pytest.param(
        path, id=f"{path.parent.name}-{path.name.removesuffix('.tar.xz')}",
        marks=[] if path.parent.name == NEWEST else [pytest.mark.slow],
    )
    for path in sorted(FOLDER.glob("*/*.tar.xz"))
]  # fmt: skip


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with locked():
        yield


def test_this_version_has_kept_its_checkpoints() -> None:
    """Else run ``python -m tests.upgrades.make_checkpoints``."""
    assert version("backlog_spark") in versions()
    for each in versions():
        assert {path.name.removesuffix(".tar.xz") for path in (FOLDER / each).glob("*.tar.xz")} <= QUERIES.keys()
    names = {path.name.removesuffix(".tar.xz") for path in (FOLDER / version("backlog_spark")).glob("*.tar.xz")}
    assert names == QUERIES.keys()
    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) < 300_000


@pytest.mark.parametrize("archive", KEPT)
def test_a_kept_checkpoint_is_continued(spark: SparkSession, archive: Path) -> None:
    name = unpack(archive)
    kept = QUERIES[name]
    query = kept.start(spark, name)
    try:
        kept.settle(spark, name, query)
        before = kept.found(spark, name)
        kept.feed(name, 15, spark, query)
        assert kept.found(spark, name) != before, "the new rows change the target"
        assert query.lateRows == 0
        assert not query.isProcessingBacklog
    finally:
        query.stop()
    assert query.exception() is None


def test_a_checkpoint_of_a_later_version_is_refused_and_stays_as_it_is(spark: SparkSession) -> None:
    name = unpack(FOLDER / version("backlog_spark") / "live_sum.tar.xz")
    checkpoint = PLACE / name / "checkpoint"
    identity = checkpoint / "backlog" / "identity.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "version": 2}))

    def content() -> dict[Path, bytes]:
        """Without the event log, which tells of the refused start."""
        files = [path for path in checkpoint.rglob("*") if path.is_file() and path.parent.name != "events"]
        return {path: path.read_bytes() for path in files}

    before = content()
    with pytest.raises(BacklogError, match=r"has version 2 of its format; .* reads version 1.*Use the version of"):
        QUERIES[name].start(spark, name)
    assert content() == before


OFFSETS = [
    pytest.param(each, name, id=f"{each}-{name}")
    for each in versions()
    for name in json.loads((FOLDER / each / "offsets.json").read_text())
]


@pytest.mark.parametrize(("kept", "name"), OFFSETS)
def test_a_kept_offset_says_what_the_server_said(kept: str, name: str) -> None:
    found = json.loads((FOLDER / kept / "offsets.json").read_text())[name]
    offset, facts = json.loads(found["offset"]), found["facts"]
    if name == "hybrid in Kafka":
        read = HybridOffset.from_json(offset)
        assert read.position is not None
        at = KafkaPosition.from_json(read.position)
        assert (read.rows, read.phase, read.is_processing_backlog) == (facts["rows"], 1, False)
        assert sum(at.offsets.values()) == facts["records"]
        assert {topic for topic, _ in at.offsets} == set(at.topics) == {facts["topic"]}
        return
    read_mysql = Offset.from_json(offset)
    (table,) = read_mysql.tables
    assert read_mysql.server == facts["server"]
    assert (f"{table.database}.{table.table}", [c.name for c in table.columns]) == (facts["table"], facts["columns"])
    if name == "mysql_cdc in a snapshot":
        assert not read_mysql.complete
        assert read_mysql.is_processing_backlog
        ends = [each.end for each in read_mysql.ranges]
        assert ends == sorted(ends)
        assert 0 < read_mysql.rows == sum(each.rows for each in read_mysql.ranges) < facts["total"]
    else:
        assert read_mysql.complete
        assert not read_mysql.is_processing_backlog
        assert read_mysql.rows >= facts["total"]
        assert read_mysql.position is not None
        assert (read_mysql.position.file, read_mysql.position.pos) == (facts["file"], facts["position"])
        assert read_mysql.gtid == facts["gtids"]
