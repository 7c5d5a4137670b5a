"""Runs a phase like a query: batch by batch, planned by one instance, read by pickled copies."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import pyarrow as pa

from backlog_spark.connectors.hybrid.phases import Columns, Limit, Phase, Position, Step

__all__ = ["bag", "batches_between", "rows_between", "rows_of", "steps"]


def steps(phase: Phase, limits: Iterable[int | None] = (), start: Position | None = None) -> Iterator[Step]:
    """One step per limit, to the end of the phase. The last limit repeats."""
    position = phase.begin({}) if start is None else start
    last: int | None = None
    for limit in chain(limits, repeat("last")):
        last = last if limit == "last" else limit  # type: ignore[assignment]
        step = phase.next(position, Limit(last), 0)
        # As Spark keeps it.
        position = json.loads(json.dumps(step.position))
        assert list(position) == list(step.position)
        yield step
        if step.is_finished:
            return


def batches_between(phase: Phase, start: Position, end: Position) -> list[pa.RecordBatch]:
    """The batches that tasks read, each task with its own copy of the phase and of a partition."""
    found: list[pa.RecordBatch] = []
    for partition in phase.partitions(start, end):
        task: Phase = pickle.loads(pickle.dumps(phase))
        found.extend(task.read(pickle.loads(pickle.dumps(partition))))
    return found


def rows_between(phase: Phase, start: Position, end: Position) -> list[dict[str, Any]]:
    return [row for batch in batches_between(phase, start, end) for row in batch.to_pylist()]


def rows_of(phase: Phase, columns: Columns, limits: Sequence[int | None] = ()) -> list[dict[str, Any]]:
    """All rows of a phase."""
    phase.open(columns)
    start = phase.begin({})
    found: list[dict[str, Any]] = []
    for step in steps(phase, limits, start):
        found.extend(rows_between(phase, start, step.position))
        start = step.position
    return found


def bag(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Rows without their order."""
    return Counter(repr(sorted(row.items())) for row in rows)
