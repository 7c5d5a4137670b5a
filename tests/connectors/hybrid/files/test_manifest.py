"""The list of files. Positions refer to it by its digest."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from backlog_spark.common.stores import FileFound, LocalStore, store_of
from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.files.entries import DataFile
from backlog_spark.connectors.hybrid.files.found import gathered
from backlog_spark.connectors.hybrid.files.listing import Listed
from backlog_spark.connectors.hybrid.files.manifest import read_manifest, write_manifest
from backlog_spark.connectors.hybrid.phases import Columns, Limit
from backlog_spark.errors import BacklogError

_LISTED = [
    Listed(FileFound(f"/data/day={i % 7}/part-{i:06d}.parquet", False, 1_000 + i, str(10**18 + i), float(i)), 5)
    for i in range(100_000)
]
FILES = gathered(_LISTED, ["modified", "path"])


@pytest.mark.parametrize("url", ["{tmp}/meta", "memory://manifests/meta"])
def test_a_hundred_thousand_files_come_back_and_make_a_small_position(tmp_path: Path, url: str) -> None:
    store, directory = store_of(url.format(tmp=tmp_path), {})
    name = write_manifest(store, directory, FILES)
    found = read_manifest(store, directory, name)
    assert len(found) == 100_000
    assert found[99_999] == DataFile("/data/day=4/part-099999.parquet", 100_999, str(10**18 + 99_999), (("day", "4"),))
    assert found[1:3] == [found[1], found[2]]


def test_planning_over_a_hundred_thousand_files_opens_none(tmp_path: Path) -> None:
    name = write_manifest(LocalStore(), str(tmp_path), FILES)
    phase = FilePhase("old", {"path": "/data", "metadataLocation": str(tmp_path)})
    phase.open(Columns(pa.schema([("a", pa.int64())])))
    start = {"manifest": name, "files": 100_000, "file": 0, "offset": 0}
    end = start | {"file": 100_000}
    assert len(json.dumps(end)) < 1_000
    # None of them exists.
    pieces = [piece for partition in phase.partitions(start, end) for piece in partition.pieces]
    assert [piece.file.path for piece in pieces] == [file.found.path for file in _LISTED]
    assert phase.next(end, Limit(), 0).is_finished


def test_the_same_list_has_the_same_name_and_another_has_another(tmp_path: Path) -> None:
    names = {write_manifest(LocalStore(), str(tmp_path), FILES.slice(0, n)) for n in (10, 10, 11)}
    assert len(names) == 2
    assert {path.name for path in tmp_path.iterdir()} == {f"files-{name}.parquet" for name in names}


def test_a_list_that_is_gone_or_damaged(tmp_path: Path) -> None:
    name = write_manifest(LocalStore(), str(tmp_path), FILES.slice(0, 10))
    path = tmp_path / f"files-{name}.parquet"
    data = path.read_bytes()
    for broken in (data[:-1], data[:100] + b"x" + data[101:], b""):
        path.write_bytes(broken)
        with pytest.raises(BacklogError, match=f"{path} is damaged.*metadataLocation"):
            read_manifest(LocalStore(), str(tmp_path), name)
    path.unlink()
    with pytest.raises(BacklogError, match=f"{path} is gone.*metadataLocation"):
        read_manifest(LocalStore(), str(tmp_path), name)
