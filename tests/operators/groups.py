"""Drives a key group like a worker of the stream vehicle, with a dictionary as state store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from backlog_spark.operators.fold import Fold
from backlog_spark.spark.plan.group_processor import GroupProcessor
from backlog_spark.state.seeds import CONTROL, LIVE, SEED_SILENT, Control
from backlog_spark.state.tables import to_bytes
from backlog_spark.state.timer_reports import GroupReport

__all__ = ["Handle", "run"]


class Handle:
    """Spark's state store, as far as a key group sees it."""

    def __init__(self) -> None:
        self.head: Any = None
        self.buckets: dict[tuple[int], Any] = {}
        self.reads = 0

    def getValueState(self, name: str, schema: str) -> Any:
        return self

    def getMapState(self, name: str, keys: str, values: str) -> Any:
        return self

    def exists(self) -> bool:
        return self.head is not None

    def get(self) -> Any:
        return self.head

    def update(self, head: Any) -> None:
        self.head = head

    def iterator(self) -> Iterator[Any]:
        self.reads += len(self.buckets)
        return iter(list(self.buckets.items()))

    def getValue(self, key: tuple[int]) -> Any:
        self.reads += 1
        return self.buckets.get(key)

    def updateValue(self, key: tuple[int], value: Any) -> None:
        self.buckets[key] = value

    def removeKey(self, key: tuple[int]) -> None:
        self.buckets.pop(key, None)


class _Reports:
    """Spark's accumulator, as far as a key group sees it."""

    def __init__(self, kept: list[GroupReport]) -> None:
        self._kept = kept

    def add(self, report: dict[Any, GroupReport]) -> None:
        self._kept += report.values()


def run(
    fold: Fold,
    handle: Handle,
    live: pa.RecordBatch,
    control: Control,
    reports: list[GroupReport],
    seeds: Sequence[pa.RecordBatch] = (),
    watermark: int | None = None,
) -> list[bytes]:
    """Run one batch as a new process would. Returns its packed output and adds its report to ``reports``.

    ``seeds`` is state whose results are out, by a stay in backlog that ended with this watermark.
    """
    packed = [(SEED_SILENT, to_bytes(seed)) for seed in seeds]
    packed += [(LIVE, to_bytes(live))] if live.num_rows else []
    packed.append((CONTROL, control.to_bytes()))
    slots = len(fold.state.slots)
    rows = [Row(origin=origin, slots=slots, data=data) for origin, data in packed]
    processor = GroupProcessor(fold, "f", _Reports(reports), watermark)  # type: ignore[arg-type]
    processor.init(handle)  # type: ignore[arg-type]
    return [bytes(row.data) for row in processor.handleInputRows((0,), iter(rows), None)]
