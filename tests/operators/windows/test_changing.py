"""Windows that retract rows, and windows that are emitted again: the changes add up to the result."""

from __future__ import annotations

import copy
import datetime as dt
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import ASKED, CHANGE_TYPE, DELETE, INSERT, POSTIMAGE, PREIMAGE
from backlog_spark.model.watermarks import EVENT_TIME
from backlog_spark.operators.aggregates.retracting import window_aggregate_fold
from backlog_spark.operators.aggregates.sums import Sum
from backlog_spark.operators.merge import CODE, CODES
from backlog_spark.operators.windows.assigners import WindowAssigner
from backlog_spark.operators.windows.columns import END, START
from backlog_spark.operators.windows.fold import WindowFold, WindowOptions
from backlog_spark.operators.windows.sessions import SessionFold
from backlog_spark.state.seeds import Control
from backlog_spark.state.tables import from_bytes
from backlog_spark.state.timer_reports import GroupReport
from tests.operators.conftest import Collect, wait
from tests.operators.events import EPOCH
from tests.operators.groups import Handle, run
from tests.operators.scripted import append
from tests.operators.test_changes import there

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 10
FOREVER = 10**12


class Row(NamedTuple):
    """A row that is added or retracted."""

    key: str
    time: int
    value: int
    sign: int = 1


def fold_of(assigner: WindowAssigner, lateness_ms: int, *, takes_back: bool) -> WindowFold:
    schema = StructType().add("k", StringType()).add(StructField("ts", TimestampType(), True, {EVENT_TIME: "ts"}))
    schema = schema.add("v", LongType())
    if takes_back:
        schema = schema.add(CHANGE_TYPE, StringType())

    def make(keys: Sequence[str], rows: StructType, hidden: Sequence[str]) -> Any:
        return window_aggregate_fold(keys, [Sum("v", name="total")], rows, 4, hidden)

    kind = SessionFold if assigner.is_session else WindowFold
    return kind(["k"], make, schema, WindowOptions(assigner, lateness_ms=lateness_ms), ASKED)


class Group:
    """One key group, whose changes are counted."""

    def __init__(self, fold: WindowFold) -> None:
        self.fold = fold
        self.handle = Handle()
        self.reports: list[GroupReport] = []
        self.out: Counter[Any] = Counter()
        self.kinds: Counter[str] = Counter()

    def take(self, rows: Iterable[Row], watermark: int) -> None:
        schema = self.fold.live_schema()
        made = []
        for row in rows:
            start = row.time // SIZE * SIZE
            values = {"__hash": ord(row.key) << 32, "k0": row.key, "__backlog_rows": 1}
            # Sessions are in microseconds.
            values |= {"k1": start, "k2": start + SIZE, START: row.time * 1000, END: (row.time + SIZE) * 1000}
            names = self.fold.inner.state.slot_names
            signed = [row.sign, row.sign * row.value, row.sign]  # rows, their sum, how many have a value
            values |= dict(zip(names, signed if len(names) == 3 else [row.value], strict=True))
            made.append(values)
        live = pa.RecordBatch.from_pylist(made, schema)
        control = Control(watermark=watermark)
        for data in run(copy.deepcopy(self.fold), self.handle, live, control, self.reports):
            for found in from_bytes(data, self.fold._coded_schema()).to_pylist():
                kind = CODES[found[CODE]]
                self.kinds[kind] += 1
                is_session = START in found
                span = (found[START] / 1000, found[END] / 1000) if is_session else (found["k1"], found["k2"])
                total = found[self.fold.inner.state.slot_names[-2 if len(self.fold.inner.state.slots) == 3 else -1]]
                self.out[(found["k0"], *span, total)] += 1 if kind in (INSERT, POSTIMAGE) else -1
            assert min(self.out.values(), default=0) >= 0, "nothing is taken back that was not put out"


plain_rows = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 45), st.integers(0, 9)), max_size=20)


@given(st.data(), plain_rows, st.integers(1, 30), st.booleans())
def test_tumbling_windows(data: Any, plain: list[Any], lateness: int, takes_back: bool) -> None:
    group = Group(fold_of(bs.TumblingEventTimeWindows.of("10 ms"), lateness, takes_back=takes_back))
    rows = [Row(*each) for each in plain]
    taken: Counter[Row] = Counter()
    watermark, late = -1, 0
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    for at, end in itertools.pairwise([0, *cuts, len(rows)]):
        batch = rows[at:end]
        if takes_back and +taken:
            back = data.draw(st.lists(st.sampled_from(sorted(+taken)), max_size=4, unique=True))
            batch = [*batch, *(row._replace(sign=-1) for row in back)]
        watermark = data.draw(st.integers(watermark, watermark + 25))
        group.take(batch, watermark)
        for row in batch:
            if row.time // SIZE * SIZE + SIZE - 1 + lateness <= watermark:
                late += 1
            else:
                taken[row._replace(sign=1)] += row.sign
        assert +group.out == windows(taken, watermark)
    group.take([], FOREVER)
    assert +group.out == windows(taken, FOREVER)
    assert sum(report.late for report in group.reports) == late


def windows(rows: Counter[Row], watermark: int) -> Counter[Any]:
    """Windows that are over and not empty."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in rows.elements():
        found.setdefault((row.key, row.time // SIZE * SIZE), []).append(row.value)
    return Counter((k, s, s + SIZE, sum(v)) for (k, s), v in found.items() if s + SIZE - 1 <= watermark)


@given(st.data(), plain_rows)
def test_sessions_that_grow_and_merge(data: Any, plain: list[Any]) -> None:
    """An emitted session that merges with a late row, or through it with another session, is retracted."""
    group = Group(fold_of(bs.EventTimeSessionWindows.with_gap("10 ms"), 10**6, takes_back=False))
    rows = [Row(*each) for each in plain]
    watermark = -1
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    for at, end in itertools.pairwise([0, *cuts, len(rows)]):
        watermark = data.draw(st.integers(watermark, watermark + 25))
        group.take(rows[at:end], watermark)
        assert +group.out == sessions(rows[:end], watermark)


def sessions(rows: Iterable[Row], watermark: int) -> Counter[Any]:
    out: Counter[Any] = Counter()
    for key, mine in itertools.groupby(sorted(rows), lambda row: row.key):
        spans: list[list[int]] = []
        for row in mine:
            if spans and row.time <= spans[-1][1]:
                spans[-1][1:] = row.time + SIZE, spans[-1][2] + row.value
            else:
                spans.append([row.time, row.time + SIZE, row.value])
        out.update((key, *span) for span in spans if span[1] - 1 <= watermark)
    return out


def test_changes_have_the_right_change_type() -> None:
    group = Group(fold_of(bs.TumblingEventTimeWindows.of("10 ms"), 100, takes_back=True))
    group.take([Row("a", 1, 5)], 9)
    group.take([Row("a", 2, 6)], 9)
    group.take([Row("a", 2, 6, -1), Row("a", 1, 5, -1)], 9)
    assert group.kinds == Counter([INSERT, PREIMAGE, POSTIMAGE, DELETE])
    assert not +group.out


@pytest.mark.parametrize("told", [None, 20])
def test_the_first_batch_knows_the_results_of_a_stay(told: int | None) -> None:
    """After another operator, which may pass on the watermark a batch later."""
    fold = fold_of(bs.TumblingEventTimeWindows.of("10 ms"), 5, takes_back=False)
    fold.options = replace(fold.options, control_first=False)
    handle, reports, put_out = Handle(), [], []  # type: ignore[var-annotated]
    there = {"__hash": 1, "k0": "a", "k1": 10, "k2": 20, "fired": True, fold.inner.state.slot_names[0]: 5}
    seeds = [pa.RecordBatch.from_pylist([there], fold.state.arrow())]
    # Late for what is left of a window, and too late.
    live = [{**there, "k1": start, "k2": start + 10, "__backlog_rows": 1} for start in (10, 0)]
    rows = pa.RecordBatch.from_pylist(live, fold.live_schema())
    for control in (Control() if told is None else Control(watermark=told), Control(watermark=22)):
        packed = run(copy.deepcopy(fold), handle, rows, control, reports, seeds, 20)
        found = [row for data in packed for row in from_bytes(data, fold._coded_schema()).to_pylist()]
        put_out.append([(CODES[row[CODE]], row["k1"], row[fold.inner.state.slot_names[0]]) for row in found])
        seeds, rows = [], rows.slice(0, 0)
    assert put_out == [[(PREIMAGE, 10, 5), (POSTIMAGE, 10, 10)], []]
    assert reports[0].late == 1


# -- through Spark ------------------------------------------------------------------------------------------

SCHEMA = pa.schema(
    [("user", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC")), (CHANGE_TYPE, pa.string())]
)


def table(*rows: tuple[str, float, int, str]) -> pa.Table:
    """Rows of user, second, value and change type."""
    made = [(user, v, EPOCH + dt.timedelta(seconds=second), kind) for user, second, v, kind in rows]
    return pa.table(list(zip(*made, strict=True)), schema=SCHEMA)


def follow(spark: SparkSession, root: Path, stream: bs.BacklogStream, tables: list[pa.Table], expected: Any) -> Collect:
    """Run it over batches, the first of them backlog, until a reader of the changes has what is expected."""
    sink = Collect()
    append(root / "s", tables[0], backlog=True)
    append(root / "s", tables[0].slice(0, 0), backlog=False)
    writer = stream.write("q").trigger(processing_time="50 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(root / "c")).to(sink).start(spark)
    try:
        rows = tables[0].num_rows
        for each in tables[1:]:
            wait(lambda: query.backlogProgress.rows >= rows, query)  # noqa: B023
            query.processAllAvailable()
            append(root / "s", each, backlog=False)
            rows += each.num_rows
        wait(lambda: there(sink) == expected, query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert there(sink) == expected
    return sink


@pytest.mark.grid
def test_late_rows_reach_the_next_operator(spark: SparkSession, tmp_path: Path) -> None:
    """Counts windows by their sum: a window that is emitted again leaves its old sum."""
    stream = bs.source("scripted", name="s", path=tmp_path / "s").with_watermark("ts", "5 seconds")
    windows = stream.map("user", "v", "ts").key_by("user").window(bs.TumblingEventTimeWindows.of("10 seconds"))
    sums = windows.allowed_lateness("10 seconds").sum("v")
    behind = sums.key_by("v").aggregate("count(*) AS windows, max(user) AS last")
    tables = [
        table(("ann", 1, 1, INSERT), ("bob", 2, 1, INSERT), ("ann", 20, 0, INSERT)),  # [0, 10) is over at the switch
        table(("ann", 3, 2, INSERT), ("cy", 32, 0, INSERT)),  # late: 1 becomes 3 for ann; [20, 30) may still change
        table(("bob", 4, 2, INSERT), ("cy", 100, 0, INSERT)),  # too late by now
    ]
    follow(spark, tmp_path, behind, tables, Counter({(3, 1, "ann"): 1, (1, 1, "bob"): 1, (0, 2, "cy"): 1}))


@pytest.mark.slow
@pytest.mark.parametrize("lateness", ["0 seconds", pytest.param("1 hour", marks=pytest.mark.grid)])
def test_a_change_stream_in_windows(spark: SparkSession, tmp_path: Path, lateness: str) -> None:
    stream = bs.source("scripted", name="s", path=tmp_path / "s").with_watermark("ts", "5 seconds")
    windows = stream.key_by("user").window(bs.SlidingEventTimeWindows.of("20 seconds", "10 seconds"))
    sums = windows.allowed_lateness(lateness).aggregate(
        "sum(v) AS total, count(*) AS n, max(v) AS most, avg(double(v)) AS mean"
    )
    seconds = f"unix_seconds(window_start) - {int(EPOCH.timestamp())} AS at"
    kind = [] if lateness == "0 seconds" else [CHANGE_TYPE]
    stream = sums.map("user", seconds, "total", "n", "most", "mean", *(kind or [f"'{INSERT}' AS {CHANGE_TYPE}"]))
    tables = [
        table(
            ("ann", 1, 1, INSERT), ("ann", 2, 10, INSERT), ("ann", 2, 10, PREIMAGE), ("ann", 12, 20, POSTIMAGE),
            ("bob", 3, 7, INSERT), ("bob", 3, 7, DELETE), ("cy", 16, 0, INSERT),
        ),  # at the switch 11: [-10, 10) is over
        table(("ann", 1, 1, PREIMAGE), ("ann", 14, 2, POSTIMAGE), ("cy", 200, 0, INSERT)),
        table(("cy", 400, 0, INSERT)),
    ]  # fmt: skip
    expected = Counter([("ann", 0, 22, 2, 20, 11.0), ("ann", 10, 22, 2, 20, 11.0)])
    expected += Counter(("cy", at, 0, 1, 0, 0.0) for at in (0, 10, 190, 200))
    if not kind:
        # What has been put out stays.
        expected += Counter([("ann", -10, 1, 1, 1, 1.0)])
    follow(spark, tmp_path, stream, tables, expected)


def test_windows_that_cannot_retract_rows_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "s", table(("ann", 1, 1, INSERT)), backlog=False)
    stream = bs.source("scripted", name="s", path=tmp_path / "s").with_watermark("ts", "5 seconds").key_by("user")
    ten = bs.TumblingEventTimeWindows.of("10 seconds")
    for make, message in (
        (
            lambda: stream.window(ten).aggregate("first(v) AS v"),
            r"window: the stream retracts rows, and first\(v\) cannot",
        ),
        (lambda: stream.window(ten).reduce(lambda a, b: a), "reduce of a window cannot retract rows"),
        (
            lambda: stream.window(bs.EventTimeSessionWindows.with_gap("1 s")).sum("v"),
            "a session window cannot retract rows",
        ),
        (lambda: stream.count_window(3).sum("v"), "window cannot retract rows"),
    ):
        writer = make().write("q").trigger(processing_time="50 ms", interval_during_backlog=0)
        with pytest.raises(BacklogError, match=message):
            writer.option("checkpointLocation", str(tmp_path / "c")).to(Collect()).start(spark)
