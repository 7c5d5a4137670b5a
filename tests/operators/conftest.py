"""Fixtures for the tests of keyed operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.model.changes import CHANGE_TYPE, DELETE, INSERT, POSTIMAGE, PREIMAGE
from backlog_spark.spi import registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Collect(bs.Sink):
    """Keeps what each batch wrote; a replayed batch replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.backlog: dict[int, bool] = {}

    def open(self, context: Any) -> None:
        self.schema = context.schema

    def write(self, batch_df: Any, batch: Any) -> None:
        rows = batch_df.collect()
        # New dictionaries: the test's thread may be going through the old ones.
        self.backlog = {**self.backlog, batch.batch_id: batch.is_backlog}
        self.batches = {**self.batches, batch.batch_id: rows}

    def newest(self, keys: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The last row of every key, as an upserting sink would have it; the first ``keys`` columns are the key."""
        found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for number, batch in sorted(self.batches.items()):
            rows = [tuple(row) for row in batch]
            if CHANGE_TYPE in self.schema.names:
                at = self.schema.names.index(CHANGE_TYPE)
                for row in rows:
                    if row[at] in (DELETE, PREIMAGE):
                        found.pop(plain(row[:keys]), None)
                rows = [(*row[:at], *row[at + 1 :]) for row in rows if row[at] in (INSERT, POSTIMAGE)]
            once = {plain(row[:keys]): plain(row[keys:]) for row in rows}
            assert len(once) == len(rows), f"batch {number} has a key twice"
            found.update(once)
        return found


def plain(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values that compare: NaN equals itself, and lists are tuples."""
    return tuple("NaN" if v != v else tuple(v) if isinstance(v, list) else v for v in values)


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CONNECTORS, "scripted", ("tests.operators.scripted", "ScriptedDataSource"))


@pytest.fixture
def small_plans(spark: SparkSession) -> Iterator[None]:
    """Without whole-stage code, whose compilation takes most of the time of plans with a hundred expressions.

    Each expression is still compiled, and the tests without this fixture run as users' queries do.
    """
    key = "spark.sql.codegen.wholeStage"
    spark.conf.set(key, "false")
    yield
    spark.conf.unset(key)


def wait(condition: Callable[[], bool], query: bs.BacklogQuery, seconds: float = 300) -> None:
    """Wait until a condition holds or the query ends."""
    limit = time.monotonic() + seconds
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < limit
        time.sleep(0.05)
