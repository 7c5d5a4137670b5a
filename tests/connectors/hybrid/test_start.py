"""Checks of the source hybrid before a query starts, without Spark."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backlog_spark.connectors.hybrid.delta import DeltaPhase
from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.kafka.phase import KafkaPhase
from backlog_spark.connectors.hybrid.phases import Outlook, Phase
from backlog_spark.connectors.hybrid.source import check_columns
from backlog_spark.errors import BacklogError, SettingError


def files(tmp_path: Path, name: str, **columns: object) -> FilePhase:
    (tmp_path / name).mkdir()
    pq.write_table(pa.table(columns), tmp_path / name / "f.parquet")
    return FilePhase(name, {"path": str(tmp_path / name), "metadataLocation": str(tmp_path / "meta")})


def raw() -> KafkaPhase:
    return KafkaPhase("live", {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t"})


def check(phases: list[Phase], **columns: pa.DataType) -> None:
    check_columns(phases, pa.schema(list(columns.items())))


def test_types_that_differ_between_phases(tmp_path: Path) -> None:
    old, new = files(tmp_path, "old", n=[1], at=["2024-01-01"]), files(tmp_path, "new", n=["x"])
    check([old], N=pa.int32(), at=pa.string())
    with pytest.raises(SettingError, match=r"schema = 'n bigint': in the phase new it is string there"):
        check([old, new], n=pa.int64(), at=pa.string())
    with pytest.raises(SettingError, match=r"schema = 'at timestamp': in the phase old .*Declare it as string"):
        check([old, raw()], n=pa.int64(), at=pa.timestamp("us", "UTC"))


def test_columns_that_no_phase_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = files(tmp_path, "old", value=[b"1"])
    with pytest.raises(SettingError, match=r"schema = 'vlaue': no phase has such a column\..*Columns: value, key,"):
        check([old, raw()], value=pa.binary(), vlaue=pa.binary())
    with caplog.at_level(logging.WARNING):
        check([old, raw()], value=pa.binary(), topic=pa.string())
    assert "The phase old has no column topic: it is NULL there" in caplog.text
    # Of records that are decoded nobody knows beforehand.
    live = raw()
    live.decoder_of = lambda schema: pytest.fail("not needed")
    check([old, live], value=pa.binary(), vlaue=pa.binary())


def test_a_column_of_the_newest_file_only(tmp_path: Path) -> None:
    old = files(tmp_path, "old", n=[1])
    pq.write_table(pa.table({"n": [2], "more": [3]}), tmp_path / "old" / "g.parquet")
    check([old], n=pa.int64(), more=pa.int64())


@pytest.mark.parametrize("version", [{}, {"versionAsOf": "7"}])
def test_a_missing_delta_table(tmp_path: Path, version: dict[str, str]) -> None:
    if version:
        from deltalake import write_deltalake

        write_deltalake(tmp_path / "table", pa.table({"n": [1]}))
    phase = DeltaPhase("old", {"path": str(tmp_path / "table"), **version})
    with pytest.raises(BacklogError, match=r"The Delta table .*table cannot be opened"):
        phase.columns_at_hand()


def test_what_check_tells_of_a_delta_table(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    at = pa.array([1_700_000_000_000_000, 1_700_000_001_000_000], pa.timestamp("us", "UTC"))
    write_deltalake(tmp_path / "table", pa.table({"n": [1, 2], "at": at}))
    phase = DeltaPhase("old", {"path": str(tmp_path / "table"), "timestampColumn": "at", "startingOverlap": "1 s"})
    seen = phase.examine(Outlook())
    size = sum(file.stat().st_size for file in (tmp_path / "table").glob("*.parquet"))
    (found,) = seen.first
    assert f"1 file with 2 rows, {size:,} bytes, in {tmp_path}/table" in found.problem
    assert seen.then == Outlook(1_700_000_001_000, is_sure=True, wait_ms=1_000)
