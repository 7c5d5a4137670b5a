"""SQL over streams with bounded tables, processing time, functions of the user and Flink's meanings."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from tests.operators.conftest import Collect, wait
from tests.operators.events import events, multiset, run, source
from tests.operators.scripted import append

from .test_results import known

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def result(
    spark: SparkSession, root: Path, query: str, backlog: int, expected: Counter[Any], **more: Any
) -> Counter[Any]:
    """The rows of a query over ``a``, one stream of three tables of events."""
    given = {"a": [events(7 + i, 30, i * 30) for i in range(3)]}
    known(root, given)

    def check(query: bs.BacklogQuery, sink: Collect) -> None:
        wait(lambda: multiset(r for b in sink.batches.values() for r in b) == expected, query, 60)

    stream = bs.sql(spark, query, a=source(root, "a"), **more)
    sink = run(spark, root, stream, given, backlog, expected, check=check)
    return multiset(r for b in sink.batches.values() for r in b)


def in_batch(spark: SparkSession, query: str) -> Counter[Any]:
    given = [events(7 + i, 30, i * 30) for i in range(3)]
    spark.createDataFrame(pa.concat_tables(given).combine_chunks()).createOrReplaceTempView("a")
    return multiset(spark.sql(query).collect())


@pytest.mark.slow
@pytest.mark.parametrize("backlog", [0, 2])
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_a_bounded_table_is_looked_up(spark: SparkSession, tmp_path: Path, backlog: int) -> None:
    rows = [(0, "zero", 0), (1, "one", 1), (1, "uno", 1), (2, None, 2)]
    names = spark.createDataFrame(rows, "item int, name string, seq long")
    names.createOrReplaceTempView("names")
    query = """
        SELECT B.user, B.seq, n.name, n.seq AS other FROM (SELECT *, PROCTIME() AS at FROM a) AS B
        LEFT JOIN names {as_of} AS n ON mod(B.item, 3) = n.item AND B.v > 0"""
    expected = in_batch(spark, query.format(as_of="").replace("PROCTIME()", "now()"))
    as_of = query.format(as_of="FOR SYSTEM_TIME AS OF B.at")
    assert result(spark, tmp_path, as_of, backlog, expected, names=names) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_a_bounded_table_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    where = tmp_path / "names"
    spark.createDataFrame([(0, "zero")], "item int, name string").write.parquet(str(where))
    names = bs.lookup(lambda session: session.read.parquet(str(where)), refresh="1 second")
    append(tmp_path / "a", events(1, 1, 0).slice(0, 0), backlog=False)
    text = "SELECT seq, name FROM a JOIN names USING (item) WHERE item = 1"
    sink = Collect()
    stream = bs.sql(spark, text, a=source(tmp_path, "a"), names=names)
    writer = stream.write("again").to(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processing_time="0.1 seconds").start(spark)
    try:
        # Not by Spark, which would notice by itself.
        pq.write_table(pa.table({"item": pa.array([1], pa.int32()), "name": ["one"]}), where / "more.parquet")
        number = 0

        def found() -> bool:
            nonlocal number
            number += 1
            append(tmp_path / "a", events(number, 8, number * 8), backlog=False)
            query.processAllAvailable()
            return any(row["name"] == "one" for rows in sink.batches.values() for row in rows)

        wait(found, query, 60)
    finally:
        query.stop()


@pytest.mark.slow
@pytest.mark.parametrize("backlog", [0, 2])
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_windows_by_the_clock(spark: SparkSession, tmp_path: Path, backlog: int) -> None:
    """Each row is in one window, of the time at which it was processed, and the window comes when it is over."""
    given = {"a": [events(7 + i, 30, i * 30) for i in range(3)]}
    known(tmp_path, given)
    query = """
        WITH b AS (SELECT *, PROCTIME() AS p_time FROM a)
        SELECT user, count(*) AS n, window_start AS s, window_end AS e
        FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(p_time), INTERVAL '2' SECOND)) GROUP BY user, window_start, window_end"""
    expected = in_batch(spark, "SELECT user, count(*) FROM a GROUP BY user")

    def counts(sink: Collect) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for rows in sink.batches.values():
            for row in rows:
                found[row["user"]] += row["n"]
        return Counter(found.items())

    def check(query: bs.BacklogQuery, sink: Collect) -> None:
        wait(lambda: counts(sink) == expected, query, 60)

    begin = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=2)
    sink = run(spark, tmp_path, bs.sql(spark, query, a=source(tmp_path, "a")), given, backlog, Counter(), check=check)
    for rows in sink.batches.values():
        for row in rows:
            assert row["e"] - row["s"] == dt.timedelta(seconds=2)
            assert row["s"].astimezone(dt.UTC) > begin


def shout(text: str | None) -> str | None:
    return None if text is None else text.upper() + "!"


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_functions_of_the_user_and_meanings_of_flink(spark: SparkSession, tmp_path: Path) -> None:
    query = r"""
        SELECT shout(user) AS name, item / 2 AS half, price / 2 AS p, 'a\b''c' AS text,
               REGEXP_EXTRACT(user, '(b)o', 1) AS b, CAST(ts AS TIMESTAMP(0)) AS t
        FROM a WHERE LENGTH('\') = 1 AND item / 2 > 0"""
    in_spark = r"""
        SELECT upper(user) || '!', item div 2, price / 2, 'a\\b\'c', if(user = 'bob', 'b', NULL),
               date_trunc('SECOND', ts) FROM a WHERE item div 2 > 0"""
    expected = in_batch(spark, in_spark)
    found = result(spark, tmp_path, query, 1, expected, dialect="flink", functions={"shout": shout})
    assert found == expected


def test_an_average_of_flink_over_a_window(spark: SparkSession, streams: dict[str, bs.BacklogStream]) -> None:
    from backlog_spark.spark.plan.schemas import Schemas

    for call, kind in (
        ("avg(item) OVER (PARTITION BY user ORDER BY ts ROWS 1 PRECEDING)", "int"),
        ("avg(v) OVER () + 1", "bigint"),
    ):
        made = bs.sql(spark, f"SELECT {call} AS mean FROM a", dialect="flink", a=streams["a"])
        assert Schemas(spark).of(made._node)["mean"].dataType.simpleString() == kind


AVERAGES = {
    "avg(v)": "CAST(sum(v) div count(v) AS BIGINT)",
    "avg(item) FILTER (WHERE seq > 9)": "CAST(max(item) AS INT)",
    "avg(DISTINCT item) / 2": "CAST(div(CAST(div(sum(DISTINCT item), count(DISTINCT item)) AS INT), 2) AS INT)",
    "avg(price)": "avg(price)",
    "sum(v) / count(*)": "div(sum(v), count(*))",
}


@pytest.mark.parametrize("call", AVERAGES)
def test_averages_of_flink(spark: SparkSession, streams: dict[str, bs.BacklogStream], call: str) -> None:
    from backlog_spark.spark.plan.schemas import Schemas

    stream = bs.sql(spark, f"SELECT user, {call} AS x FROM a GROUP BY user", dialect="flink", a=streams["a"])
    kind = Schemas(spark).of(stream._node)["x"].dataType
    in_batch(spark, "SELECT 1")
    assert kind == spark.sql(f"SELECT {AVERAGES[call]} AS x FROM a").schema["x"].dataType


def test_refused_tables_and_functions(spark: SparkSession, streams: dict[str, bs.BacklogStream]) -> None:
    names = spark.createDataFrame([(1, "x")], "item int, name string")
    for query, message in {
        "SELECT * FROM names": "column 15: names is a bounded table, and no side of a stream. Join a stream with it",
        "SELECT * FROM a FULL JOIN names ON a.item = names.item": "FULL JOIN with a bounded table. Use LEFT JOIN",
        "SELECT * FROM orders JOIN names ON id = item": "a join of rows that change with a bounded table",
        "SELECT * FROM a JOIN names FOR SYSTEM_TIME AS OF a.ts AS n ON a.item = n.item": "table has no versions",
        "SELECT * FROM a JOIN names AS n ON a.item = n.nothing": "there is no column 'n.nothing'",
        "SELECT * FROM CUMULATE(TABLE b, DESCRIPTOR(p), INTERVAL '1' DAY, INTERVAL '2' DAY)": "no table 'b'",
    }.items():
        with pytest.raises(bs.SqlError, match=r"^SQL, line 1") as caught:
            bs.sql(spark, query, names=names, a=streams["a"], orders=streams["orders"])
        assert message in str(caught.value)
    with pytest.raises(bs.BacklogError, match="the result of f has no annotation"):
        bs.sql(spark, "SELECT f(v) AS x FROM a", functions={"f": lambda v: v}, a=streams["a"])
    with pytest.raises(bs.SettingError, match="dialect"):
        bs.sql(spark, "SELECT v FROM a", dialect="hive", a=streams["a"])  # type: ignore[arg-type]
