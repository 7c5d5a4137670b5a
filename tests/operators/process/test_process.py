"""Process functions in real queries: the output is the same for any switch."""

from __future__ import annotations

import datetime as dt
import functools
import json
import random
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import TaskContext

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import MIN_WATERMARK
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UTC = dt.UTC
EPOCH = dt.datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("page", pa.string()),
        ("v", pa.int64()),
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
USERS = ["ann", "bob", "", None, "ä"]
WINDOW_MS = 10_000


def rows(chance: random.Random, count: int, first: int, disorder_s: int = 4) -> pa.Table:
    """Random rows; row n is of about second n, at most so many seconds late."""
    made = [
        (
            chance.choice(USERS),
            chance.choice("xyz"),
            chance.choice([None, chance.randrange(-(2**57), 2**57)]),
            first + i,
            EPOCH + dt.timedelta(seconds=first + i - chance.uniform(0, disorder_s)),
        )
        for i in range(count)
    ]
    return pa.table(list(zip(*made, strict=True)), schema=SCHEMA)


def millis(time: dt.datetime) -> int:
    return int(time.timestamp() * 1000)


class Mean(bs.AggregateFunction):
    """The mean of what is added, as text."""

    accumulator = "struct<total: long, rows: long>"

    def open(self, ctx: bs.RuntimeContext) -> None:
        self.form = "{}/{}"

    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: int, accumulator: Any) -> Any:
        return accumulator.total + value, accumulator.rows + 1

    def get_result(self, accumulator: Any) -> str:
        return self.form.format(accumulator.total, accumulator.rows)


class Running(bs.KeyedProcessFunction):
    """Every kind of state; a row for each row."""

    output = (
        "user string, seq long, count long, total decimal(38,0), pages string, last array<long>, greatest long, "
        "mean string"
    )
    opened = None
    count = bs.ValueState("long", default=0)
    total = bs.ValueState("decimal(38,0)")
    pages = bs.MapState("string", "long")
    last = bs.ListState("long")
    greatest = bs.ReducingState("long", max)
    mean = bs.AggregatingState(Mean())

    def open(self, ctx: bs.RuntimeContext) -> None:
        assert self.opened is None
        self.opened = ctx.get_index_of_this_subtask()

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.count.update(self.count.value() + 1)
        if row.v is not None:
            self.total.update((self.total.value() or 0) + row.v)
            self.greatest.add(row.v)
        self.pages.put(row.page, self.pages.get(row.page, 0) + 1)
        self.last.add(row.seq)
        assert (self.mean.get() is None) == (self.count.value() == 1)
        self.mean.add(row.seq)
        assert self.opened == TaskContext.get().partitionId()
        if len(self.last.get()) > 3:
            self.last.update(self.last.get()[1:])
        total = self.total.value()
        pages = ",".join(f"{k}{v}" for k, v in sorted(self.pages.items()))
        rest = self.last.get(), self.greatest.get(), self.mean.get()
        yield ctx.get_current_key(), row.seq, self.count.value(), total, pages, *rest


def running(tables: list[pa.Table]) -> Counter[Any]:
    """The expected output of `Running`, computed without it."""
    out: Counter[Any] = Counter()
    seen: dict[Any, list[Any]] = defaultdict(list)
    for row in pa.concat_tables(tables).sort_by("seq").to_pylist():
        mine = seen[row["user"]]
        mine.append(row)
        values = [r["v"] for r in mine if r["v"] is not None]
        pages = Counter(r["page"] for r in mine)
        text = ",".join(f"{k}{v}" for k, v in sorted(pages.items()))
        last = tuple(r["seq"] for r in mine[-3:])
        total, greatest = (sum(values), max(values)) if values else (None, None)
        mean = f"{sum(r['seq'] for r in mine)}/{len(mine)}"
        out[(row["user"], row["seq"], len(mine), total, text, last, greatest, mean)] += 1
    return out


class Windows(bs.KeyedProcessFunction):
    """Sums per ten seconds of event time, emitted once after the watermark has passed."""

    output = "user string, window long, total decimal(38,0), count long, ts timestamp"
    sums = bs.MapState("long", "decimal(38,0)")
    counts = bs.MapState("long", "long")

    def process_element(self, row: Any, ctx: Any) -> None:
        window = ctx.timestamp() // WINDOW_MS * WINDOW_MS
        self.sums.put(window, (self.sums.get(window) or 0) + (row.v or 0))
        self.counts.put(window, self.counts.get(window, 0) + 1)
        ctx.timer_service().register_event_time_timer(window + WINDOW_MS - 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert ctx.time_domain() == "event"
        assert ctx.timer_service().current_watermark() >= timestamp == ctx.timestamp()
        window = timestamp + 1 - WINDOW_MS
        at = dt.datetime.fromtimestamp(timestamp / 1000, UTC)
        yield ctx.get_current_key(), window, self.sums.get(window), self.counts.get(window), at
        self.sums.remove(window)
        self.counts.remove(window)


def windows(tables: list[pa.Table], until: int) -> Counter[Any]:
    """The expected output of `Windows` at the watermark ``until``."""
    found: dict[Any, list[int]] = defaultdict(list)
    for row in pa.concat_tables(tables).to_pylist():
        found[row["user"], millis(row["ts"]) // WINDOW_MS * WINDOW_MS].append(row["v"] or 0)
    return Counter((u, w, sum(v), len(v)) for (u, w), v in found.items() if w + WINDOW_MS - 1 <= until)


def put_out(sink: Collect, columns: int | None = None) -> Counter[Any]:
    """All rows of all batches, cut to some columns."""
    found = (tuple(tuple(v) if isinstance(v, list) else v for v in r) for b in sink.batches.values() for r in b)
    return Counter(row if columns is None else row[:columns] for row in found)


def start(
    spark: SparkSession, stream: bs.BacklogStream, root: Path, sink: bs.Sink, sides: dict[str, bs.Sink] | None = None,
    **trigger: Any,
) -> bs.BacklogQuery:  # fmt: skip
    given = {"processing_time": "100 ms", "interval_during_backlog": 0, **trigger}
    writer = stream.write("process").trigger(**given).option("checkpointLocation", str(root / "c")).to(sink)
    for name, side in (sides or {}).items():
        writer = writer.to(side, side_output=name)
    return writer.start(spark)


def source(root: Path, partitions: int = 2) -> bs.BacklogStream:
    return bs.source("scripted", name="s", path=root / "s", partitions=partitions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backlog", "live", "partitions"),
    [(2, 2, 2), *(pytest.param(*given, marks=pytest.mark.grid) for given in ((0, 3, 1), (1, 1, 5)))],
)
def test_state(spark: SparkSession, tmp_path: Path, backlog: int, live: int, partitions: int) -> None:
    chance = random.Random(backlog)
    tables = [rows(chance, chance.randrange(50, 300), n * 1_000) for n in range(backlog + live)]
    for number, table in enumerate(tables):
        append(tmp_path / "s", table, backlog=number < backlog)
    sink = Collect()
    stream = source(tmp_path, partitions).key_by("user", order="seq").process(Running(), name="running")
    query = start(spark, stream, tmp_path, sink)
    try:
        wait(lambda: put_out(sink).total() >= sum(t.num_rows for t in tables), query)
        query.processAllAvailable()
        state = {r["user"]: r for r in query.state("running").collect()}
    finally:
        query.stop()
    assert query.exception() is None
    assert put_out(sink) == running(tables)
    counted = Counter(pa.concat_tables(tables)["user"].to_pylist())
    assert {user: row["count"] for user, row in state.items()} == counted
    assert {user: sum(row["pages"].values()) for user, row in state.items()} == counted


@pytest.mark.slow
@pytest.mark.parametrize(("backlog", "live"), [(2, 2), pytest.param(0, 3, marks=pytest.mark.grid)])
def test_event_time(spark: SparkSession, tmp_path: Path, backlog: int, live: int) -> None:
    chance = random.Random(7 + backlog)
    tables = [rows(chance, 120, n * 120) for n in range(backlog + live)]
    told = backlog + 1
    for number, table in enumerate(tables[:told]):
        append(tmp_path / "s", table, backlog=number < backlog)
    sink = Collect()
    stream = source(tmp_path).with_watermark("ts", "5 seconds").key_by("user").process(Windows())
    query = start(spark, stream, tmp_path, sink)

    def has(count: int) -> bool:
        return put_out(sink).total() >= count

    def mark(given: list[pa.Table]) -> int:
        return max(millis(t) for table in given for t in table["ts"].to_pylist()) - 5_000 - 1

    try:
        while True:
            # What is due fires without another row: at the switch too.
            due = windows(tables[:told], mark(tables[:told]))
            wait(functools.partial(has, due.total()), query)
            assert put_out(sink, 4) == due
            if told == len(tables):
                break
            append(tmp_path / "s", tables[told], backlog=False)
            told += 1
        query.processAllAvailable()
        assert put_out(sink, 4) == due
        assert query.lateRows == 0
    finally:
        query.stop()
    assert query.exception() is None
    assert not any(sink.batches[n] for n in sink.batches if sink.backlog[n]), "no watermark in backlog"


class Split(bs.KeyedProcessFunction):
    """Sends rows by page to the output, to a side output or nowhere. Gets record attributes."""

    output = "user string, seq long, backlog boolean"
    ys = bs.OutputTag("seq long, text string")
    backlog = False

    def process_record_attributes(self, attributes: bs.RecordAttributes) -> None:
        self.backlog = attributes.is_backlog

    def process_element(self, row: Any, ctx: Any) -> Any:
        if row.page == "x":
            yield row.user, row.seq, self.backlog
        elif row.page == "y":
            yield self.ys, (row.seq, f"{row.user}")


@pytest.mark.slow
def test_side_outputs_late_rows_and_record_attributes(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(3)
    tables = [rows(chance, 100, n * 100, disorder_s=0) for n in range(3)]
    late = rows(chance, 20, 50, disorder_s=0).set_column(3, "seq", pa.array(range(10_000, 10_020)))
    for number, table in enumerate(tables):
        append(tmp_path / "s", table, backlog=number < 1)
    sink, ys, behind = Collect(), Collect(), Collect()
    stream = source(tmp_path).with_watermark("ts", "1 second").key_by("user").process(Split(), late_output="late")
    with pytest.raises(BacklogError, match=r"side output 'late' has no sink.*side_output='late'"):
        start(spark, stream, tmp_path, sink, {"ys": ys})
    with pytest.raises(BacklogError, match=r"side_output.*'zs'.*It has ys, late"):
        start(spark, stream, tmp_path, sink, {"ys": ys, "late": behind, "zs": behind})
    query = start(spark, stream.filter("user IS NOT NULL"), tmp_path, sink, {"ys": ys, "late": behind})
    try:
        wait(lambda: query.backlogProgress.rows == 300, query)
        query.processAllAvailable()
        append(tmp_path / "s", late, backlog=False)
        wait(lambda: put_out(behind).total() == 20, query)
    finally:
        query.stop()
    assert query.exception() is None
    whole = pa.concat_tables(tables).to_pylist()
    assert put_out(sink) == Counter(
        (r["user"], r["seq"], r["seq"] < 100) for r in whole if r["page"] == "x" and r["user"] is not None
    )
    assert put_out(ys) == Counter((r["seq"], f"{r['user']}") for r in whole if r["page"] == "y")
    assert {row[3] for row in put_out(behind)} == set(range(10_000, 10_020))
    assert behind.schema.names == SCHEMA.names
    assert query.lateRows == 0, "they went somewhere"


class Pinger(bs.KeyedProcessFunction):
    """Answers each row once, shortly after it was processed, with a processing-time timer."""

    output = "user string, seq long, waited long"
    pending = bs.MapState("long", "long")

    def process_element(self, row: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        due = timers.current_processing_time() + (1 if row.page == "x" else 1_500)
        self.pending.put(row.seq, due)
        timers.register_processing_time_timer(due)
        timers.register_processing_time_timer(due)
        timers.register_processing_time_timer(due + 10**9)
        timers.delete_processing_time_timer(due + 10**9)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert ctx.time_domain() == "processing"
        for seq, due in self.pending.items():
            if due <= timestamp:
                self.pending.remove(seq)
                yield ctx.get_current_key(), seq, int(time.time() * 1000) - due


@pytest.mark.slow
def test_processing_time(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(4)
    tables = [rows(chance, 60, n * 100) for n in range(3)]
    for number, table in enumerate(tables[:2]):
        append(tmp_path / "s", table, backlog=number < 1)
    sink = Collect()
    query = start(spark, source(tmp_path).key_by("user").process(Pinger(), name="pings"), tmp_path, sink)
    try:
        # All fire without another row, and none is left behind.
        wait(lambda: put_out(sink).total() == 120, query)
        append(tmp_path / "s", tables[2], backlog=False)
        wait(lambda: put_out(sink).total() == 180, query)
        query.processAllAvailable()
        assert query.state("pings").collect() == [], "a key that holds nothing is gone"
    finally:
        query.stop()
    assert query.exception() is None
    assert {(r[0], r[1]) for r in put_out(sink)} == {
        (r["user"], r["seq"]) for r in pa.concat_tables(tables).to_pylist()
    }
    assert all(row[2] >= 0 for row in put_out(sink)), "never before its time"


class Batched(bs.KeyedProcessFunction):
    """The vectorised form."""

    output = "user string, n long, total decimal(38,0)"
    n = bs.ValueState("long", default=0)

    def process_batch(self, rows: pa.RecordBatch, ctx: Any) -> Any:
        assert set(rows.column("user").to_pylist()) == {ctx.get_current_key()}
        self.n.update(self.n.value() + rows.num_rows)
        total = pc.sum(rows.column("v").cast(pa.decimal128(38, 0))).as_py()
        return pa.RecordBatch.from_pylist(
            [{"user": ctx.get_current_key(), "n": rows.num_rows, "total": total}],
            pa.schema([("user", pa.string()), ("n", pa.int64()), ("total", pa.decimal128(38, 0))]),
        )


@pytest.mark.grid
def test_vectorised_and_chained(spark: SparkSession, tmp_path: Path) -> None:
    """A function's output goes on to an aggregation and to another function, in both vehicles."""
    chance = random.Random(5)
    tables = [rows(chance, 200, n * 1_000) for n in range(4)]
    for number, table in enumerate(tables):
        append(tmp_path / "s", table, backlog=number < 2)
    sink = Collect()
    first = source(tmp_path).with_watermark("ts", "5 seconds").key_by("user").process(Batched(), name="batched")
    stream = first.key_by("user").aggregate("sum(n) AS n, sum(total) AS total", name="sums")
    query = start(spark, stream, tmp_path, sink)
    try:
        wait(lambda: sum(n for n, _ in sink.newest(1).values()) == 800, query)
        query.processAllAvailable()
        assert {r["user"]: r["n"] for r in query.state("batched").collect()} == {
            r["user"]: r["n"] for r in query.state("sums").collect()
        }
    finally:
        query.stop()
    assert query.exception() is None
    expected: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for row in pa.concat_tables(tables).to_pylist():
        expected[(row["user"],)][0] += 1
        expected[(row["user"],)][1] += row["v"] or 0
    assert sink.newest(1) == {key: tuple(both) for key, both in expected.items()}


class Regroup(bs.KeyedProcessFunction):
    """Follows `Windows`: emits a row for each of its windows that ends in event time."""

    output = "window long, users long, at long"
    users = bs.ValueState("long", default=0)

    def process_element(self, row: Any, ctx: Any) -> None:
        self.users.update(self.users.value() + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.users.value(), timestamp
        self.users.clear()


@pytest.mark.slow
def test_a_watermark_passes_through_a_chain(spark: SparkSession, tmp_path: Path) -> None:
    """The second function gets all rows of a window before the watermark that closes it."""
    chance = random.Random(6)
    tables = [rows(chance, 120, n * 120) for n in range(3)]
    for number, table in enumerate(tables):
        append(tmp_path / "s", table, backlog=number < 1)
    sink = Collect()
    first = source(tmp_path).with_watermark("ts", "5 seconds").key_by("user").process(Windows())
    query = start(spark, first.key_by("window").process(Regroup()), tmp_path, sink)
    until = max(millis(t) for table in tables for t in table["ts"].to_pylist()) - 5_000 - 1
    due = Counter((w, w + WINDOW_MS - 1) for (_, w, _, _), n in windows(tables, until).items() for _ in range(n))
    expected = Counter({(window, users, at): 1 for (window, at), users in due.items()})
    try:
        wait(lambda: put_out(sink).total() >= expected.total(), query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    assert put_out(sink) == expected
    assert query.lateRows == 0


class Counted(bs.KeyedProcessFunction):
    output = "user string, seq long, n long"
    n = bs.ValueState("long", default=0)

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + 1)
        yield row.user, row.seq, self.n.value()


class CountedMore(Counted):
    """A later version, with more state."""

    since = bs.ValueState("long", default=1_000)

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.since.update(self.since.value() + 1)
        for user, seq, n in super().process_element(row, ctx):
            yield user, seq, n * 1_000_000 + self.since.value()


@pytest.mark.grid
def test_state_may_be_added_and_a_second_stay_runs_as_stream(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(8)
    tables = [rows(chance, 100, n * 100) for n in range(4)]
    for number, table in enumerate(tables[:2]):
        append(tmp_path / "s", table, backlog=number < 1)
    sink = Collect()
    keyed = source(tmp_path).key_by("user", order="seq")
    query = start(spark, keyed.process(Counted(), name="f"), tmp_path, sink)
    try:
        wait(lambda: put_out(sink).total() == 200, query)
        query.processAllAvailable()
    finally:
        query.stop()
    append(tmp_path / "s", tables[2], backlog=True)
    append(tmp_path / "s", tables[3], backlog=False)
    query = start(spark, keyed.process(CountedMore(), name="f"), tmp_path, sink)
    try:
        wait(lambda: put_out(sink).total() == 400, query)
        query.processAllAvailable()
        state = {r["user"]: (r["n"], r["since"]) for r in query.state("f").collect()}
    finally:
        query.stop()
    assert query.exception() is None
    before, after = (Counter(pa.concat_tables(t)["user"].to_pylist()) for t in (tables[:2], tables[2:]))
    assert state == {user: (before[user] + after[user], 1_000 + after[user]) for user in after}
    vehicles = [run[1] for run in json.loads(newest_ledger(tmp_path))["runs"]]
    assert vehicles == ["sorted", "stream"], "what a function has made of rows cannot be merged"
    with pytest.raises(BacklogError, match=r"state of the keyed operator 'f' is now.*nothing can be removed"):
        start(spark, keyed.process(Counted(), name="f"), tmp_path, sink)


@pytest.mark.parametrize("available_now", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stay_is_a_first_one_until_a_row_has_come(spark: SparkSession, tmp_path: Path, available_now: bool) -> None:
    """The source finds out that it is in backlog in a batch without rows. Nothing is in the state yet."""
    chance = random.Random(11)
    tables = [*[SCHEMA.empty_table()] * 2, *(rows(chance, n, n * 100) for n in (40, 60, 90))]
    for number, table in enumerate(tables):
        append(tmp_path / "s", table, backlog=number in (2, 3))
    sink = Collect()
    keyed = source(tmp_path).key_by("user", order="seq").process(Counted(), name="f")
    query = start(spark, keyed, tmp_path, sink, **({"available_now": True} if available_now else {}))
    try:
        wait(lambda: put_out(sink).total() == 190, query)
        if available_now:
            assert query.awaitTermination(300)
        else:
            query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    seqs: dict[str, list[int]] = {user: [] for user in USERS}
    for row in pa.concat_tables(tables).select(["user", "seq"]).to_pylist():
        seqs[row["user"]].append(row["seq"])
    assert put_out(sink) == Counter((user, seq, n) for user in USERS for n, seq in enumerate(sorted(seqs[user]), 1))
    found = json.loads(newest_ledger(tmp_path))
    stays = [(vehicle, epoch) for _, vehicle, epoch in found["runs"]]
    assert stays[-2:] == [("sorted", 0), ("stream", -1)], "what a function has made of rows cannot be merged later"
    assert found["putsOutEach"] is False


def newest_ledger(root: Path) -> str:
    found = (root / "c" / "backlog").glob("plan-*.json")
    return max(found, key=lambda p: int(p.stem.partition("-")[2])).read_text()


class NoTime(Counted):
    def process_element(self, row: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(1)
        yield from super().process_element(row, ctx)


def test_mistakes_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "s", rows(random.Random(1), 10, 0), backlog=False)

    class Empty(bs.KeyedProcessFunction):
        pass

    class Odd(bs.KeyedProcessFunction):
        output = "a lond"

    keyed = source(tmp_path).key_by("user")
    for stream, problem in (
        (keyed.process(Empty()), r"Empty.output is ''.*output ="),
        (keyed.process(Odd()), r"type 'a lond' of Odd.output is not a Spark type"),
        (keyed.process(Counted(), late_output="late"), r"late_output='late': the stream has no watermark"),
        (
            source(tmp_path).with_watermark("tz", "1 s").key_by("user").process(Counted()),
            r"no column 'tz'; it has user",
        ),
        (source(tmp_path).with_watermark("v", "1 s").key_by("user").process(Counted()), r"'v' is bigint; event time"),
        (source(tmp_path).key_by("user", order="sec").process(Counted()), r"no column 'sec' to order by"),
        (keyed.count().with_watermark("count", "1 s"), r"with_watermark\('count'\) comes after a key_by"),
        (
            source(tmp_path)
            .with_watermark("ts", "1 s")
            .union(bs.source("scripted", name="t", path=tmp_path / "s"))
            .key_by("user")
            .count(),
            r"inputs with a watermark and inputs without",
        ),
    ):
        with pytest.raises(BacklogError, match=problem):
            start(spark, stream, tmp_path, Collect())
    with pytest.raises(BacklogError, match="process was given the class"):
        keyed.process(Counted)  # type: ignore[arg-type]
    with pytest.raises(BacklogError, match="with_watermark delay"):
        source(tmp_path).with_watermark("ts", "soon")
    spark.conf.set("spark.backlog.restart.maxAttempts", "0")
    try:
        query = start(spark, keyed.process(NoTime()), tmp_path, Collect())
    finally:
        spark.conf.unset("spark.backlog.restart.maxAttempts")
    with pytest.raises(Exception, match=r"stream has no watermark: the timer would never fire"):
        query.awaitTermination(300)


class Telling(bs.KeyedProcessFunction):
    """Emits each row, and a timer at its time, with whether there was a watermark."""

    output = "what string, seq long, timeless boolean"
    pending = bs.MapState("long", "long")

    def process_element(self, row: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        self.pending.put(row.seq, ctx.timestamp())
        timers.register_event_time_timer(ctx.timestamp())
        yield "row", row.seq, timers.current_watermark() == MIN_WATERMARK

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        for seq, due in self.pending.items():
            if due == timestamp:
                self.pending.remove(seq)
                yield "timer", seq, ctx.timer_service().current_watermark() < timestamp


def numbered(table: pa.Table, first: int) -> pa.Table:
    return table.set_column(3, "seq", pa.array(range(first, first + table.num_rows)))


@pytest.mark.grid
def test_time_stops_during_a_later_stay(spark: SparkSession, tmp_path: Path) -> None:
    """As in the first one (FLIP-327, Timer Service): rows before the earlier watermark are not late."""
    chance = random.Random(5)
    live = [rows(chance, 60, n, disorder_s=0) for n in (0, 60, 400)]
    # Behind the watermark, around it, and far ahead of it.
    stay = [rows(chance, 60, first, disorder_s=0) for first in (20, 100, 300)]
    stay = [
        t.set_column(3, "seq", pa.array(range(n, n + 60))) for n, t in zip((1_000, 2_000, 3_000), stay, strict=True)
    ]
    for table in live[:2]:
        append(tmp_path / "s", table, backlog=False)
    sink, late = Collect(), Collect()
    stream = source(tmp_path).with_watermark("ts", "5 seconds").key_by("user").process(Telling(), late_output="late")
    query = start(spark, stream, tmp_path, sink, {"late": late})

    def found(what: str) -> dict[int, bool]:
        return {row[1]: row[2] for row in put_out(sink) if row[0] == what}

    try:
        wait(lambda: len(found("timer")) >= 114, query)
        for table in stay:
            append(tmp_path / "s", table, backlog=True)
        wait(lambda: len(found("row")) == 300, query)
        query.processAllAvailable()
        assert max(found("timer")) < 1_000, "they wait for the end of the stay"
        append(tmp_path / "s", live[2], backlog=False)
        wait(lambda: len(found("timer")) >= 354, query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    assert all(found("row")[seq] for seq in range(1_000, 1_060)), "the least watermark there is"
    assert all(timeless for seq, timeless in found("row").items() if seq >= 1_000)
    assert not any(found("row")[seq] for seq in [*range(60, 120), *range(400, 460)])
    assert not any(found("timer").values())
    assert put_out(sink).total() == 360 + len(found("timer")), "each once"
    assert not put_out(late)
    assert query.lateRows == 0


@pytest.mark.grid
def test_emitted_windows_are_not_emitted_again_in_a_later_stay(spark: SparkSession, tmp_path: Path) -> None:
    """Their rows are gone, so more rows for them are late. The watermark waits for the end of the stay."""
    chance = random.Random(6)
    live = [rows(chance, 60, n, disorder_s=0) for n in (0, 60, 400)]
    stay = [
        numbered(rows(chance, 60, second, disorder_s=0), n) for second, n in ((300, 1_000), (20, 2_000), (100, 3_000))
    ]
    for table in live[:2]:
        append(tmp_path / "s", table, backlog=False)
    sink, late = Collect(), Collect()
    windows = (
        source(tmp_path)
        .with_watermark("ts", "5 seconds")
        .key_by("user")
        .window(bs.TumblingEventTimeWindows.of("10 seconds"))
    )
    query = start(spark, windows.side_output_late_data("late").count(), tmp_path, sink, {"late": late})
    reached = millis(EPOCH) + 119_000 - 5_001

    def is_late(row: dict[str, Any]) -> bool:
        end = millis(row["ts"]) // WINDOW_MS * WINDOW_MS + WINDOW_MS
        return row["seq"] >= 1_000 and end - 1 <= reached

    every = [row for table in [*live, *stay] for row in table.to_pylist()]
    behind = {row["seq"] for row in every if is_late(row)}
    expected = Counter((r["user"], millis(r["ts"]) // WINDOW_MS) for r in every if r["seq"] not in behind)
    expected = Counter({key: count for key, count in expected.items() if key[1] * WINDOW_MS < millis(EPOCH) + 450_000})

    def found() -> Counter[Any]:
        by_key: Counter[Any] = Counter()
        for batch in sink.batches.values():
            for row in batch:
                by_key[row["user"], millis(row["window_start"]) // WINDOW_MS] += row["count"]
        return by_key

    try:
        wait(lambda: len(found()) > 20, query)
        for table in stay:
            append(tmp_path / "s", table, backlog=True)
        wait(lambda: query.backlogProgress.rows == 300, query)
        append(tmp_path / "s", live[2], backlog=False)
        wait(lambda: sum(found().values()) >= sum(expected.values()), query)
        query.processAllAvailable()
    finally:
        query.stop()
    print(found() - expected, expected - found())
    assert {row["seq"] for batch in late.batches.values() for row in batch} == behind
    assert len(behind) > 60
    assert found() == expected
