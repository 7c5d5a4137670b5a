"""Timestamps of ORC, which have no zone of their own."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pytest

from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.phases import Columns
from backlog_spark.errors import BacklogError

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


def test_a_local_timestamp_needs_no_zone(tmp_path: Path) -> None:
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
    with pytest.raises(BacklogError, match=r"column at: a time is not a single instant in Europe/Berlin"):
        read(source, UTC_US)
    (tmp_path / "b").mkdir()
    with pytest.raises(BacklogError, match=r"a\.orc: column at is an ORC timestamp, which has no zone.*Set timeZone"):
        read(phase(tmp_path / "b", pa.array([NOON], LOCAL)), UTC_US)


@pytest.mark.parametrize(("zone", "is_read"), [("UTC", True), ("Europe/Berlin", False)])
def test_nested_timestamps(tmp_path: Path, zone: str, is_read: bool) -> None:
    source = phase(tmp_path, pa.array([[NOON]], pa.list_(LOCAL)), timeZone=zone)
    if is_read:
        assert read(source, pa.list_(UTC_US)) == [[NOON.replace(tzinfo=UTC)]]
    else:
        with pytest.raises(BacklogError, match="has nested ORC timestamps"):
            read(source, pa.list_(UTC_US))


def hive(tmp_path: Path, **options: str) -> FilePhase:
    """A file of Hive, beside one that has names and its columns in another order."""
    (tmp_path / "data/k=1").mkdir(parents=True)
    orc.write_table(
        pa.table({"_col0": [1], "_col1": ["a"], "_col2": pa.array([NOON], LOCAL)}), tmp_path / "data/k=1/a.orc"
    )
    orc.write_table(pa.table({"name": ["b"], "id": [2]}), tmp_path / "data/k=1/b.orc")
    given = {"path": str(tmp_path / "data"), "metadataLocation": str(tmp_path / "meta"), "fileFormat": "orc"}
    return FilePhase("old", given | options)


def test_unnamed_columns_are_read_by_index_as_in_spark(tmp_path: Path) -> None:
    declared = pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("at", UTC_US), ("k", pa.int32()), ("late", LOCAL)]
    )
    read = rows_of(hive(tmp_path, timeZone="Europe/Berlin"), Columns(declared))
    instant = datetime(2024, 7, 1, 10, 0, 0, 5, tzinfo=UTC)
    assert read == [
        {"id": 1, "name": "a", "at": instant, "k": 1, "late": None},
        {"id": 2, "name": "b", "at": None, "k": 1, "late": None},
    ]


def test_unnamed_columns_are_not_guessed(tmp_path: Path) -> None:
    source = hive(tmp_path)
    assert source.schema() is None, "the columns must be declared"
    assert source.columns_at_hand() == [pa.schema([("name", pa.string()), ("id", pa.int64()), ("k", pa.int32())])]
    with pytest.raises(
        BacklogError, match=r"a\.orc was written by Hive without .* its 3 columns.* has only 2: id, name"
    ):
        rows_of(source, Columns(pa.schema([("id", pa.int64()), ("name", pa.string()), ("k", pa.int32())])))
    (tmp_path / "data/k=1/b.orc").unlink()
    only = Columns(pa.schema([("_col1", pa.string())]))
    assert rows_of(source, only) == [{"_col1": "a"}]


def test_a_type_found_by_index_does_not_fit(tmp_path: Path) -> None:
    declared = pa.schema([("name", pa.string()), ("id", pa.int64()), ("at", LOCAL)])
    with pytest.raises(BacklogError, match=r"a\.orc: column name: is int64 there and declared as string"):
        rows_of(hive(tmp_path), Columns(declared))
