"""Functions over the rows of windows, of one stream and of two, and functions of connected streams."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import backlog_spark as bs
from backlog_spark.decide.steps import Mode
from tests.operators.conftest import Collect, wait
from tests.operators.events import EPOCH, events, flush, multiset, run, source
from tests.operators.scripted import append, finish

NOT_FLUSH = "user IS NULL OR user <> '~flush'"


def put_out(sink: Collect) -> Counter[Any]:
    return multiset(r for b in sink.batches.values() for r in b)


class Pairs(bs.CoGroupFunction):
    """How many rows each side has, and the first and last of each by their order."""

    output = "user string, lefts long, rights long, first long, last long"

    def co_group(self, left: list[Any], right: list[Any]) -> Any:
        user = (left or right)[0].user
        if user != "~flush":
            yield user, len(left), len(right), left[0].seq if left else None, right[-1].seq if right else None


class FastPairs(bs.CoGroupFunction):
    """The same for many groups at once."""

    output = Pairs.output

    def process_groups(self, groups: Any) -> pa.RecordBatch:
        (left, lefts), (right, rights) = groups.sides
        counts = np.diff(lefts), np.diff(rights)
        first = left["seq"].take(pa.array(lefts[:-1], mask=counts[0] == 0))
        last = right["seq"].take(pa.array(rights[1:] - 1, mask=counts[1] == 0))
        columns = [groups.keys.column(0), pa.array(counts[0]), pa.array(counts[1]), first, last]
        rows = pa.RecordBatch.from_arrays(columns, names=["user", "lefts", "rights", "first", "last"])
        keep = [user != "~flush" for user in rows["user"].to_pylist()]
        return rows.filter(pa.array(keep))


GRID = [pytest.param(made(), n, marks=pytest.mark.grid) for made in (Pairs, FastPairs) for n in (0, 1, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "backlog"), [(FastPairs(), 2), pytest.param(Pairs(), 2, marks=pytest.mark.grid), *GRID]
)
def test_co_group(spark: SparkSession, tmp_path: Path, function: bs.CoGroupFunction, backlog: int) -> None:
    lefts, rights = ([events(s + n, 60, n * 60) for n in range(3)] for s in (100, 200))
    lefts.append(flush(lefts + rights))
    rights.append(flush(lefts[:3] + rights))
    left, right = pa.concat_tables(lefts), pa.concat_tables(rights)  # noqa: F841  # DuckDB finds them by name
    expected = multiset(
        duckdb.sql(
            f"""
            WITH l AS (SELECT "user" AS u, epoch_ms(ts) // 20000 AS w, count(*) AS n, arg_min(seq, seq) AS s
                       FROM "left" WHERE {NOT_FLUSH.replace("user", '"user"')} GROUP BY ALL),
                 r AS (SELECT "user" AS u, epoch_ms(ts) // 20000 AS w, count(*) AS n, arg_max(seq, seq) AS s
                       FROM "right" WHERE {NOT_FLUSH.replace("user", '"user"')} GROUP BY ALL)
            SELECT CASE WHEN l.n IS NULL THEN r.u ELSE l.u END, coalesce(l.n, 0), coalesce(r.n, 0), l.s, r.s
            FROM l FULL JOIN r ON l.u IS NOT DISTINCT FROM r.u AND l.w = r.w"""
        ).fetchall()
    )
    stream = (
        source(tmp_path, "l")
        .co_group(source(tmp_path, "r"))
        .where("user", order="seq")
        .equal_to("user")
        .window(bs.TumblingEventTimeWindows.of("20 seconds"))
        .apply(function)
    )
    sink = run(spark, tmp_path, stream, {"l": lefts, "r": rights}, backlog, expected)
    assert put_out(sink) == expected


class WhatIsKept(Collect):
    """Records which states the checkpoint has when the backlog batch is written."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__()
        self._checkpoint = checkpoint
        self.kept: list[str] = []

    def write(self, batch_df: Any, batch: Any) -> None:
        super().write(batch_df, batch)
        if batch.is_backlog:
            self.kept = [path.name for path in self._checkpoint.glob("backlog/state/*/*/*.json")]


@pytest.mark.slow
def test_a_backlog_keeps_only_open_windows_and_complete_state(spark: SparkSession, tmp_path: Path) -> None:
    tables = {"l": events(7, 200, 0), "r": events(8, 200, 0)}
    for name, table in tables.items():
        append(tmp_path / name, table, backlog=True)
    grouped = source(tmp_path, "l").co_group(source(tmp_path, "r")).where("user", order="seq").equal_to("user")
    windows = grouped.window(bs.TumblingEventTimeWindows.of("20 seconds"))
    sink = WhatIsKept(tmp_path / "c")
    query = (
        windows.apply(FastPairs(), name="pairs")
        .write("kept")
        .trigger(processing_time="50 ms", interval_during_backlog=0)
        .option("checkpointLocation", str(tmp_path / "c"))
        .to(sink)
        .start(spark)
    )
    watermark = min(max(table["ts"].to_pylist()) for table in tables.values()) - dt.timedelta(seconds=5)
    left = Counter(
        (name, row["seq"])
        for name, table in tables.items()
        for row in table.to_pylist()
        if (row["ts"] - EPOCH) // dt.timedelta(seconds=20) == (watermark - EPOCH) // dt.timedelta(seconds=20)
    )
    assert left
    found: list[Counter[Any]] = []
    try:
        for name, table in tables.items():
            append(tmp_path / name, table.slice(0, 0), backlog=False)
        limit = time.monotonic() + 300
        while query.mode is not Mode.STREAM or not sink.batches or found[-1:] != [left]:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            state = query.state("pairs").collect()
            found.append(Counter(("l", r.left.seq) if r.left else ("r", r.right.seq) for r in state))
            assert found[-1] in (Counter(), left)
    finally:
        query.stop()
    assert sink.kept == [], "results come before what is handed over, and without a version, which would hold all rows"
    assert SparkSession.active()._jsparkSession.equals(spark._jsparkSession), "not that of a batch"


def test_end_of_stream(spark: SparkSession, tmp_path: Path) -> None:
    """One window, which comes when both streams have ended, in the batch that ends the backlog."""
    lefts, rights = ([events(s + n, 60, n * 60) for n in range(2)] for s in (300, 400))
    for name, tables in (("l", lefts), ("r", rights)):
        for table in tables:
            append(tmp_path / name, table, backlog=True)
        finish(tmp_path / name)
    left, right = (bs.source("scripted", name=n, path=tmp_path / n) for n in ("l", "r"))
    grouped = left.co_group(right).where("user", order="seq").equal_to("user").window(bs.EndOfStreamWindows.get())
    sink = Collect()
    query = (
        grouped.apply(FastPairs())
        .write("end")
        .trigger(interval_during_backlog=0, available_now=True)
        .option("checkpointLocation", str(tmp_path / "c"))
        .to(sink)
        .start(spark)
    )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    assert query.exception() is None
    counts = [Counter(pa.concat_tables(tables)["user"].to_pylist()) for tables in (lefts, rights)]
    firsts = {r["user"]: r["seq"] for r in reversed(pa.concat_tables(lefts).sort_by("seq").to_pylist())}
    lasts = {r["user"]: r["seq"] for r in pa.concat_tables(rights).sort_by("seq").to_pylist()}
    assert put_out(sink) == Counter(
        (u, counts[0][u], counts[1][u], firsts.get(u), lasts.get(u)) for u in {*counts[0], *counts[1]}
    )
    assert all(sink.backlog[number] for number, rows in sink.batches.items() if rows)


class Longest(bs.WindowFunction):
    """The rows of a session."""

    output = "user string, start timestamp, rows long, window_time timestamp"

    def apply(self, key: Any, window: bs.TimeWindow, rows: list[Any]) -> Any:
        assert rows == sorted(rows, key=lambda r: r.seq)
        start = dt.datetime.fromtimestamp(window.start / 1000, dt.UTC)
        yield key, start, len(rows), dt.datetime.fromtimestamp(window.max_timestamp() / 1000, dt.UTC)


@pytest.mark.grid
def test_rows_of_sessions(spark: SparkSession, tmp_path: Path) -> None:
    tables = [events(n + 500, 70, n * 70) for n in range(3)]
    tables.append(flush(tables))
    spark.createDataFrame(pa.concat_tables(tables).combine_chunks()).createOrReplaceTempView("events")
    expected = multiset(
        spark.sql(
            f"""SELECT user, timestamp_millis(unix_millis(session_window.start)), count(*),
                timestamp_millis(unix_millis(session_window.end - INTERVAL '0.000001' SECOND))
                FROM events WHERE {NOT_FLUSH} GROUP BY user, session_window(ts, '5 seconds')"""
        ).collect()
    )
    windows = source(tmp_path).key_by("user", order="seq").window(bs.EventTimeSessionWindows.with_gap("5 seconds"))
    stream = windows.apply(Longest()).filter(NOT_FLUSH)
    assert put_out(run(spark, tmp_path, stream, {"s": tables}, 2, expected)) == expected


class Balance(bs.KeyedCoProcessFunction):
    """Both streams in one state; a row for each row of the left one."""

    output = "user string, seq long, rights_before long, total decimal(38,0)"
    rights = bs.ValueState("long", default=0)
    total = bs.ValueState("decimal(38,0)")

    def process_element1(self, row: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + (row.v or 0))
        yield ctx.get_current_key(), row.seq, self.rights.value(), self.total.value()

    def process_element2(self, row: Any, ctx: Any) -> None:
        assert row._fields == ("who", "n", "ts"), "the columns of its own stream"
        self.rights.update(self.rights.value() + 1)


class Told(bs.KeyedCoProcessFunction):
    """Each row with the record attributes of both streams."""

    output = "side int, seq long, first boolean, second boolean"
    first = second = False

    def process_record_attributes1(self, attributes: bs.RecordAttributes) -> None:
        self.first = attributes.is_backlog

    def process_record_attributes2(self, attributes: bs.RecordAttributes) -> None:
        self.second = attributes.is_backlog
        self.emit_record_attributes(attributes)

    def process_element1(self, row: Any, ctx: Any) -> Any:
        yield 1, row.seq, self.first, self.second

    def process_element2(self, row: Any, ctx: Any) -> Any:
        yield 2, row.seq, self.first, self.second


class Behind(bs.KeyedProcessFunction):
    """Each row with the record attributes from the operator before."""

    output = "side int, seq long, first boolean, second boolean, emitted boolean"
    backlog = True

    def process_record_attributes(self, attributes: bs.RecordAttributes) -> None:
        self.backlog = attributes.is_backlog

    def process_element(self, row: Any, ctx: Any) -> Any:
        yield (*row, self.backlog)


@pytest.mark.slow
@pytest.mark.parametrize("during_backlog", [pytest.param("1 hour", marks=pytest.mark.grid), 0])
def test_each_input_has_its_record_attributes(spark: SparkSession, tmp_path: Path, during_backlog: str | int) -> None:
    """While one input alone is backlog, in both vehicles: above 0 as stream, at 0 sorted."""
    lefts = [events(n + 800, 20, n * 100) for n in range(2)]
    right = events(900, 20, 0)
    for number, table in enumerate(lefts):
        append(tmp_path / "l", table, backlog=not number)
    append(tmp_path / "r", right, backlog=False)
    stream = source(tmp_path, "l").key_by("user").connect(source(tmp_path, "r").key_by("user")).process(Told())
    stream = stream.key_by("seq").process(Behind())
    sink = Collect()
    writer = stream.write("told").trigger(processing_time="50 ms", interval_during_backlog=during_backlog)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)
    try:
        wait(lambda: put_out(sink).total() == 60, query)
    finally:
        query.stop()
    found = put_out(sink)
    assert Counter(row for row in found.elements() if row[0] == 1) == Counter(
        (1, seq, not number, False, False) for number, table in enumerate(lefts) for seq in table["seq"].to_pylist()
    )
    assert not any(row[3] or row[4] for row in found), "the right stream never is, and it is what was emitted"


@pytest.mark.grid
@pytest.mark.parametrize("backlog", [2, pytest.param(0, marks=pytest.mark.grid)])
def test_connected_streams(spark: SparkSession, tmp_path: Path, backlog: int) -> None:
    lefts = [events(n + 600, 60, n * 120) for n in range(3)]
    rights = [events(n + 700, 60, n * 120 + 60) for n in range(3)]
    left = source(tmp_path, "l").map("*", "seq AS n").key_by("user", order="n")
    right = source(tmp_path, "r").map("user AS who", "seq AS n", "ts").key_by("who", order="n")
    expected: Counter[Any] = Counter()
    seen: dict[Any, list[int]] = {}
    marked = [(0, r) for r in pa.concat_tables(lefts).to_pylist()] + [
        (1, r) for r in pa.concat_tables(rights).to_pylist()
    ]
    for side, row in sorted(marked, key=lambda pair: pair[1]["seq"]):
        state = seen.setdefault(row["user"], [0, 0])
        if side:
            state[0] += 1
        else:
            state[1] += row["v"] or 0
            expected[(row["user"], row["seq"], state[0], state[1])] += 1
    stream = left.connect(right).process(Balance())
    assert put_out(run(spark, tmp_path, stream, {"l": lefts, "r": rights}, backlog, expected)) == expected


def test_refused(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "l", events(1, 5, 0), backlog=False)
    left = bs.source("scripted", name="l", path=tmp_path / "l")
    grouped = left.co_group(left)
    half = grouped.where("user")
    for stream, message in ((grouped, "no where"), (half, "no equal_to"), (half.equal_to("user"), "no window")):
        with pytest.raises(bs.BacklogError, match=message):
            stream.apply(Pairs())
    ready = grouped.where("user", "v").equal_to("user").window(bs.EndOfStreamWindows.get())
    with pytest.raises(bs.BacklogError, match=r"given a Balance.*CoGroupFunction"):
        ready.apply(Balance())  # type: ignore[arg-type]
    with pytest.raises(bs.BacklogError, match=r"given a BacklogStream.*keyed stream"):
        left.key_by("user").connect(left)  # type: ignore[arg-type]

    def started(stream: bs.BacklogStream) -> None:
        stream.write("x").option("checkpointLocation", str(tmp_path / "c")).to(Collect()).start(spark)

    with pytest.raises(bs.BacklogError, match=r"2 keys on the left \(user, v\) and 1 on the right \(user\)"):
        started(ready.apply(Pairs()))
    other = grouped.where("user").equal_to("v").window(bs.EndOfStreamWindows.get()).apply(Pairs())
    with pytest.raises(bs.BacklogError, match="'user' is string on the left and 'v' is bigint on the right"):
        started(other)
