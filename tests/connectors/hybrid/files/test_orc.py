"""Timestamps of ORC, which have no zone of their own."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pytest

from backlog_spark.errors import BacklogError
from connectors.hybrid.files import FilePhase
from connectors.hybrid.phases import Columns

from .reading import rows_of

UTC_US, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
NOON = datetime(2024, 7, 1, 12, 0, 0, 5)


def phase(root: Path, array: pa.Array, **options: str) -> FilePhase:
    (root / "data").mkdir()
    orc.write_table(pa.table({"at": array}), root / "data/a.orc")
    given = {"path": str(root / "data"), "metadataLocation": str(root / "meta"), "fileFormat": "orc"}
    return FilePhase("old", given | options)


def read(source: FilePhase, declared: pa.DataType) -> list[Any]:
    return [row["at"] for row in rows_of(source, Columns(pa.schema([("at", declared)])))]


@pytest.mark.parametrize(
    ("zone", "instant"),
    [
        ("UTC", NOON.replace(tzinfo=UTC)),
        ("Europe/Berlin", datetime(2024, 7, 1, 10, 0, 0, 5, tzinfo=UTC)),
        ("Asia/Kolkata", datetime(2024, 7, 1, 6, 30, 0, 5, tzinfo=UTC)),
    ],
)
def test_an_instant_is_what_the_writers_clock_showed(tmp_path: Path, zone: str, instant: datetime) -> None:
    source = phase(tmp_path, pa.array([NOON, None], LOCAL), timeZone=zone)
    assert read(source, UTC_US) == [instant, None]


def test_a_clock_on_the_wall_needs_no_zone(tmp_path: Path) -> None:
    source = phase(tmp_path, pa.array([NOON, None], LOCAL))
    assert source.schema() == pa.schema([("at", LOCAL)])
    assert read(source, LOCAL) == [NOON, None]


def test_an_instant_of_orc_needs_no_zone(tmp_path: Path) -> None:
    source = phase(tmp_path, pa.array([NOON], UTC_US), timeZone="Asia/Kolkata")
    assert source.schema() == pa.schema([("at", UTC_US)])
    assert read(source, UTC_US) == [NOON.replace(tzinfo=UTC)]


def test_without_a_zone_or_with_two_instants_for_a_time_it_is_an_error(tmp_path: Path) -> None:
    twice = datetime(2024, 10, 27, 2, 30)
    source = phase(tmp_path, pa.array([twice], LOCAL), timeZone="Europe/Berlin")
    with pytest.raises(BacklogError, match=r"column at: a time is no one instant in Europe/Berlin"):
        read(source, UTC_US)
    (tmp_path / "b").mkdir()
    with pytest.raises(BacklogError, match=r"a\.orc: column at is a timestamp of ORC, which has no zone.*Set timeZone"):
        read(phase(tmp_path / "b", pa.array([NOON], LOCAL)), UTC_US)


@pytest.mark.parametrize(("zone", "is_read"), [("UTC", True), ("Europe/Berlin", False)])
def test_timestamps_within_others(tmp_path: Path, zone: str, is_read: bool) -> None:
    source = phase(tmp_path, pa.array([[NOON]], pa.list_(LOCAL)), timeZone=zone)
    if is_read:
        assert read(source, pa.list_(UTC_US)) == [[NOON.replace(tzinfo=UTC)]]
    else:
        with pytest.raises(BacklogError, match="has timestamps of ORC within"):
            read(source, pa.list_(UTC_US))
