"""Small batches in the driver, compared with a dict: which rows are there, and which files were replaced."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.iceberg import small_merge
from backlog_spark.sinks.iceberg.commits import Changes, commit_batch
from backlog_spark.sinks.iceberg.files import TableFiles
from backlog_spark.sinks.iceberg.marks import IcebergState, Mark
from backlog_spark.sinks.iceberg.small_merge import NewestRows, NewVersions
from backlog_spark.sinks.iceberg.tables import refuse_equality_deletes
from tests.sinks import test_row_versions as of_versions
from tests.sinks.iceberg.deletes import delete_keys, delete_positions
from tests.sinks.iceberg.places import created, rows_of, table_at
from tests.sinks.keeping_rows import Change, cut, random_log, versions

SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string()), ("v", pa.int64()), ("other", pa.string())])
STORED = ["a", "b", "v"]


def merged(path: Path, changes: dict[tuple[Any, Any], int | None], batch: int) -> Changes:
    """Upserts, and deletes where there is no value."""
    table = table_at(path)
    rows = [(a, b, v) for (a, b), v in changes.items()]
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    newest = pa.table([pa.array(c, SCHEMA.field(n).type) for c, n in zip(columns, STORED, strict=True)], STORED)
    deletes = pa.chunked_array([pa.array([v is None for v in changes.values()], pa.bool_())])
    found = small_merge.merge_small(table, NewestRows(newest, deletes, ["a", "b"]))
    assert isinstance(found, Changes)
    commit_batch(IcebergState(table, Mark.of(table.properties, "app")), "app", batch, found)
    return found


@pytest.mark.parametrize("partitioned", [False, True])
def test_random_batches(tmp_path: Path, partitioned: bool) -> None:
    rng = random.Random(7)
    table = created(tmp_path, SCHEMA)
    if partitioned:
        with table.update_spec() as spec:
            spec.add_identity("v")  # so a change moves a row to another partition
    keys = [(a, b) for a in (None, *range(40)) for b in (None, "", "x")]
    expected: dict[tuple[Any, Any], int] = {}
    for batch in range(25):
        chosen = rng.sample(keys, rng.choice([0, 1, 5, 30]))
        changes = {key: rng.choice([None, 1, 2, 3]) for key in chosen}
        merged(tmp_path, changes, batch)
        for key, value in changes.items():
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
        assert rows_of(table, STORED) == Counter((a, b, v) for (a, b), v in expected.items()), batch


def test_only_files_with_keys_are_replaced(tmp_path: Path) -> None:
    created(tmp_path, SCHEMA)
    merged(tmp_path, {(n, "x"): n for n in range(0, 10)}, 0)
    merged(tmp_path, {(n, "x"): n for n in range(100, 110)}, 1)
    merged(tmp_path, {(n, "x"): n for n in range(200, 210)}, 2)
    # In the range of the second file, but in none: nothing is replaced. New keys get a file of their own.
    assert merged(tmp_path, {(105, "y"): 7}, 3).removed == []
    found = merged(tmp_path, {(105, "x"): 8, (1, "x"): None, (500, "x"): 9}, 4)
    assert (len(found.removed), sorted(file.record_count for file in found.added)) == (2, [1, 9, 10])
    assert merged(tmp_path, {(999, "x"): None}, 5) == Changes([], []), "a delete of nothing writes nothing"


def test_other_columns_keep_their_values(tmp_path: Path) -> None:
    table = created(tmp_path, SCHEMA)
    table.append(pa.table([[1, 2, 2], ["x", "x", "x"], [1, 2, 3], ["one", "two", "twin"]], schema=SCHEMA))
    merged(tmp_path, {(1, "x"): 10, (2, "x"): 20, (3, "x"): 30}, 0)
    # Two rows of one key, as another writer can leave them, become one.
    found = rows_of(table)
    assert found - Counter([(2, "x", 20, "two"), (2, "x", 20, "twin")]) == Counter(
        [(1, "x", 10, "one"), (3, "x", 30, None)]
    )
    assert found.total() == 3


@pytest.mark.parametrize("tracked", [("a", "b"), ("a",), ()])
def test_random_versions(tmp_path: Path, tracked: tuple[str, ...]) -> None:
    chance = random.Random(f"{tracked}")
    table = created(tmp_path, of_versions.SCHEMA.remove(7).remove(6))
    log = random_log(chance, 120, truncates=False)
    done: list[Change] = []
    for number, batch in enumerate(cut(chance, log, 12)):
        source = of_versions.source_of(batch, tracked)
        new = NewVersions(source, of_versions.STORED, ["id"], of_versions.COLUMNS, tracked)
        table.refresh()
        found = small_merge.merge_small(table, new)
        assert isinstance(found, Changes)
        commit_batch(IcebergState(table, Mark.of(table.properties, "app")), "app", number, found)
        done += batch
        rows = table.refresh().scan().to_arrow().to_pylist()
        assert of_versions.as_counter(rows) == versions(done, tracked), number


def test_too_many_rows_or_bytes_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = created(tmp_path, SCHEMA)
    merged(tmp_path, {(n, "x"): n for n in range(100)}, 0)
    newest = pa.table({"a": pa.array([1], pa.int32()), "b": ["x"], "v": [5]})
    deletes = pa.chunked_array([np.array([False])])
    table.refresh()
    for limit, reason in (("_MOST_KEYS", "files with 100 rows"), ("_MOST_BYTES", r"files with [\d,]+ bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(small_merge, limit, 10)
            found = small_merge.merge_small(table, NewestRows(newest, deletes, ["a", "b"]))
            assert isinstance(found, str)
            assert re.search(reason, found)


def test_rows_that_another_writer_deleted_by_position_stay_deleted(tmp_path: Path) -> None:
    table = created(tmp_path, SCHEMA)
    merged(tmp_path, {(n, "x"): n for n in range(5)}, 0)
    (task,) = table.refresh().scan().plan_files()
    order = TableFiles.of(table).read(task)["a"].to_pylist()
    delete_positions(table, task.file.file_path, [order.index(1), order.index(3)])
    assert rows_of(table, STORED) == Counter((n, "x", n) for n in (0, 2, 4))
    merged(tmp_path, {(0, "x"): 7, (3, "x"): 8}, 1)
    assert rows_of(table, STORED) == Counter([(0, "x", 7), (2, "x", 2), (3, "x", 8), (4, "x", 4)])


def test_equality_deletes_are_refused(tmp_path: Path) -> None:
    table = created(tmp_path, pa.schema([("id", pa.int64())]))
    refuse_equality_deletes("shop.orders", table)
    table.append(pa.table({"id": [1, 2, 3]}))
    (task,) = table.scan().plan_files()
    delete_positions(table, task.file.file_path, [0])
    refuse_equality_deletes("shop.orders", table.refresh())
    path = delete_keys(table, "id", [2])
    table.refresh()
    with pytest.raises(ValueError, match="does not yet support equality deletes"):
        list(table.scan().plan_files())
    with pytest.raises(BacklogError, match=rf"Iceberg table shop\.orders.*{re.escape(path)}\. Let Spark rewrite"):
        refuse_equality_deletes("shop.orders", table)
