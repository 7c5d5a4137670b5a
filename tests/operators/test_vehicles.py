"""Keyed operators in real queries: the result equals one batch, however backlog and live rows are cut."""

from __future__ import annotations

import datetime as dt
import functools
import json
import random
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.decide.ledger import Ledger
from backlog_spark.decide.steps import Mode
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.handover import versions
from backlog_spark.spark.plan import plan_builder as vehicles
from backlog_spark.state.seeds import PackFiles

from .conftest import Collect, plain, wait
from .scripted import append, append_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("level", pa.float64()),
        ("v", pa.int64()),
        ("d", pa.float64()),
        ("seq", pa.int64()),
    ]
)
KEYS = ("name", "price", "level")
AGGREGATES = "sum(v) AS total, count(*) AS n, count(d) AS known, min(d) AS lo, max(v) AS hi, sum(price) AS worth"
# Keys that are easy to confuse: NULL and "", 0.0 and -0.0, NaN and itself.
NAMES = ["a", "b", "", None, "ä"]
PRICES = [Decimal("1.00"), Decimal("-0.01"), None]
LEVELS = [0.0, -0.0, float("nan"), 1.5, None]


def rows(chance: random.Random, count: int, first: int) -> pa.Table:
    """Random rows; values that a double could not hold, so that a detour through one would show."""
    made = [
        (
            chance.choice(NAMES),
            chance.choice(PRICES),
            chance.choice(LEVELS),
            chance.choice([None, chance.randrange(-(2**57), 2**57)]),
            chance.choice([None, chance.uniform(-1e9, 1e9), float("nan")]),
            first + i,
        )
        for i in range(count)
    ]
    return pa.table([pa.array(c, f.type) for c, f in zip(zip(*made, strict=True), SCHEMA, strict=True)], schema=SCHEMA)


def expected(spark: SparkSession, tables: list[pa.Table], sql: str = AGGREGATES) -> dict[Any, Any]:
    """What Spark's own batch aggregation gives."""
    spark.createDataFrame(pa.concat_tables(tables)).createOrReplaceTempView("given")
    found = spark.sql(f"SELECT {', '.join(KEYS)}, {sql} FROM given GROUP BY {', '.join(KEYS)}").collect()
    return {plain(tuple(r)[: len(KEYS)]): plain(tuple(r)[len(KEYS) :]) for r in found}


def start(spark: SparkSession, stream: bs.BacklogStream, sink: bs.Sink, root: Path, **trigger: Any) -> bs.BacklogQuery:
    given = {"processing_time": "100 ms", "interval_during_backlog": 0, **trigger}
    return stream.write("keyed").trigger(**given).option("checkpointLocation", str(root / "c")).to(sink).start(spark)


def runs(root: Path) -> list[tuple[int, str, int]]:
    """First batch, vehicle and epoch of the runs that the checkpoint knows."""
    while True:
        newest = max((root / "c" / "backlog").glob("plan-*.json"), key=lambda p: int(p.stem.partition("-")[2]))
        try:
            return [tuple(run) for run in json.loads(newest.read_text())["runs"]]
        except FileNotFoundError:  # a newer one has taken its place
            continue


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "backlog", "live", "partitions"),
    # micro-batches in backlog and after it: none, all in one, many
    [(1, 3, 2, 2), *(pytest.param(*given, marks=pytest.mark.grid) for given in ((2, 0, 3, 1), (3, 1, 1, 5)))],
)
def test_batch_then_stream_is_one_batch(
    spark: SparkSession, tmp_path: Path, seed: int, backlog: int, live: int, partitions: int
) -> None:
    chance = random.Random(seed)
    tables = []
    for number in range(backlog + live):
        tables.append(rows(chance, chance.randrange(1, 400), number * 1_000))
        append(tmp_path / "s", tables[-1], backlog=number < backlog)
    source = bs.source("scripted", name="s", path=tmp_path / "s", partitions=partitions)
    sink = Collect()
    query = start(spark, source.key_by(*KEYS).aggregate(AGGREGATES, name="totals"), sink, tmp_path)
    try:
        wait(lambda: len(sink.batches) >= bool(backlog) + live, query)
        tables.append(rows(chance, 5, 10**6))
        append(tmp_path / "s", tables[-1], backlog=False)
        wait(lambda: len(sink.batches) > bool(backlog) + live, query)
        query.processAllAvailable()
        state = query.state("totals")
        assert {plain(tuple(r)[:3]): plain(tuple(r)[3:]) for r in state.collect()} == expected(spark, tables)
        with pytest.raises(BacklogError, match=r"no keyed operator 'other'\. There are: totals"):
            query.state("other")
        assert [s.mode for s in query.history] == ([Mode.BACKLOG, Mode.STREAM] if backlog else [Mode.STREAM])
        # State handed over is no row.
        wait(lambda: query.backlogProgress.rows == sum(t.num_rows for t in tables), query)
    finally:
        query.stop()
    assert query.exception() is None
    assert sink.newest(len(KEYS)) == expected(spark, tables)
    assert [sink.backlog[n] for n in sorted(sink.backlog)] == [True] * bool(backlog) + [False] * (live + 1)
    # A live batch puts out the keys that it changed and no other: not those that were handed over.
    for number, table in zip(sorted(sink.batches), [*tables[:0], *tables[backlog - bool(backlog) :]], strict=True):
        if not sink.backlog[number]:
            assert len(sink.batches[number]) == len(expected(spark, [table]))


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_state_is_handed_over_by_its_files_or_by_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    if not whole:
        monkeypatch.setattr(versions, "_WHOLE_FILE_BYTES", 100)
    made = []
    monkeypatch.setattr(vehicles, "PackFiles", lambda *given: made.append(given) or PackFiles(*given))
    tables = [rows(random.Random(n), 300, n * 1_000) for n in range(3)]
    for number, table in enumerate(tables):
        append(tmp_path / "s", table, backlog=number < 2)
    sink = Collect()
    source = bs.source("scripted", name="s", path=tmp_path / "s")
    query = start(spark, source.key_by(*KEYS).aggregate(AGGREGATES), sink, tmp_path)
    try:
        wait(lambda: len(sink.batches) == 2, query)
    finally:
        query.stop()
    assert sink.newest(len(KEYS)) == expected(spark, tables)
    # Once for the plan of the backlog, which has no seeds yet, and once for that of stream mode.
    assert len(made) == 1 + whole


@pytest.mark.grid
def test_a_query_that_began_in_pandas_stays_in_pandas(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark refuses to read the state of one form with the other."""
    tables = [rows(random.Random(n), 300, n * 1_000) for n in range(3)]
    append(tmp_path / "s", tables[0], backlog=True)
    append(tmp_path / "s", tables[1], backlog=False)
    sink = Collect()
    source = bs.source("scripted", name="s", path=tmp_path / "s")
    stream = source.key_by(*KEYS).aggregate(AGGREGATES, name="totals")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger.__init__, "__defaults__", (*(Ledger.__init__.__defaults__ or ())[:-1], True))
        query = start(spark, stream, sink, tmp_path)
        wait(lambda: len(sink.batches) == 2, query)
        query.stop()
    append(tmp_path / "s", tables[2], backlog=False)
    query = start(spark, stream, sink, tmp_path)
    wait(lambda: len(sink.batches) == 3, query)
    query.stop()
    assert query.exception() is None
    assert sink.newest(len(KEYS)) == expected(spark, tables)
    (metadata,) = [p for p in (tmp_path / "c" / "state" / "0" / "_metadata").rglob("0") if p.is_file()]
    assert "transformWithStateInPandasExec" in metadata.read_text()


@pytest.mark.grid
def test_sorted_batches_with_an_interval(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(19)
    tables = [rows(chance, 200, n * 1_000) for n in range(5)]
    for number, table in enumerate(tables):
        append(tmp_path / "s", table, backlog=number < 3)
    sink = Collect()
    source = bs.source("scripted", name="s", path=tmp_path / "s").key_by(*KEYS).aggregate(AGGREGATES)
    spark.conf.set("spark.backlog.sortedBatch.enabled", "true")
    try:
        query = start(spark, source, sink, tmp_path, interval_during_backlog="1 second")
    finally:
        spark.conf.unset("spark.backlog.sortedBatch.enabled")
    try:
        wait(lambda: len(sink.batches) >= 5, query)
    finally:
        query.stop()
    assert sink.newest(len(KEYS)) == expected(spark, tables)
    assert [(vehicle, epoch) for _, vehicle, epoch in runs(tmp_path)] == [("sorted", 0), ("stream", -1)]
    # Every batch puts out the keys that it changed, merged with what was there.
    for number, table in enumerate(tables):
        assert len(sink.batches[number]) == len(expected(spark, [table]))


def test_state_is_whole_at_any_time(spark: SparkSession, tmp_path: Path) -> None:
    """Read repeatedly while it is written, handed over and changed, it is always complete."""
    chance = random.Random(4)
    tables = [rows(chance, 400, 0)]
    append(tmp_path / "s", tables[0], backlog=True)
    source = bs.source("scripted", name="s", path=tmp_path / "s", partitions=2)
    query = start(spark, source.key_by(*KEYS).aggregate(AGGREGATES, name="totals"), Collect(), tmp_path)
    wholes: list[dict[Any, Any]] = [{}, expected(spark, tables)]
    tables.append(rows(chance, 50, 10**6))
    wholes.append(expected(spark, tables))
    try:
        seen = [0]
        limit = time.monotonic() + 300
        while seen[-1] < 2:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            found = {plain(tuple(r)[:3]): plain(tuple(r)[3:]) for r in query.state("totals").collect()}
            assert found in wholes
            seen.append(wholes.index(found))
            if seen[-1] == 1 and 1 not in seen[:-1]:
                append(tmp_path / "s", tables[1], backlog=False)
        assert seen == sorted(seen)
    finally:
        query.stop()


def test_feature_off_is_the_stream_vehicle_throughout(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(7)
    tables = [rows(chance, 200, n * 1_000) for n in range(3)]
    for number, table in enumerate(tables):
        append(tmp_path / "s", table, backlog=number < 2)
    sink = Collect()
    source = bs.source("scripted", name="s", path=tmp_path / "s")
    query = start(spark, source.key_by(*KEYS).aggregate(AGGREGATES), sink, tmp_path, interval_during_backlog=None)
    try:
        wait(lambda: len(sink.batches) >= 3, query)
    finally:
        query.stop()
    assert sink.newest(len(KEYS)) == expected(spark, tables)
    assert not (tmp_path / "c" / "backlog" / "state").exists()


@pytest.mark.grid
def test_operators_in_a_chain(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(11)
    schema = pa.schema([("shop", pa.int64()), ("item", pa.int64()), ("v", pa.int64())])

    def sales(count: int) -> pa.Table:
        made = [(chance.randrange(5), chance.randrange(50), chance.randrange(1, 9)) for _ in range(count)]
        return pa.table(list(zip(*made, strict=True)), schema=schema)

    tables = [sales(300), sales(300), sales(100), sales(50)]
    for number, table in enumerate(tables):
        append(tmp_path / "s", table, backlog=number < 2)
    best = (
        bs.source("scripted", name="s", path=tmp_path / "s")
        .filter("v < 8")
        .key_by("shop", "item")
        .sum("v")
        .map("shop", "v * 10 AS sold")
        .key_by("shop")
        .max("sold")
    )
    sink = Collect()
    query = start(spark, best, sink, tmp_path)
    try:
        wait(lambda: len(sink.batches) >= 3, query)
    finally:
        query.stop()
    # Sums only grow, so the greatest sum ever put out is the greatest at the end.
    spark.createDataFrame(pa.concat_tables(tables)).createOrReplaceTempView("sales")
    found = spark.sql(
        "SELECT shop, max(sold) FROM (SELECT shop, item, 10 * sum(v) AS sold FROM sales WHERE v < 8 GROUP BY 1, 2) "
        "GROUP BY shop"
    ).collect()
    assert sink.newest(1) == {(r[0],): (r[1],) for r in found}
    assert sink.backlog == {0: True, 1: False, 2: False}


def longest(a: Any, b: Any) -> Any:
    """Adds the amounts and keeps the longer of the texts."""
    text = max(a.text or "", b.text or "", key=lambda t: (len(t), t))
    return a._replace(text=text, amount=None if None in (a.amount, b.amount) else a.amount + b.amount)


@pytest.mark.grid
def test_reduce(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(23)
    schema = pa.schema([("text", pa.string()), ("k", pa.float64()), ("amount", pa.decimal128(20, 2))])
    keys = [0.0, -0.0, float("nan"), None, 1.5, *map(float, range(10, 60))]
    made = [
        ("x" * chance.randrange(9), chance.choice(keys), Decimal(chance.randrange(10**9)).scaleb(-2))
        for _ in range(1_000)
    ]
    made += [("last", float(n), Decimal(n)) for n in range(100, 110)]  # keys of one row
    made += [(None, 1.5, Decimal(0))] * 300  # and one of many
    chance.shuffle(made)
    parts = [made[n::5] for n in range(5)]
    for number, part in enumerate(parts):
        append(tmp_path / "s", pa.table(list(zip(*part, strict=True)), schema=schema), backlog=number < 3)
    best: dict[Any, Any] = {}
    for text, k, amount in made:
        key = plain((k + 0.0 if k is not None else None,))
        before = best.get(key, ("", Decimal(0)))
        best[key] = (max(before[0], text or "", key=lambda t: (len(t), t)), before[1] + amount)
    for during in (0, "1 second"):
        spark.conf.set("spark.backlog.sortedBatch.enabled", "true")
        source = bs.source("scripted", name="s", path=tmp_path / "s").key_by("k").reduce(longest)
        sink = Collect()
        query = start(spark, source, sink, tmp_path / str(during), interval_during_backlog=during)
        spark.conf.unset("spark.backlog.sortedBatch.enabled")
        try:
            wait(lambda: len(sink.batches) >= (3 if during == 0 else 5), query)  # noqa: B023
        finally:
            query.stop()
        assert sink.schema.names == ["k", "text", "amount"]
        assert {k: (v[0] or "", v[1]) for k, v in sink.newest(1).items()} == best


@pytest.mark.grid
def test_a_reduce_function_that_returns_something_else(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"k": pa.array([1, 1], pa.int64()), "v": pa.array([1, 2], pa.int64())})
    append(tmp_path / "s", table, backlog=False)
    keyed = bs.source("scripted", name="s", path=tmp_path / "s").key_by("k")
    spark.conf.set("spark.backlog.restart.maxAttempts", "0")
    try:
        for number, (function, problem) in enumerate(
            (
                (lambda a, b: a.v + b.v, "must return a tuple of 2 values: k, v"),
                (lambda a, b: (2, a.v), "changed the key 'k' from 1 to 2"),
                (lambda a, b: (1, "many"), "a value for 'v' that is not int64"),
            )
        ):
            query = start(spark, keyed.reduce(function), Collect(), tmp_path / str(number))
            with pytest.raises(BacklogError, match=problem):
                query.awaitTermination(300)
    finally:
        spark.conf.unset("spark.backlog.restart.maxAttempts")


@pytest.mark.grid
@pytest.mark.parametrize("before", ["live", pytest.param("off", marks=pytest.mark.grid)])
def test_a_first_stay_after_live_rows(spark: SparkSession, tmp_path: Path, before: str) -> None:
    """The source was live before, or the feature was off while it was in backlog."""
    chance = random.Random(29)
    tables = [rows(chance, 200, n * 1_000) for n in range(4)]
    append(tmp_path / "s", tables[0], backlog=before == "off")
    source = bs.source("scripted", name="s", path=tmp_path / "s").key_by(*KEYS).aggregate(AGGREGATES)
    sink = Collect()
    query = start(spark, source, sink, tmp_path, interval_during_backlog=None if before == "off" else 0)
    try:
        wait(lambda: query.backlogProgress.rows == 200, query)
        if before == "off":
            query.stop()
        append(tmp_path / "s", tables[1], backlog=True)
        if before == "off":
            query = start(spark, source, sink, tmp_path)
        wait(lambda: runs(tmp_path)[-1][1] == "sorted", query)
        append(tmp_path / "s", tables[2], backlog=True)
        append(tmp_path / "s", tables[3], backlog=False)
        result = expected(spark, tables)
        wait(lambda: sink.newest(len(KEYS)) == result, query)
    finally:
        query.stop()


@pytest.mark.grid
def test_a_chain_in_a_later_stay(spark: SparkSession, tmp_path: Path) -> None:
    """The second operator sees emitted results of the first, never rows that it only collected."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])

    def table(*made: tuple[int, int]) -> pa.Table:
        return pa.table(list(zip(*made, strict=True)), schema=schema)

    append(tmp_path / "s", table((1, 100), (2, 200)), backlog=True)
    append(tmp_path / "s", table((1, 1)), backlog=False)
    sums = bs.source("scripted", name="s", path=tmp_path / "s").key_by("k").aggregate("sum(v) AS total", name="sums")
    low = sums.map("1 AS one", "total").key_by("one").aggregate("min(total) AS low, count(*) AS seen", name="lows")
    sink = Collect()
    query = start(spark, low, sink, tmp_path)
    try:
        wait(lambda: query.backlogProgress.rows == 3, query)
        append(tmp_path / "s", table((2, 3)), backlog=True)
        wait(lambda: runs(tmp_path)[-1][2] == 1, query)
        append(tmp_path / "s", table((2, 4), (1, 5)), backlog=True)
        append(tmp_path / "s", table((2, 6)), backlog=False)
        wait(lambda: query.mode is Mode.STREAM and query.backlogProgress.rows == 7, query)
        query.processAllAvailable()
        assert {tuple(r) for r in query.state("sums").collect()} == {(1, 106), (2, 213)}
        # A minimum of results that change keeps each of them.
        assert {tuple(r)[:2] for r in query.state("lows").collect()} == {(1, 106), (1, 213)}
    finally:
        query.stop()
    assert {k: v[:2] for k, v in sink.newest(1).items()} == {(1,): (106, 2)}


@pytest.mark.slow
def test_available_now_ends_in_backlog_too(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(31)
    tables = [rows(chance, 100, n * 1_000) for n in range(4)]
    append(tmp_path / "s", tables[0], backlog=True)
    append(tmp_path / "s", tables[1], backlog=True)
    source = bs.source("scripted", name="s", path=tmp_path / "s").key_by(*KEYS).aggregate(AGGREGATES)
    sink = Collect()
    assert start(spark, source, sink, tmp_path, available_now=True).awaitTermination(300)
    assert sink.newest(len(KEYS)) == expected(spark, tables[:2])
    append(tmp_path / "s", tables[2], backlog=True)
    append(tmp_path / "s", tables[3], backlog=False)
    assert start(spark, source, sink, tmp_path, available_now=True).awaitTermination(300)
    assert sink.newest(len(KEYS)) == expected(spark, tables)


@pytest.mark.slow
def test_keys_are_kept_whatever_form_the_users_files_have(spark: SparkSession, tmp_path: Path) -> None:
    at = dt.datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
    table = pa.table({"at": pa.array([at], pa.timestamp("us", tz="UTC")), "v": pa.array([1], pa.int64())})
    append(tmp_path / "s", table, backlog=True)
    append(tmp_path / "s", table, backlog=False)
    sink = Collect()
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS")
    try:
        query = start(spark, bs.source("scripted", name="s", path=tmp_path / "s").key_by("at").count(), sink, tmp_path)
        try:
            wait(lambda: len(sink.batches) == 2, query)
        finally:
            query.stop()
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    found = [row for number in (0, 1) for row in sink.batches[number]]
    assert [(row["at"].microsecond, row["count"]) for row in found] == [(123456, 1), (123456, 2)]


def test_without_ansi_mode_sums_would_overflow_unseen(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "s", rows(random.Random(1), 10, 0), backlog=False)
    counts = bs.source("scripted", name="s", path=tmp_path / "s").key_by("name").count()
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(SettingError, match=r"spark.sql.ansi.enabled"):
            start(spark, counts, Collect(), tmp_path)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.slow
@pytest.mark.parametrize("later", [1, pytest.param(2, marks=pytest.mark.grid)])
def test_a_later_stay_in_backlog_is_merged_and_emitted_at_its_end(
    spark: SparkSession, tmp_path: Path, later: int
) -> None:
    chance = random.Random(13)
    tables = [rows(chance, 300, n * 1_000) for n in range(2 + 3 * later)]
    for number, table in enumerate(tables[:2]):
        append(tmp_path / "s", table, backlog=number == 0)
    source = bs.source("scripted", name="s", path=tmp_path / "s").key_by(*KEYS).aggregate(AGGREGATES)
    sink = Collect()
    query = start(spark, source, sink, tmp_path)

    def caught_up(count: int) -> bool:
        return query.mode is Mode.STREAM and query.backlogProgress.rows == 300 * count

    try:
        for done in range(2, len(tables), 3):
            wait(functools.partial(caught_up, done), query)
            # All at once: what is in backlog stands ready behind the batch that says so.
            append_all(tmp_path / "s", tables[done : done + 3], backlog=(True, True, False))
        wait(functools.partial(caught_up, len(tables)), query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    assert [s.mode for s in query.history] == [Mode.BACKLOG, Mode.STREAM] * (1 + later)
    assert sink.newest(len(KEYS)) == expected(spark, tables)
    vehicles = [(vehicle, epoch) for _, vehicle, epoch in runs(tmp_path)]
    assert vehicles == [run for epoch in range(1 + later) for run in (("sorted", epoch), ("stream", -1))]
    assert not any(sink.batches[n] for n, is_backlog in sink.backlog.items() if is_backlog and n), "they only collect"
    for first, after, done in ((2, 3, 2), (4, 5, 5))[:later]:
        assert [sink.backlog[n] for n in range(runs(tmp_path)[first][0], runs(tmp_path)[after][0])] == [True]
        assert len(sink.batches[runs(tmp_path)[after][0]]) >= len(expected(spark, tables[done : done + 2]))


def test_what_a_checkpoint_fixes_cannot_be_changed(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "s", rows(random.Random(1), 10, 0), backlog=False)
    keyed = bs.source("scripted", name="s", path=tmp_path / "s").key_by("name")
    sink = Collect()
    query = start(spark, keyed.sum("v"), sink, tmp_path)
    try:
        wait(lambda: len(sink.batches) == 1, query)
    finally:
        query.stop()
    with pytest.raises(BacklogError, match=r"operators are name_max_v, those of its checkpoint name_sum_v"):
        start(spark, keyed.max("v"), sink, tmp_path)
    with pytest.raises(BacklogError, match=r"'name_sum_v' is now \(Sum.*: double\); .* it is \(Sum.*: bigint"):
        start(spark, keyed.aggregate("sum(d) AS v", name="name_sum_v"), sink, tmp_path)
    with pytest.raises(BacklogError, match=r"is now \(Sum.*'seq'.* it is \(Sum.*'v'"):
        start(spark, keyed.aggregate("sum(seq) AS v", name="name_sum_v"), sink, tmp_path)
    by_price = bs.source("scripted", name="s", path=tmp_path / "s").key_by("price")
    with pytest.raises(BacklogError, match=r"is now by price decimal\(10,2\); in the checkpoint it is by name string"):
        start(spark, by_price.aggregate("sum(v) AS v", name="name_sum_v"), sink, tmp_path)
    spark.conf.set("spark.backlog.keyGroups", "64")
    try:
        with pytest.raises(SettingError, match=r"spark.backlog.keyGroups.*made with 32.*Set 32"):
            start(spark, keyed.sum("v"), sink, tmp_path)
    finally:
        spark.conf.unset("spark.backlog.keyGroups")
    for ledger in (tmp_path / "c" / "backlog").glob("*plan-*"):
        ledger.unlink()
    with pytest.raises(BacklogError, match=r"batches up to 0, but no backlog/plan.*Restore the file"):
        start(spark, keyed.sum("v"), sink, tmp_path)


def test_mistakes_are_refused_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "s", rows(random.Random(1), 10, 0), backlog=False)
    source = bs.source("scripted", name="s", path=tmp_path / "s")
    for stream, problem in (
        (source.key_by("nam").count(), r"no column 'nam'; it has name, price"),
        (source.key_by("name", "name").count(), "twice"),
        (
            source.transform(lambda f: f.selectExpr("array(v) AS vs")).key_by("vs").count(),
            "array<bigint>; keys must have an atomic type",
        ),
        (source.key_by("name").count().union(source.key_by("name").sum("v")), "keyed already"),
        (source.key_by("name").count().key_by("name").aggregate("sum(count) AS name"), "two columns 'name'"),
        (source.key_by("name").count().key_by("name").count(), "named 'name_count'"),
    ):
        with pytest.raises(BacklogError, match=problem):
            start(spark, stream, Collect(), tmp_path)
    with pytest.raises(BacklogError, match="at least one column"):
        source.key_by()
    with pytest.raises(BacklogError, match="streaming DataFrame"):
        bs.stream(spark.range(3))


class Watching(Collect):
    """Checks whether the first batch's state stores are committed when it is written. May fail once after that."""

    def __init__(self, checkpoint: Path, *, fails: bool) -> None:
        super().__init__()
        self._stores = checkpoint / "state" / "0" / "0"
        self._fails = fails
        self.committed: list[bool] = []

    def write(self, batch_df: Any, batch: Any) -> None:
        if not batch.batch_id:
            self.committed.append(any(self._stores.glob("1.*")))
        super().write(batch_df, batch)
        if self._fails:
            self._fails = False
            raise ValueError("the disk is full")


@pytest.mark.grid
@pytest.mark.parametrize(
    ("shape", "fails"),
    [
        ("one", True),
        *(
            pytest.param(shape, fails, marks=pytest.mark.grid)
            for shape, fails in (
                ("one", False),
                ("beside a table", False),
                ("beside a table", True),
                ("two", False),
                ("two", True),
            )
        ),
    ],
)
def test_what_was_prepared_runs_after_a_batch_is_written(
    spark: SparkSession, tmp_path: Path, shape: str, fails: bool
) -> None:
    """A replayed batch with an existing state reads its rows once, for their event times."""
    start_at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def table(first: int, count: int) -> pa.Table:
        times = [start_at + dt.timedelta(seconds=n) for n in range(first, first + count)]
        made = {"k": [n % 7 for n in range(count)], "v": range(count), "ts": pa.array(times, pa.timestamp("us", "UTC"))}
        return pa.table(made)

    sources = []
    sides = 2 if shape == "two" else 1
    for number in range(sides):
        append(tmp_path / f"s{number}", table(0, 100), backlog=True)
        source = bs.source("scripted", name=f"s{number}", path=tmp_path / f"s{number}")
        if shape == "beside a table":
            # Spark reads what it sends to all workers before anything else.
            source = source.transform(
                lambda rows: rows.join(spark.range(7).withColumnRenamed("id", "k").hint("broadcast"), "k")
            )
        sources.append(source.with_watermark("ts", "0 seconds"))
    windows = bs.TumblingEventTimeWindows.of("10 seconds")
    if sides == 1:
        stream = sources[0].key_by("k").window(windows).sum("v")
    else:
        # The operator behind has rows of a source beside those of the first one.
        counts = sources[0].key_by("k").window(windows).aggregate("count(*) AS n").map("k", "n", "window_time AS ts")
        stream = counts.key_by("k").interval_join(sources[1].map("k AS j", "v", "ts AS at").key_by("j"))
        stream = stream.between("-9999 ms", "0 seconds").map("k", "n", "v")
    sink = Watching(tmp_path / "c", fails=fails)
    query = start(spark, stream, sink, tmp_path)
    try:
        wait(lambda: query.backlogProgress.rows >= 100 * sides, query)
        greatest = int((start_at + dt.timedelta(seconds=99)).timestamp() * 1000)
        known = json.loads((tmp_path / "c" / "backlog" / "event-time-0.json").read_text())
        assert known["greatest"] == [greatest] * sides
        for number in range(sides):
            append(tmp_path / f"s{number}", table(1_000, 1), backlog=False)
        wait(lambda: query.backlogProgress.rows == 101 * sides, query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    assert sink.committed == [False] * (1 + fails)
    found = sorted(tuple(row) for batch in sink.batches.values() for row in batch)
    given = [(n // 10, n % 7, n) for n in range(100)]
    if sides == 1:
        expected = {(window, k): sum(v for w, j, v in given if (w, j) == (window, k)) for window, k, _ in given}
        assert sorted(row[-1] for row in found) == sorted(expected.values())
    else:
        of_window = Counter((window, k) for window, k, _ in given)
        assert Counter(found) == Counter((k, of_window[window, k], v) for window, k, v in given)
