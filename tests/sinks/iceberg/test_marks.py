"""The mark of a query in a table: exact, in one commit with the rows, and gone with them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.base import SinkContext
from backlog_spark.sinks.iceberg.commits import Changes, commit_batch, commit_compacted
from backlog_spark.sinks.iceberg.files import TableFiles
from backlog_spark.sinks.iceberg.marks import ACCEPTED, CREATED_BY, IcebergState, KnownBatches, Mark, mark_name
from tests.sinks.iceberg.places import created, rows_of, table_at

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    created(tmp_path, SCHEMA, {CREATED_BY: "app"})
    return tmp_path


def state(lake: Path, app_id: str = "app") -> IcebergState:
    table = table_at(lake)
    return IcebergState(table, Mark.of(table.properties, app_id))


def write(lake: Path, batch: int, ids: list[int], app_id: str = "app", on: IcebergState | None = None) -> None:
    now = on or state(lake, app_id)
    commit_batch(now, app_id, batch, Changes(TableFiles.of(now.table).write(pa.table({"id": ids}, SCHEMA))))


def known(planned: int | None, committed: int | None, **more: Any) -> KnownBatches:
    context = SinkContext(None, "app", None, True, planned, committed, **more)  # type: ignore[arg-type]
    return KnownBatches("shop.orders", context)


def test_a_batch_and_its_mark_are_one_commit(lake: Path) -> None:
    write(lake, 0, [1, 2])
    first = state(lake)
    assert first.mark == Mark(0, first.head, 1, True)
    assert first.table.current_snapshot().summary[mark_name("app")] == "0"  # type: ignore[union-attr, index]
    write(lake, 1, [])
    empty = state(lake)
    assert empty.head != first.head, "an empty batch makes a snapshot"
    assert empty.mark == Mark(1, empty.head, 2, True)
    write(lake, 0, [3], "other")
    assert state(lake).mark == empty.mark
    assert state(lake, "other").mark == Mark(0, state(lake, "other").head, 3, False), "another query created the table"


def test_a_foreign_commit_in_between_writes_nothing(lake: Path) -> None:
    old = state(lake)
    write(lake, 0, [1], "other")
    for ids in ([7], []):
        with pytest.raises(CommitFailedException):
            write(lake, 0, ids, on=IcebergState(old.table, None))
        old = IcebergState(old.table.refresh(), None)
        write(lake, 1, [2], "other")
    assert rows_of(table_at(lake)) == Counter([(1,), (2,), (2,)])
    assert state(lake).mark is None
    # Manifests of a failed commit are removed.
    table = table_at(lake)
    snapshots = [s.manifest_list for s in table.snapshots()]
    used = {m.manifest_path for s in table.snapshots() for m in s.manifests(table.io)} | set(snapshots)
    assert {str(path) for path in lake.rglob("*.avro")} == used


def test_alone_until_another_writer_adds_rows(lake: Path) -> None:
    assert state(lake).is_alone("app")
    assert not state(lake).is_alone("other")
    for batch in range(3):
        write(lake, batch, [batch])
        assert state(lake).is_alone("app")
    now = state(lake)
    tasks = list(now.table.scan().plan_files())
    files = TableFiles.of(now.table)
    merged = files.write(pa.concat_tables([files.read(task) for task in tasks]))
    commit_compacted(now, Changes(merged, [task.file for task in tasks]))
    assert state(lake).is_alone("app"), "the rows are the same"
    write(lake, 3, [3])
    table_at(lake).append(pa.table({"id": [9]}, SCHEMA))
    assert not state(lake).is_alone("app")
    write(lake, 4, [4])
    assert not state(lake).is_alone("app"), "and never again"
    assert rows_of(table_at(lake)) == Counter([(0,), (1,), (2,), (3,), (4,), (9,)])


def test_batches_are_compared_with_the_checkpoint(lake: Path) -> None:
    assert known(None, None).has(state(lake), 0) is False
    with pytest.raises(BacklogError, match=r"Iceberg table shop\.orders lacks batches.*up to 0, the table none of"):
        known(0, 0).check_at_start(state(lake))
    write(lake, 0, [1])
    for planned in (None, -1):
        with pytest.raises(BacklogError, match="has batch 0 of this query, but the newest batch in its checkpoint"):
            known(planned, None).check_at_start(state(lake))
    found = known(0, None)
    found.check_at_start(state(lake))
    assert found.has(state(lake), 0)
    assert not found.has(state(lake), 1)
    with pytest.raises(BacklogError, match="lacks batches of this query"):
        found.has(state(lake), 2)


def roll_back(lake: Path, snapshot: int | None) -> None:
    table_at(lake).manage_snapshots().set_current_snapshot(snapshot).commit()


def test_a_rollback_stops_the_query(lake: Path) -> None:
    write(lake, 0, [1])
    first = state(lake).head
    write(lake, 1, [2])
    write(lake, 2, [])
    second = state(lake).head
    known(2, 2).check_at_start(state(lake))
    roll_back(lake, first)
    message = rf"no longer has all batches.*snapshot {second} of batch 2 is no ancestor.*{first}.*rolled back.*set_curr"
    with pytest.raises(BacklogError, match=message):
        known(2, 2).check_at_start(state(lake))
    table_at(lake).append(pa.table({"id": [9]}, SCHEMA))
    with pytest.raises(BacklogError, match="was rolled back"):
        known(2, 2).has(state(lake), 3)
    # The owner accepts this loss, and no other one.
    with table_at(lake).transaction() as transaction:
        transaction.set_properties({ACCEPTED: str(second)})
    known(2, 2).check_at_start(state(lake))
    write(lake, 3, [3])
    known(3, 3).check_at_start(state(lake))
    roll_back(lake, first)
    with pytest.raises(BacklogError, match="was rolled back"):
        known(3, 3).check_at_start(state(lake))


def test_a_rollback_that_was_undone_is_none(lake: Path) -> None:
    write(lake, 0, [1])
    first = state(lake).head
    write(lake, 1, [2])
    second = state(lake).head
    roll_back(lake, first)
    roll_back(lake, second)
    known(1, 1).check_at_start(state(lake))


def test_expired_snapshots_are_no_rollback(lake: Path) -> None:
    write(lake, 0, [1])
    mine = state(lake).head
    for number in range(3):
        table_at(lake).append(pa.table({"id": [number]}, SCHEMA))
    table = table_at(lake)
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.snapshots()][:-1]).commit()
    assert table_at(lake).snapshot_by_id(mine or 0) is None
    known(0, 0).check_at_start(state(lake))
    assert not state(lake).is_alone("app")
    write(lake, 1, [5])
    known(1, 1).check_at_start(state(lake))


def test_a_rollback_is_seen_by_the_order_of_commits(lake: Path) -> None:
    write(lake, 0, [1])
    first = state(lake).head
    write(lake, 1, [2])
    mine = state(lake).head
    roll_back(lake, first)
    table_at(lake).append(pa.table({"id": [9]}, SCHEMA))
    table_at(lake).maintenance.expire_snapshots().by_id(mine or 0).commit()
    with pytest.raises(BacklogError, match="was rolled back"):
        known(1, 1).check_at_start(state(lake))
