"""Merged files and expired snapshots: the same rows, and no file that nobody needs."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from backlog_spark.sinks.iceberg.care import expired, look_after, merged_files
from backlog_spark.sinks.iceberg.marks import IcebergState, Mark
from tests.sinks.iceberg.places import created, rows_of, table_at

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def grown(lake: Path, commits: int, *, partitioned: bool = False) -> Counter[tuple[int, str]]:
    """A table with a small file for each commit; the rows."""
    table = created(lake, SCHEMA)
    if partitioned:
        with table.update_spec() as spec:
            spec.add_identity("day")
    rows = [(number, "ab"[number % 2]) for number in range(commits)]
    for number, day in rows:
        table.append(pa.table({"id": [number], "day": [day]}, SCHEMA))
    return Counter(rows)


def state(lake: Path) -> IcebergState:
    return IcebergState(table_at(lake), Mark.of(table_at(lake).properties, "app"))


@pytest.mark.parametrize("partitioned", [False, True])
def test_small_files_become_one_for_each_partition(tmp_path: Path, partitioned: bool) -> None:
    rows = grown(tmp_path, 32 if partitioned else 16, partitioned=partitioned)
    assert merged_files(state(tmp_path)) == (30 if partitioned else 15)
    assert rows_of(table_at(tmp_path)) == rows
    assert len(list(table_at(tmp_path).scan().plan_files())) == (2 if partitioned else 1)
    assert merged_files(state(tmp_path)) == 0


def test_another_writer_is_faster(tmp_path: Path) -> None:
    rows = grown(tmp_path, 16)
    old = state(tmp_path)
    table_at(tmp_path).append(pa.table({"id": [99], "day": ["z"]}, SCHEMA))
    before = set(tmp_path.rglob("*.parquet"))
    look_after(old, compact=True, expire_ms=None)
    assert rows_of(table_at(tmp_path)) == rows + Counter([(99, "z")])
    assert set(tmp_path.rglob("*.parquet")) == before


def test_expired_snapshots_take_their_files_along(tmp_path: Path) -> None:
    rows = grown(tmp_path, 20)
    table = table_at(tmp_path)
    tagged = table.snapshots()[3]
    table.manage_snapshots().create_tag(tagged.snapshot_id, "kept").commit()
    assert merged_files(state(tmp_path)) == 19
    assert expired(table_at(tmp_path), 0) == 0, "none is so old"
    assert expired(table_at(tmp_path), round(time.time() * 1000) + 1) == 19
    table = table_at(tmp_path)
    assert rows_of(table) == rows
    old = table.scan(snapshot_id=tagged.snapshot_id).to_arrow()
    assert sorted(old["id"].to_pylist()) == [0, 1, 2, 3]
    lists = {each.manifest_list for each in table.snapshots()}
    manifests = {m for each in table.snapshots() for m in each.manifests(table.io)}
    data = {e.data_file.file_path for m in manifests for e in m.fetch_manifest_entry(table.io)}
    there = {str(path) for path in tmp_path.rglob("*") if path.suffix in (".avro", ".parquet")}
    assert there == lists | {m.manifest_path for m in manifests} | data
    assert len(data) == 5, "four of the tag, and the merged one"
