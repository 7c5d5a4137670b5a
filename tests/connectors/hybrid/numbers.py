"""Phases of numbers, for tests that need no real source. Tests decide which numbers are available."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from backlog_spark.connectors.hybrid.phases import Columns, Limit, Phase, Position, Step

__all__ = ["Live", "Numbers", "Range"]


@dataclass
class Range(InputPartition):
    """Some numbers."""

    start: int
    end: int


class Numbers(Phase):
    """A range of numbers. Batches can only be cut at multiples of ``step``."""

    is_bounded = True  # type: ignore[misc]

    def __init__(self, name: str, first: int, end: int, step: int = 1) -> None:
        super().__init__(name)
        self.first_number, self.end, self.step = first, end, step

    def schema(self) -> pa.Schema | None:
        return pa.schema([("n", pa.int64())])

    def open(self, columns: Columns) -> None:
        assert columns.data.names == ["n"]

    def begin(self, before: Mapping[str, Any]) -> Position:
        return {"at": self.first_number, "first": self.first_number, "told": dict(before)}

    def first(self, position: Position) -> Position:
        return {**position, "at": position["first"]}

    def next(self, start: Position, limit: Limit, now_ms: float) -> Step:
        at = start["at"]
        end = self.end
        if limit.rows is not None:
            cut = -(-(at + limit.rows) // self.step) * self.step if limit.rows > 0 else at
            end = min(end, cut)
        return Step({**start, "at": end}, end - at, end == self.end, True, self.end - self.first_number)

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        return [Range(start["at"], end["at"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        yield pa.record_batch({"n": list(range(partition.start, partition.end))})

    def ended(self, position: Position) -> Mapping[str, Any]:
        return {"last": position["at"] - 1}


class Live(Numbers):
    """Unbounded numbers. Backlog while more than ``threshold`` are unread."""

    is_bounded = False  # type: ignore[misc]

    def __init__(self, name: str, first: int, threshold: float = float("inf")) -> None:
        super().__init__(name, first, first)
        self.threshold = threshold

    def next(self, start: Position, limit: Limit, now_ms: float) -> Step:
        step = super().next(start, limit, now_ms)
        return Step(step.position, step.rows, False, self.end - step.position["at"] > self.threshold)

    def is_backlog(self, position: Position) -> bool:
        return self.end - position["at"] > self.threshold

    def target(self, start: Position) -> Position | None:
        return {**start, "at": self.end}

    def next_until(self, start: Position, target: Position, limit: Limit, now_ms: float) -> Step:
        now, self.end = self.end, target["at"]
        try:
            step = self.next(start, limit, now_ms)
        finally:
            self.end = now
        return Step(step.position, step.rows, step.position["at"] == target["at"], step.is_backlog)
