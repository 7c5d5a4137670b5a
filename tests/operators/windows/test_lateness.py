"""Which rows are late: as in Flink's WindowOperator, whatever the windows, and wherever batches are cut."""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

import backlog_spark as bs
from backlog_spark.decide.ledger import Ledger
from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import ASKED, INSERT, POSTIMAGE
from backlog_spark.model.watermarks import EVENT_TIME, MIN_WATERMARK
from backlog_spark.operators.aggregates.retracting import window_aggregate_fold
from backlog_spark.operators.aggregates.sums import Sum
from backlog_spark.operators.fold import Fold
from backlog_spark.operators.joins.cogroup import WindowRowsFold
from backlog_spark.operators.merge import CODE, CODES
from backlog_spark.operators.windows.assigners import WindowAssigner
from backlog_spark.operators.windows.columns import END, START
from backlog_spark.operators.windows.fold import WindowFold, WindowOptions
from backlog_spark.operators.windows.sessions import SessionFold
from backlog_spark.state.seeds import Control
from backlog_spark.state.tables import arrow_schema, from_bytes
from backlog_spark.state.timer_reports import GroupReport
from tests.operators.groups import Handle, run

ASSIGNERS = {
    "tumbling": bs.TumblingEventTimeWindows.of("10 ms", "3 ms"),
    "hopping": bs.SlidingEventTimeWindows.of("10 ms", "4 ms"),
    "cumulative": bs.CumulativeEventTimeWindows.of("15 ms", "5 ms"),
    "session": bs.EventTimeSessionWindows.with_gap("5 ms"),
}
DELAY = 6
SCHEMA = (
    StructType()
    .add("k", StringType())
    .add(StructField("ts", TimestampType(), True, {EVENT_TIME: "ts"}))
    .add("v", LongType())
)


class Row(NamedTuple):
    """A row; its time is in microseconds."""

    key: str
    time: int
    value: int


Batch = tuple[int, list[Row]]  # a watermark in milliseconds, and the rows after it


@dataclass
class Flink:
    """Flink's WindowOperator: one row after another, each with the watermark before it. Times are in microseconds.

    The rows of a batch have no order here, so the operator merges them as if the latest came first.
    """

    assigner: WindowAssigner
    lateness: int
    table: Counter[Any] = field(default_factory=Counter)
    """The results, without those that were retracted."""
    late: int = 0
    _open: dict[tuple[str, int, int], tuple[int, bool]] = field(default_factory=dict)
    _watermark: int = -(2**62)

    def take(self, rows: Iterable[Row], watermark: int) -> None:
        self._watermark = watermark * 1000 + 999
        for (key, start, end), (total, fired) in list(self._open.items()):
            if end - 1 <= self._watermark:
                self.table[key, start, end, total] += not fired
                self._open[key, start, end] = total, True
            if end - 1 + self.lateness * 1000 <= self._watermark:
                del self._open[key, start, end]
        for row in sorted(rows, key=lambda row: -row.time):
            self.late += sum(self._added(row, *span) for span in self._windows(row.time)) == 0

    def _windows(self, time: int) -> Iterable[tuple[int, int]]:
        size, step, offset = (1000 * each for each in (self.assigner.size_ms, self.assigner.step_ms, self._offset))
        if self.assigner.is_session:
            yield time, time + size
        elif self.assigner.is_cumulative:
            start = (time - offset) // size * size + offset
            yield from ((start, end) for end in range(start + step, start + size + 1, step) if time < end)
        else:
            last = (time - offset) // step * step + offset
            yield from ((start, start + size) for start in range(last, last - size, -step) if time < start + size)

    @property
    def _offset(self) -> int:
        return self.assigner.offset_ms

    def _added(self, row: Row, start: int, end: int) -> bool:
        parts = [(row.key, start, end)]
        if self.assigner.is_session:
            parts = [each for each in self._open if each[0] == row.key and each[1] <= end and start <= each[2]]
            start, end = min([start, *(each[1] for each in parts)]), max([end, *(each[2] for each in parts)])
        if end - 1 + self.lateness * 1000 <= self._watermark:
            assert not self.assigner.is_session or not parts
            return False
        total = row.value
        for part in parts:
            before, fired = self._open.pop(part, (0, False))
            self.table[*part, before] -= fired
            total += before
        over = end - 1 <= self._watermark
        self._open[row.key, start, end] = total, over
        self.table[row.key, start, end, total] += over
        return True


class Sums(bs.WindowFunction):
    output = StructType().add("k", StringType()).add("start", LongType()).add("end", LongType()).add("v", LongType())

    def apply(self, key: Any, window: bs.TimeWindow, rows: Any) -> Any:
        assert window.start <= window.max_timestamp() < window.end
        exact = [int(row.ts.timestamp() * 1_000_000 + 0.5) for row in rows]
        yield key, min(exact), max(exact), sum(row.v for row in rows)


class Operator(ABC):
    """A key group of an operator of ours."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.table: Counter[Any] = Counter()
        self._handle = Handle()
        self._reports: list[GroupReport] = []

    def take(self, rows: Sequence[Row], watermark: int) -> None:
        schema = self.fold.live_schema()
        live = pa.RecordBatch.from_pylist([each for row in rows for each in self.lifted(row)], schema)
        for data in run(copy.deepcopy(self.fold), self._handle, live, Control(watermark=watermark), self._reports):
            self.emitted(data)

    @property
    def late(self) -> int:
        return sum(report.late for report in self._reports)

    @abstractmethod
    def lifted(self, row: Row) -> list[dict[str, Any]]:
        """The row as the fold takes it."""

    @abstractmethod
    def emitted(self, data: bytes) -> None:
        """Take what the fold put out."""


class Aggregate(Operator):
    """The sum of each window. With an allowed lateness it emits changes."""

    fold: WindowFold

    def __init__(self, assigner: WindowAssigner, lateness: int, *, first: bool = True) -> None:
        def make(keys: Sequence[str], rows: StructType, hidden: Sequence[str]) -> Any:
            return window_aggregate_fold(keys, [Sum("v", name="total")], rows, 4, hidden)

        kind = SessionFold if assigner.is_session else WindowFold
        options = WindowOptions(assigner, lateness_ms=lateness, control_first=first)
        super().__init__(kind(["k"], make, SCHEMA, options, ASKED if lateness else ""))

    def lifted(self, row: Row) -> list[dict[str, Any]]:
        assigner = self.fold.options.assigner
        _, starts, ends = assigner.assign(np.array([row.time // assigner.micros_a_unit]))
        (total,) = self.fold.inner.state.slot_names
        same = {"__hash": ord(row.key) << 32, "k0": row.key, total: row.value}
        return [
            {**same, "__backlog_rows": int(i == 0), "k1": start, "k2": end, START: start, END: end}
            for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
        ]

    def emitted(self, data: bytes) -> None:
        fold = self.fold
        schema = fold._coded_schema() if fold.changes else fold._merged_schema()
        names = ("k0", START, END) if fold.options.assigner.is_session else ("k0", "k1", "k2")
        unit = fold.options.assigner.micros_a_unit
        for found in from_bytes(data, schema).to_pylist():
            key, start, end = (found[name] for name in names)
            added = not fold.changes or CODES[found[CODE]] in (INSERT, POSTIMAGE)
            self.table[key, start * unit, end * unit, found[fold.inner.state.slot_names[0]]] += 1 if added else -1


class Rows(Operator):
    """A function of the rows of each window. It shows the first and the last time in the window."""

    fold: WindowRowsFold

    def __init__(self, assigner: WindowAssigner, lateness: int, *, first: bool = True) -> None:
        options = WindowOptions(assigner, lateness_ms=lateness, control_first=first)
        super().__init__(WindowRowsFold(Sums(), SCHEMA, ["k"], None, 4, options))

    def lifted(self, row: Row) -> list[dict[str, Any]]:
        same = {"__hash": ord(row.key) << 32, "k0": row.key, "side": 0, "t": row.time // 1000}
        return [{**same, "r0": row.key, "r1": row.time, "r2": row.value}]

    def emitted(self, data: bytes) -> None:
        for found in from_bytes(data, arrow_schema(Sums.output)).to_pylist():
            self.table[tuple(found.values())] += 1


def spans_of_rows(table: Counter[Any], gap: int) -> Counter[Any]:
    """Sessions by their first and last row."""
    return Counter({(key, start, end - gap, total): n for (key, start, end, total), n in table.items()})


def cut(rows: Sequence[Row], places: Iterable[int]) -> list[Batch]:
    """Batches with the watermarks that a query gives them: by the rows of the batches before."""
    found: list[Batch] = []
    for at, end in itertools.pairwise([0, *sorted(places), len(rows)]):
        greatest = max((row.time for row in rows[:at]), default=None)
        found.append((MIN_WATERMARK if greatest is None else greatest // 1000 - DELAY - 1, list(rows[at:end])))
    return found


def compared(batches: Sequence[Batch], kind: str, lateness: int, empty: Iterable[int] = ()) -> int:
    """Give the batches to all operators and compare; ``empty``: places of more batches without rows. Returns the late
    rows.
    """
    assigner = ASSIGNERS[kind]
    flink, sums = Flink(assigner, lateness), Aggregate(assigner, lateness)
    rows = Rows(assigner, lateness)
    empty = set(empty)
    for number, (watermark, given_rows) in enumerate([*batches, (10**6, [])]):
        for each in (flink, sums, rows):
            if number in empty and each is not flink:
                each.take([], watermark)
            each.take(given_rows, watermark)
        assert +sums.table == +flink.table
        assert sums.late == rows.late == flink.late
        if not lateness and assigner.is_session:
            assert +rows.table == spans_of_rows(flink.table, assigner.size_ms * 1000)
    assert sums.table.total() or not flink.table.total()
    return flink.late


rows_of = st.lists(st.builds(Row, st.sampled_from("aab"), st.integers(0, 30_000), st.integers(0, 9)), max_size=12)


@st.composite
def batches_of(draw: Any) -> list[Batch]:
    """Rows cut anywhere, with the watermarks of a query or with any others."""
    rows = draw(rows_of)
    batches = cut(rows, draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    if draw(st.booleans()):
        return batches
    watermarks = sorted(draw(st.integers(-1, 45)) for _ in batches)
    return [(watermark, mine) for watermark, (_, mine) in zip(watermarks, batches, strict=True)]


@pytest.mark.parametrize("kind", ASSIGNERS)
@settings(max_examples=40)
@given(batches=batches_of(), lateness=st.sampled_from([0, 0, 3, 30]), empty=st.sets(st.integers(0, 5), max_size=4))
def test_late_rows_are_those_of_flink(kind: str, batches: list[Batch], lateness: int, empty: set[int]) -> None:
    """Wherever batches are cut, with empty ones between them or without."""
    compared(batches, kind, lateness, empty)


# The row of 14 ms lies between two sessions: the one of 10 ms, and the one of 17 ms.
STREAM = [Row("a", time, 1) for time in (1_000, 10_000, 24_000, 17_200, 14_000, 3_000, 25_000, 40_000, 19_000, 28_900)]


@pytest.mark.parametrize("kind", ASSIGNERS)
def test_one_stream_cut_at_every_place(kind: str) -> None:
    """With and without an empty batch there."""
    places = [range(len(STREAM)), *([place] for place in range(len(STREAM) + 1))]
    late = [{compared(cut(STREAM, each), kind, 0, empty) for empty in ([], range(20))} for each in places]
    assert all(len(each) == 1 for each in late)
    assert len(set.union(*late)) > 1, "the watermark depends on the cuts"


def test_a_row_is_late_for_a_session_that_the_watermark_of_its_batch_has_passed() -> None:
    """It neither lengthens the session nor is lost without being counted, also if a batch came between."""
    for empty in ([], [1]):
        batches: list[Batch] = [(MIN_WATERMARK, [Row("a", 0, 1)]), (7, [Row("a", 2_000, 10), Row("a", 9_000, 100)])]
        assert compared(batches, "session", 0, empty) == 1


def test_a_checkpoint_of_sessions_in_milliseconds_is_refused() -> None:
    """Their bounds would be read as microseconds. The rows of a function's sessions have exact times in any state."""
    for made, refused in ((Aggregate, True), (Rows, False)):
        now = made(ASSIGNERS["session"], 0).fold.describe()
        before = {**now, "meaning": now["meaning"].removesuffix(", in microseconds")}
        ledger = Ledger(4, 2, (("sessions", before),))
        if refused:
            with pytest.raises(BacklogError, match=r"'sessions' is now .*, in microseconds; in the checkpoint it is"):
                ledger.check(4, [("sessions", now)])
        else:
            ledger.check(4, [("sessions", now)])


def test_a_late_row_belongs_to_the_session_that_it_touches() -> None:
    """As in Flink: while the session that they form together goes on."""
    batches: list[Batch] = [(MIN_WATERMARK, [Row("a", 6_000, 1)]), (8, [Row("a", 2_000, 10), Row("a", 500, 100)])]
    sums = Aggregate(ASSIGNERS["session"], 0)
    for watermark, rows in [*batches, (10**6, [])]:
        sums.take(rows, watermark)
    assert (+sums.table, sums.late) == (Counter({("a", 500, 11_000, 111): 1}), 0)
    assert compared(batches, "session", 0) == 0


@pytest.mark.parametrize("made", [Aggregate, Rows])
@settings(max_examples=40)
@given(batches=batches_of())
def test_after_another_operator_the_watermark_comes_after_the_rows(made: type, batches: list[Batch]) -> None:
    """So the rows of a batch have the watermark of the batch before."""
    assigner = ASSIGNERS["session"]
    ours, flink, before = made(assigner, 0, first=False), Flink(assigner, 0), MIN_WATERMARK
    for watermark, rows in batches:
        flink.take(rows, before)
        ours.take(rows, watermark)
        flink.take([], watermark)
        before = watermark
        table = flink.table if made is Aggregate else spans_of_rows(flink.table, 5_000)
        assert (+ours.table, ours.late) == (+table, flink.late)
