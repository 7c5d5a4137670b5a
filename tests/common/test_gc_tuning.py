"""How often Python collects garbage."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from backlog_spark.common.gc_tuning import collect_rarely, keep_imports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((700, 10, 10), (50_000, 10, 10), id="python's own"),
        pytest.param((100_000, 3, 4), (100_000, 3, 4), id="rarer still"),
        pytest.param((0, 10, 10), (0, 10, 10), id="never"),
    ],
)
def test_never_more_often_than_before(before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
    gc.set_threshold(*before)
    collect_rarely()
    assert gc.get_threshold() == after


def test_a_worker_keeps_what_it_has_imported(spark: SparkSession) -> None:
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = []
        for name in ("not_there_before", "", "nor_this_one"):
            if name:
                sys.modules[name] = types.ModuleType(name)
            keep_imports()
            found.append(gc.get_freeze_count())
            cycle: list[object] = []
            cycle.append(cycle)
        for name in ("not_there_before", "nor_this_one"):
            del sys.modules[name]
        yield pa.RecordBatch.from_pydict({"n": found})
        for _ in batches:
            pass

    first, second, third = (row[0] for row in spark.range(1).coalesce(1).mapInArrow(frozen, "n long").collect())
    assert first > 10_000
    assert second == first, "nothing has been imported since"
    assert third > second
    found = gc.get_freeze_count()
    keep_imports()
    assert gc.get_freeze_count() == found, "this process is no worker"
