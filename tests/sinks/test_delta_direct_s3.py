"""Small commits to a table on S3: only one of two writers gets a version."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from backlog_spark.sinks.delta.deltars.commits import DirectTable
from backlog_spark.sinks.delta.deltars.limits import CommitConflict
from tests.sinks.s3 import lake

pytestmark = pytest.mark.process

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["a", "b"]})


def test_one_of_two_writers_commits() -> None:
    with lake() as options:
        _two_writers(options)


def _two_writers(storage_options: dict[str, str]) -> None:
    write_deltalake("s3://lake/t", ROWS, storage_options=storage_options)
    first, second = (DirectTable("s3a://lake/t", storage_options) for _ in range(2))
    assert second.state("app").batch is None
    changes = pa.table({"id": pa.array([2, 3], pa.int64()), "v": ["b1", "c"]})
    first.merge(changes, pa.chunked_array([[False, False]]), ["id"], "app", 0)
    with pytest.raises(CommitConflict):
        second.merge(changes, pa.chunked_array([[False, False]]), ["id"], "app", 0)
    with pytest.raises(CommitConflict):
        second.append(changes, "other", 0)
    assert second.state("app") == first.state("app")
    assert second.state("app").batch == 0
    second.append(ROWS.slice(0, 1), "other", 0)
    table = DeltaTable("s3://lake/t", storage_options=storage_options)
    found = pa.table(QueryBuilder().register("t", table).execute("SELECT id, v FROM t").read_all())
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == [(1, "a"), (1, "a"), (2, "b1"), (3, "c")]
