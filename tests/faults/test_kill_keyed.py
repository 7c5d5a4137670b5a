"""SIGKILL of a keyed query at every step of backlog, hand-off and stream: one life after another, the exact result."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from backlog_spark.spark.plan import cardinality
from backlog_spark.state.timer_reports import FiringBudget
from tests.operators.scripted import append

from .keyed_job import (
    AGGREGATES,
    BITS_POINTS,
    FEW_TIMERS,
    INTERRUPTED_POINTS,
    KEPT_POINTS,
    PAIRED_POINTS,
    POINTS,
    SILENT_POINTS,
    SMALL,
    TIMED_POINTS,
    TOP,
    WINDOW_MS,
    start,
)
from .test_kill_driver import task_workers
from .watching import transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
LIMIT_S = 300


def rows(chance: random.Random, count: int, keys: int = 300) -> pa.Table:
    made = [(chance.choice([None, chance.randrange(keys)]), chance.randrange(-(10**12), 10**12)) for _ in range(count)]
    return pa.table(list(zip(*made, strict=True)), schema=SCHEMA)


def live_until_killed(job: dict[str, str], point: str, log: Path) -> None:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.keyed_job", json.dumps(job), point],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        raise AssertionError(f"{point!r} was not reached: {log.read_text()[-3000:]}") from None
    assert code == -signal.SIGKILL, (point, log.read_text()[-3000:])
    assert "is restarted" not in log.read_text(), "the next driver continues after a kill without a restart"


# In backlog, as two streams are killed in stream mode; `make faults` goes through all.
SOME = ["while tasks fold"]


@pytest.mark.slow
@pytest.mark.parametrize("silent", [pytest.param(0, marks=pytest.mark.grid), 1])
@pytest.mark.parametrize("points", [SOME, pytest.param(list(POINTS), marks=pytest.mark.grid)], ids=["some", "all"])
def test_killed_at_every_step(spark: SparkSession, tmp_path: Path, points: list[str], silent: int) -> None:
    """``silent``: a batch without rows finds out that there is backlog. It is a first stay all the same."""
    chance = random.Random(3)
    job = {name: str(tmp_path / name) for name in ("script", "checkpoint", "target")}
    tables = [*([SCHEMA.empty_table()] * silent), *(rows(chance, 2_000) for _ in range(4))]
    for number, table in enumerate(tables[:-1]):
        append(Path(job["script"]), table, backlog=0 <= number - silent < 2)
    killed_and_ended(spark, job, [*(SILENT_POINTS if silent else ()), *points], tables)


def killed_and_ended(
    spark: SparkSession, job: dict[str, str], points: list[str], tables: list[pa.Table]
) -> bs.BacklogQuery:
    """One life up to each kill point, and one to the end. The last table has separate live rows."""
    for point in points:
        live_until_killed(job, point, Path(job["checkpoint"]).parent / "driver.log")
    query = start(spark, job)
    try:
        append(Path(job["script"]), tables[-1], backlog=False)
        wait_for_rows(query, tables[-1].num_rows)
    finally:
        query.stop()
    assert query.exception() is None
    compare(spark, job, tables)
    return query


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(["before the commit"], id="some", marks=pytest.mark.grid),
        pytest.param(list(POINTS), id="all", marks=pytest.mark.grid),
    ],
)
def test_rows_that_are_shuffled_by_key_survive(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: list[str]
) -> None:
    chance = random.Random(7)
    job = {name: str(tmp_path / name) for name in ("script", "files", "together", "checkpoint", "target")}
    tables = [rows(chance, 2_000) for _ in range(5)]
    Path(job["files"]).mkdir()
    for number, table in enumerate(tables[:2]):
        pq.write_table(table, tmp_path / "files" / f"{number}.parquet")
    append(Path(job["script"]), tables[2], backlog=True)
    append(Path(job["script"]), tables[3], backlog=False)
    for name, value in SMALL.items():
        monkeypatch.setattr(cardinality, name, value)
    killed_and_ended(spark, job, points, tables)
    assert Path(job["together"]).exists(), "the rows of the first life were brought together"


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(
            ["when state has been taken in", "when changes have been written"], id="some", marks=pytest.mark.grid
        ),
        pytest.param(list(KEPT_POINTS), id="all", marks=pytest.mark.grid),
    ],
)
def test_changes_that_are_kept_apart_survive(spark: SparkSession, tmp_path: Path, points: list[str]) -> None:
    chance = random.Random(29)
    job = {name: str(tmp_path / name) for name in ("script", "checkpoint", "target")} | {"key_groups": "1"}
    tables = [
        rows(chance, 48_000, keys=20_000),
        *(rows(chance, 4_000, keys=20_000) for _ in range(3 + 3 * len(points))),
    ]
    for number, table in enumerate(tables[:-1]):
        append(Path(job["script"]), table, backlog=not number)
    try:
        query = killed_and_ended(spark, job, points, tables)
    finally:
        spark.conf.unset("spark.backlog.keyGroups")
    state = (tuple(row) for row in query.state("k_total_n_hi").collect())
    assert Counter(state) == Counter(tuple(r) for r in spark.read.format("delta").load(job["target"]).collect())
    buckets = spark.read.format("statestore").option("stateVarName", "buckets").option("batchId", 1)
    buckets = buckets.option("flattenCollectionTypes", "true").load(job["checkpoint"])
    assert buckets.count() > 3
    apart = []
    for batch in range(2, len(tables)):
        heads = spark.read.format("statestore").option("stateVarName", "head").option("batchId", batch)
        head = heads.load(job["checkpoint"]).selectExpr("coalesce(length(value.recent), 0) AS length").first()
        assert head is not None, "there is one key group"
        apart.append(head["length"])
    assert 0 in apart[1:], "it was put into the buckets"
    assert len(set(apart)) > 3, "and grew meanwhile"


# `make faults` goes through all.
SOME_TIMED = ["when timers have fired"]
TIMED = pa.schema([*SCHEMA, ("seq", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def timed_rows(chance: random.Random, count: int, first: int) -> pa.Table:
    """Row n is of second n, at most two seconds late."""
    made = [
        (chance.randrange(20), chance.randrange(10**6), n, EPOCH + dt.timedelta(seconds=n - chance.uniform(0, 2)))
        for n in range(first, first + count)
    ]
    return pa.table(list(zip(*made, strict=True)), schema=TIMED)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(SOME_TIMED, id="some", marks=pytest.mark.grid),
        pytest.param(list(INTERRUPTED_POINTS)[1:2], id="interrupted some", marks=pytest.mark.grid),
        pytest.param(list(TIMED_POINTS), id="all", marks=pytest.mark.grid),
        pytest.param(list(INTERRUPTED_POINTS), id="interrupted all", marks=pytest.mark.grid),
        pytest.param(["before the end of the stay is kept"], id="in pieces some", marks=pytest.mark.grid),
        pytest.param(list(BITS_POINTS), id="in pieces all", marks=pytest.mark.grid),
    ],
)
def test_time_and_side_outputs_survive(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: list[str]
) -> None:
    chance = random.Random(11)
    job = {name: str(tmp_path / name) for name in ("script", "checkpoint", "target", "odd")}
    if points[0] in INTERRUPTED_POINTS:
        job["interrupted"] = "yes"
        monkeypatch.setattr(FiringBudget, "of", lambda self, reports: FEW_TIMERS)
    elif "before the end of the stay is kept" in points:
        job["bits"] = "yes"
    tables = [timed_rows(chance, 500, n * 500) for n in range(5)]
    for number, table in enumerate(tables[:3]):
        append(Path(job["script"]), table, backlog=number < 2)
    timed_and_compared(spark, job, points, tables)


@pytest.mark.grid
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(["in a later stay"], id="some"),
        pytest.param(["in a later stay", *["one batch on"] * 2], id="all", marks=pytest.mark.grid),
    ],
)
def test_a_later_stay_survives(spark: SparkSession, tmp_path: Path, points: list[str]) -> None:
    """Its rows have new keys and times before the old watermark: none is late or duplicated."""
    chance = random.Random(13)
    job = {name: str(tmp_path / name) for name in ("script", "checkpoint", "target", "odd")}
    live = [timed_rows(chance, 200, n * 200) for n in range(5, 9)]
    stay = [timed_rows(chance, 200, n * 200) for n in range(3)]
    stay = [table.set_column(0, SCHEMA.field(0), pc.add(table["k"], 100)) for table in stay]
    tables = [*live[:2], *stay, *live[2:]]
    for number, table in enumerate(tables[:6]):
        append(Path(job["script"]), table, backlog=1 < number < 5)
    timed_and_compared(spark, job, points, tables, 6)


def timed_and_compared(
    spark: SparkSession, job: dict[str, str], points: list[str], tables: list[pa.Table], given: int = 3
) -> None:
    """One life up to each kill point, one to the end with the remaining tables as live rows, and the output."""
    for point in points:
        live_until_killed(job, point, Path(job["checkpoint"]).parent / "driver.log")
    query = start(spark, job)
    try:
        for table in tables[given:]:
            before = query.backlogProgress.rows
            append(Path(job["script"]), table, backlog=False)
            wait_for_rows(query, before + table.num_rows)
            # A batch of the watermark alone follows.
            query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    windows: dict[tuple[int, int], list[int]] = defaultdict(list)
    odd: dict[int, list[int]] = defaultdict(list)
    every = pa.concat_tables(tables).to_pylist()
    for row in every:
        windows[row["k"], millis(row["ts"]) // WINDOW_MS * WINDOW_MS].append(row["v"])
        if row["v"] % 2:
            odd[row["k"]].append(row["v"])
    watermark = max(millis(row["ts"]) for row in every) - 2_000 - 1
    expected = Counter(
        (k, window, len(v), sum(v)) for (k, window), v in windows.items() if window + WINDOW_MS - 1 <= watermark
    )
    assert Counter(tuple(r) for r in spark.read.format("delta").load(job["target"]).collect()) == expected
    expected = Counter((k, v, nth) for k, values in odd.items() for nth, v in enumerate(values, 1))
    assert Counter(tuple(r) for r in spark.read.format("delta").load(job["odd"]).collect()) == expected
    assert query.lateRows == 0


PAIRED = {
    "interval_join": """
        SELECT l.k, l.v, l.seq, r.v FROM l LEFT JOIN r
        ON l.k = r.k AND r.ts BETWEEN l.ts - INTERVAL '5' SECOND AND l.ts + INTERVAL '5' SECOND""",
    "co_group": """
        WITH a AS (SELECT k, window(ts, '10 seconds') AS w, count(*) AS n, sum(v) AS v FROM l GROUP BY ALL),
             b AS (SELECT k, window(ts, '10 seconds') AS w, count(*) AS n, sum(v) AS v FROM r GROUP BY ALL)
        SELECT coalesce(a.k, b.k), coalesce(a.n, 0), coalesce(b.n, 0), coalesce(a.v, 0) + coalesce(b.v, 0)
        FROM a FULL JOIN b ON a.k = b.k AND a.w = b.w""",
    "chain": """
        WITH a AS (SELECT k, window(ts, '10 seconds').end - INTERVAL '0.001' SECOND AS ts, sum(v) AS v, min(seq) AS seq
                   FROM l GROUP BY k, window(ts, '10 seconds'))
        SELECT a.k, a.v, a.seq, r.v FROM a LEFT JOIN r
        ON a.k = r.k AND r.ts BETWEEN a.ts - INTERVAL '5' SECOND AND a.ts + INTERVAL '5' SECOND""",
    "join": """
        WITH a AS (SELECT k, sum(v) % 10 AS v FROM l GROUP BY k), b AS (SELECT k, max(seq) AS seq FROM r GROUP BY k)
        SELECT a.v, count(*), max(b.seq) FROM a LEFT JOIN b ON a.k = b.k GROUP BY a.v""",
    "late": """
        WITH a AS (SELECT sum(v) % 10 AS v FROM (SELECT * FROM l UNION ALL SELECT * FROM r)
                   WHERE ts < '2026-01-01 23:00:00Z' GROUP BY k, window(ts, '2 seconds'))
        SELECT v, count(*) FROM a GROUP BY v""",
    "top": TOP,
    "pairs": """
        SELECT l.k * 10 + l.v % 10, l.v, r.v FROM l JOIN r ON l.k = r.k AND l.v % 10 = r.v % 10""",
}
SOME_PAIRED = {
    "interval_join": ["before what is handed over is valid", "in the first stream batch"],
    "co_group": ["before the commit"],
    "chain": ["before the output", "after the first stream output"],
    "join": ["in the first stream batch"],
    "top": ["before what is handed over is kept", "after the first stream output"],
}


def all_paired(shape: str) -> list[str]:
    """All kill points in order. Results of other operators are kept when the stay's end is known."""
    rows, end, *others = PAIRED_POINTS
    if shape == "late":  # windows keep no rows, and are handed over as they are
        return [end, *(point for point in others if "handed over" not in point)]
    return [end, rows, *others] if shape in ("chain", "join", "top") else [rows, end, *others]


@pytest.mark.grid
@pytest.mark.parametrize(
    ("shape", "points"),
    [
        pytest.param("co_group", SOME_PAIRED["interval_join"], id="co_group handed over"),
        *(pytest.param(s, points, id=f"{s} some", marks=pytest.mark.grid) for s, points in SOME_PAIRED.items()),
        *(pytest.param(s, all_paired(s), id=f"{s} all", marks=pytest.mark.grid) for s in PAIRED),
        pytest.param("interval_join", list(INTERRUPTED_POINTS)[:2], id="interval_join cut", marks=pytest.mark.grid),
        pytest.param("pairs", list(INTERRUPTED_POINTS), id="pairs cut", marks=pytest.mark.grid),
    ],
)
def test_two_streams_survive(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, points: list[str]
) -> None:
    chance = random.Random(17)
    job = {name: str(tmp_path / name) for name in ("script", "right", "checkpoint", "target")} | {"shape": shape}
    if points[0] in INTERRUPTED_POINTS:
        job["interrupted"] = "yes"
        monkeypatch.setattr(FiringBudget, "of", lambda self, reports: FEW_TIMERS)
    tables = {"script": [], "right": []}
    for name, given in tables.items():
        given += [timed_rows(chance, 300, n * 300) for n in range(4)]
        # Far ahead, of a key of its own: all else is over.
        last = EPOCH + dt.timedelta(days=1)
        given.append(pa.table([[-1 - (name == "right")], [0], [0], [last]], schema=TIMED))
        for number, table in enumerate(given[:3]):
            append(Path(job[name]), table, backlog=number < 2)
    for point in points:
        live_until_killed(job, point, tmp_path / "driver.log")
    query = start(spark, job)
    try:
        for number in (3, 4):
            before = query.backlogProgress.rows
            for name, given in tables.items():
                append(Path(job[name]), given[number], backlog=False)
            wait_for_rows(query, before + sum(given[number].num_rows for given in tables.values()))
            query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    for view, name in (("l", "script"), ("r", "right")):
        spark.createDataFrame(pa.concat_tables(tables[name]).combine_chunks()).createOrReplaceTempView(view)
    expected = Counter(tuple(r) for r in spark.sql(PAIRED[shape]).collect() if r[0] >= 0)
    assert expected, "the test has rows"
    assert Counter(tuple(r) for r in spark.read.format("delta").load(job["target"]).collect()) == expected
    assert query.lateRows == 0


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(["before the output", "in the first stream batch"], id="some", marks=pytest.mark.grid),
        pytest.param(list(PAIRED_POINTS), id="all", marks=pytest.mark.grid),
    ],
)
def test_rows_that_waited_are_joined_once(spark: SparkSession, tmp_path: Path, points: list[str]) -> None:
    """Which build row a live row is joined with depends on timing. In backlog it does not."""
    chance = random.Random(23)
    job = {name: str(tmp_path / name) for name in ("script", "right", "checkpoint", "target")} | {"shape": "temporal"}
    tables = {name: [timed_rows(chance, 200, n * 200) for n in range(4)] for name in ("script", "right")}
    for name, given in tables.items():
        for number, table in enumerate(given[:3]):
            append(Path(job[name]), table, backlog=number < 2)
    for point in points:
        live_until_killed(job, point, tmp_path / "driver.log")
    query = start(spark, job)
    try:
        before = query.backlogProgress.rows
        for name, given in tables.items():
            append(Path(job[name]), given[3], backlog=False)
        wait_for_rows(query, before + sum(given[3].num_rows for given in tables.values()))
    finally:
        query.stop()
    assert query.exception() is None
    found = [tuple(row) for row in spark.read.format("delta").load(job["target"]).collect()]
    lefts = pa.concat_tables(tables["script"]).to_pylist()
    assert Counter(row[:2] for row in found) == Counter((row["k"], row["seq"]) for row in lefts)
    rights = pa.concat_tables(tables["right"]).to_pylist()
    newest = {row["k"]: (row["v"], row["seq"]) for row in rights if row["seq"] < 400}
    for k, seq, w, at in found:
        if seq < 400:
            assert (w, at) == newest.get(k, (None, None))
        else:
            assert (k, w, at) in {(row["k"], row["v"], row["seq"]) for row in rights}
            assert at >= newest[k][1], "no older one than there was"


def millis(time: dt.datetime) -> int:
    return int(time.timestamp() * 1000)


def wait_for_rows(query: bs.BacklogQuery, rows: int) -> None:
    limit = time.monotonic() + LIMIT_S
    while query.backlogProgress.rows < rows:
        assert query.isActive, query.exception()
        assert time.monotonic() < limit
        time.sleep(0.1)
    query.processAllAvailable()


def compare(spark: SparkSession, job: dict[str, str], tables: list[pa.Table]) -> None:
    """The target is what one batch gives, and no batch was written twice."""
    spark.createDataFrame(pa.concat_tables(tables)).createOrReplaceTempView("given")
    expected = Counter(tuple(r) for r in spark.sql(f"SELECT k, {AGGREGATES} FROM given GROUP BY k").collect())
    assert Counter(tuple(r) for r in spark.read.format("delta").load(job["target"]).collect()) == expected
    batches = transactions(Path(job["target"]))
    assert batches == sorted(set(batches)), "a batch was written twice"


@pytest.mark.grid
def test_killed_workers(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(5)
    job = {name: str(tmp_path / name) for name in ("script", "checkpoint", "target")}
    tables = [rows(chance, 20_000) for _ in range(6)]
    for number, table in enumerate(tables):
        append(Path(job["script"]), table, backlog=number < 2)
    killed = {True: 0, False: 0}
    query = start(spark, job)
    try:
        limit = time.monotonic() + LIMIT_S
        while query.backlogProgress.rows < 6 * 20_000:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            for worker in task_workers()[:1]:
                backlog = query.isProcessingBacklog
                if killed[backlog] < 2:  # a task has four attempts
                    os.kill(worker, signal.SIGKILL)
                    killed[backlog] += 1
            time.sleep(1)
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    assert killed[True], "in backlog"
    assert killed[False], "and after it"
    compare(spark, job, tables)


@pytest.mark.grid
def test_killed_before_a_table_is_restored(spark: SparkSession, tmp_path: Path) -> None:
    """The batch is in the table but not committed. RESTORE removed it, and the sink notices instead of skipping it."""
    from delta.tables import DeltaTable

    job = {name: str(tmp_path / name) for name in ("script", "checkpoint", "target")}
    for backlog in (True, False):
        append(Path(job["script"]), rows(random.Random(3), 200), backlog=backlog)
    live_until_killed(job, "before the commit", tmp_path / "driver.log")
    table = DeltaTable.forPath(spark, job["target"])
    written = table.toDF().count()
    assert written
    table.restoreToVersion(0)
    with pytest.raises(bs.BacklogError, match="RESTORE in its version 2 took rows out"):
        start(spark, job)
    assert table.toDF().count() == 0
