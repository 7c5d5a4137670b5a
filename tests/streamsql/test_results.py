"""SQL over streams equals Spark's batch SQL over all rows, for any switch."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from backlog_spark.model.changes import METADATA
from backlog_spark.spark.plan.schemas import Schemas
from tests.operators.conftest import Collect, wait
from tests.operators.events import DELAY, events, flush, multiset, run, source

from .conftest import CHANGES, change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOT_FLUSH = "(user IS NULL OR user <> '~flush')"


def windows(table_function: str, spark_function: str, kind: str = "window") -> tuple[str, str]:
    """One aggregation, with Flink's function and with Spark's."""
    results = "sum(v + 1) AS total, sum(price) / count(*) AS mean, max(seq) FILTER (WHERE v > 0) AS newest"
    having = "HAVING count(*) > 1"
    return (
        f"""SELECT upper(user) AS name, window_start, window_end AS until, {results}
            FROM TABLE({table_function}) WHERE {NOT_FLUSH}
            GROUP BY upper(user), window_start, window_end {having}""",
        f"""SELECT upper(user) AS name, {kind}.start AS window_start, {kind}.end AS until, {results}
            FROM a WHERE {NOT_FLUSH} GROUP BY {spark_function}, upper(user) {having}""",
    )


OVER = f"""
    SELECT user, seq, sum(v) OVER w AS total, coalesce(lag(item + 1, 2) OVER last, -1) * 2 AS before,
           row_number() OVER last AS number, avg(price) OVER w AS mean
    FROM a WHERE {NOT_FLUSH} AND item <> 1
    WINDOW w AS (PARTITION BY user, item % 2 ORDER BY ts, seq {{frame}}), last AS (PARTITION BY user, item % 2
    ORDER BY ts, seq)"""

JOIN = f"""
    SELECT coalesce(l.user, r.user) AS name, l.seq, r.seq AS other, l.v, r.ts - l.ts AS apart
    FROM (SELECT * FROM a WHERE {NOT_FLUSH}) AS l {{how}} JOIN (SELECT * FROM b WHERE {NOT_FLUSH}) AS r
    ON l.user = r.user AND l.item + 1 = r.item AND r.ts > l.ts - INTERVAL '9' SECOND AND r.ts <= l.ts + {{upper}}"""

# Rows come once: text for the stream, and for Spark's batch if it is another one.
APPENDED: dict[str, tuple[str, str]] = {
    "tumble": windows("TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)", "window(ts, '10 seconds')"),
    "hop": windows(
        "HOP(DATA => TABLE a, TIMECOL => DESCRIPTOR(ts), SLIDE => INTERVAL '4' SECOND, SIZE => INTERVAL '10' SECOND)",
        "window(ts, '10 seconds', '4 seconds')",
    ),
    "cumulate": (
        f"""SELECT window_start, window_time, count(*) AS n
            FROM CUMULATE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND, INTERVAL '30' SECOND)
            WHERE {NOT_FLUSH} GROUP BY window_start, window_end, window_time""",
        f"""SELECT from_start AS window_start, until - INTERVAL '0.001' SECOND, count(*)
            FROM (SELECT *, explode(transform(sequence(1, 3), n -> from_start + n * INTERVAL '10' SECOND)) AS until
                  FROM (SELECT *, window(ts, '30 seconds').start AS from_start FROM a WHERE {NOT_FLUSH}))
            WHERE ts < until GROUP BY from_start, until""",
    ),
    "session": (
        f"""SELECT user, window_start, window_end, count(*) AS n
            FROM TABLE(SESSION(TABLE a PARTITION BY user, DESCRIPTOR(ts), INTERVAL '5' SECOND)) WHERE {NOT_FLUSH}
            GROUP BY user, window_start, window_end""",
        f"""SELECT user, session_window.start, session_window.end, count(*) FROM a WHERE {NOT_FLUSH}
            GROUP BY user, session_window(ts, '5 seconds')""",
    ),
    "group windows": (
        f"""SELECT user, SESSION_START(ts, INTERVAL '5' SECOND) AS s, SESSION_END(ts, INTERVAL '5' SECOND) AS e,
            count(*) AS n FROM a WHERE {NOT_FLUSH} GROUP BY user, SESSION(ts, INTERVAL '5' SECOND)""",
        f"""SELECT user, session_window.start, session_window.end, count(*) FROM a WHERE {NOT_FLUSH}
            GROUP BY user, session_window(ts, '5 seconds')""",
    ),
    "Spark's functions": (
        f"""SELECT w.start AS s, e, n FROM (
            SELECT window(ts, '20 seconds', '10 seconds') AS w, window.end AS e, count(*) AS n FROM a WHERE {NOT_FLUSH}
            GROUP BY 1)""",
        "",
    ),
    "over rows": (OVER.format(frame="ROWS BETWEEN 3 PRECEDING AND CURRENT ROW"), ""),
    "over rows unbounded": (OVER.format(frame="ROWS UNBOUNDED PRECEDING"), ""),
    "over range": (
        f"""SELECT user, sum(v) OVER (PARTITION BY user ORDER BY ts
            RANGE BETWEEN INTERVAL '9' SECOND PRECEDING AND CURRENT ROW) AS total FROM a WHERE {NOT_FLUSH}""",
        "",
    ),
    "left interval join": (JOIN.format(how="LEFT", upper="INTERVAL 4 SECONDS"), ""),
    "full interval join": (JOIN.format(how="FULL OUTER", upper="INTERVAL '1' SECOND"), ""),
    "inner interval join": (
        """SELECT x.user, x.seq, y.seq AS other FROM a AS x, b AS y
           WHERE x.user = y.user AND x.ts BETWEEN y.ts - INTERVAL '4' SECOND AND y.ts + INTERVAL '0.5' SECOND
           AND x.item > y.item AND x.v IS NOT NULL AND x.user <> '~flush'""",
        "",
    ),
    "version": (
        f"""SELECT l.user, l.ts, l.seq, r.seq AS newest FROM a AS l LEFT JOIN b FOR SYSTEM_TIME AS OF l.ts AS r
            ON l.user = r.user WHERE {NOT_FLUSH.replace("user", "l.user")}""",
        f"""SELECT l.user, l.ts, first(l.seq), max_by(r.seq, r.ts) AS newest
            FROM a AS l LEFT JOIN b AS r ON l.user = r.user AND r.ts <= l.ts
            WHERE {NOT_FLUSH.replace("user", "l.user")} GROUP BY l.user, l.ts, l.seq""",
    ),
    "distinct": (f"SELECT DISTINCT user, item % 2 AS odd FROM a WHERE {NOT_FLUSH}", ""),
}

# Later rows take the place of earlier ones: what is left at the end, by this many key columns, or by change types.
UPDATED: dict[str, tuple[str, int]] = {
    "groups of a union": (
        """WITH both AS (SELECT user AS name, v, price FROM a UNION ALL SELECT upper(user), seq, price FROM b)
           SELECT name, if(v > 0, 'up', 'down') AS direction, count(*) AS n, min(price) * 2 AS least, avg(v) AS mean
           FROM both WHERE v IS NOT NULL GROUP BY name, 2""",
        2,
    ),
    "all rows": ("SELECT sum(v) AS total, count(*) AS n, 'all' AS what FROM a", 0),
    "having": ("SELECT user, sum(item) AS items FROM a GROUP BY user HAVING count(*) % 2 = 0 AND max(seq) > 3", -1),
    "groups of groups": (
        """SELECT n, count(*) AS users, sum(total) AS total FROM (
             SELECT user, item, count(*) AS n, sum(v) AS total FROM a GROUP BY user, item
           ) WHERE n > 2 GROUP BY n""",
        -1,
    ),
    "distinct results": ("SELECT DISTINCT n FROM (SELECT user, count(*) AS n FROM a GROUP BY user)", -1),
    "last rows": (
        """SELECT user, odd, item, v, price, n FROM (
             SELECT user, item % 2 AS odd, item, ROW_NUMBER() OVER (
               PARTITION BY user, item % 2 ORDER BY v DESC NULLS FIRST, seq) AS n, v, price FROM a) AS t
           WHERE n <= 1""",
        2,
    ),
    "last row of all": (
        "SELECT seq, user FROM (SELECT *, ROW_NUMBER() OVER (ORDER BY user DESC, seq) AS n FROM a) WHERE 1 = n",
        0,
    ),
    "top three": (
        """SELECT user, seq, n, v + 1 AS more FROM (
             SELECT user, seq, v, ROW_NUMBER() OVER (PARTITION BY user ORDER BY v DESC NULLS LAST, seq) AS n
             FROM a) AS t
           WHERE t.n < 4 AND n <= 2 + 2""",
        -1,
    ),
    "over all rows of a key": (
        """SELECT seq, sum(v) OVER (PARTITION BY user) - v AS others, count(*) OVER () AS n,
                  max(price) OVER (PARTITION BY user, item % 2 ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
                  AS most FROM a WHERE item > 0""",
        -1,
    ),
    "rows with their own groups": (
        """WITH big AS (SELECT user AS name, item, v, seq FROM a WHERE v > 0)
           SELECT o.seq, g.n + 1 AS more, name, mean, g.item FROM big AS o
           JOIN (SELECT avg(c.v) AS mean, item, count(*) AS n FROM big AS c GROUP BY item) AS g
           ON g.item = o.item JOIN b ON b.seq = o.seq + g.n WHERE o.v < mean""",
        -1,
    ),
    "greatest of its own groups": (
        """SELECT o.user, o.n, most * 2 AS twice FROM (SELECT user, item, count(*) AS n FROM a GROUP BY user, item) AS o
           JOIN (SELECT max(n) AS most, user AS u FROM (SELECT count(*) AS n, user FROM a GROUP BY user, item)
                 GROUP BY user) AS g ON o.user = u AND g.most <= o.n""",
        -1,
    ),
    "top rows without their rank": (
        """SELECT item, user FROM (SELECT *, RANK() OVER (PARTITION BY item ORDER BY user DESC) AS n FROM a)
           WHERE n <= 2""",
        -1,
    ),
    "second rows of all": (
        """SELECT * FROM (SELECT seq, price, ROW_NUMBER() OVER (ORDER BY price DESC, seq) AS n FROM a)
           WHERE n BETWEEN 2 AND 3""",
        -1,
    ),
    "dense ranks": (
        """SELECT user, n, count(*) AS c FROM (
             SELECT *, DENSE_RANK() OVER (PARTITION BY user ORDER BY item DESC, v IS NULL) AS n FROM a)
           WHERE 2 >= n GROUP BY user, n""",
        2,
    ),
    "greatest of a join": (
        """SELECT seq, other, total + 1 AS more FROM (
             SELECT a.*, b.seq AS other, a.v + b.v AS total,
                    ROW_NUMBER() OVER (PARTITION BY a.seq ORDER BY b.price DESC, b.seq DESC) AS n
             FROM a JOIN b ON a.user = b.user AND a.item = b.item) WHERE n < 2 AND total > 3""",
        -1,
    ),
    "distinct of qualified": (
        """SELECT DISTINCT user FROM a WHERE item > 0
           QUALIFY ROW_NUMBER() OVER (PARTITION BY user ORDER BY v DESC NULLS LAST, seq) <= 2""",
        -1,
    ),
    "named window of the first": (
        """SELECT * FROM (
             SELECT user, seq, row_number() OVER w AS n FROM a WINDOW w AS (PARTITION BY user ORDER BY v, seq))
           WHERE n < 3""",
        -1,
    ),
    "in of groups": (
        "SELECT seq FROM a WHERE upper(user) IN (SELECT upper(user) AS u FROM b WHERE item > 0 GROUP BY u)",
        -1,
    ),
    "nested exists": (
        """SELECT seq FROM a WHERE EXISTS (
             SELECT 1 FROM b WHERE b.item = a.item AND b.v > 0
             AND EXISTS (SELECT 1 FROM a AS c WHERE c.user = b.user))""",
        -1,
    ),
    "grouping ids": (
        """SELECT user, item, grouping_id() AS g, count(*) AS n FROM a GROUP BY CUBE(user, item) HAVING count(*) > 1""",
        -1,
    ),
    "distinct values": (
        """SELECT user, count(DISTINCT item) AS items, count(DISTINCT v) FILTER (WHERE price > 4) AS vs, count(*) AS n,
           max(seq) FILTER (WHERE item = 1) AS newest, count(DISTINCT item, v) AS pairs, sum(DISTINCT item) + 1 AS s,
           avg(DISTINCT v) AS mean, min(DISTINCT v) AS least FROM a GROUP BY user
           HAVING count(DISTINCT item % 3) > 1""",
        -1,
    ),
    "distinct values with sets": (
        """SELECT user, count(DISTINCT item) AS items, size(collect_set(v)) AS vs, max_by(seq, seq) AS newest FROM a
           GROUP BY user""",
        1,
    ),
    "distinct values of all": ("SELECT count(DISTINCT user) AS users, count(DISTINCT v) AS vs FROM a", 0),
    "full join": (
        "SELECT user, a.seq, b.seq AS other FROM a FULL JOIN b USING (user, item) WHERE a.v > 0 OR b.v > 0",
        -1,
    ),
    "left join": (
        """SELECT a.user, a.seq, n FROM a LEFT JOIN (SELECT user, item, price AS n FROM b WHERE item > 1) AS c
           ON a.user = c.user AND c.item = a.item AND n > 0""",
        -1,
    ),
    "groups with groups": (
        """SELECT l.user, l.n, r.n AS other FROM (SELECT user, count(*) AS n FROM a GROUP BY user) AS l
           LEFT JOIN (SELECT user, max(item) AS n FROM b WHERE item < 3 GROUP BY user) AS r ON l.user = r.user""",
        -1,
    ),
    "group with rows": (
        """SELECT t.user, t.n, b.seq FROM (SELECT user, count(*) AS n FROM a GROUP BY user) AS t
           JOIN b ON t.user = b.user WHERE b.item = 1""",
        -1,
    ),
}


def of_spark(spark: SparkSession, query: str, tables: dict[str, list[pa.Table]]) -> Counter[Any]:
    for name, parts in tables.items():
        spark.createDataFrame(pa.concat_tables(parts).combine_chunks()).createOrReplaceTempView(name)
    return multiset(spark.sql(query).collect())


def left_over(sink: Collect) -> Counter[Any]:
    """The rows of a change stream that have not been retracted."""
    found: Counter[Any] = Counter()
    for _, batch in sorted(sink.batches.items()):
        for row in batch:
            fields = row.asDict()
            kind = fields.pop("_change_type")
            for name in ("_commit_timestamp", "_commit_seq"):
                fields.pop(name, None)
            found[tuple(fields.values())] += 1 if kind in ("insert", "update_postimage") else -1
        assert all(count >= 0 for count in found.values())
    return +found


def settled(
    state: Callable[[Collect], Counter[Any]], expected: Counter[Any]
) -> Callable[[bs.BacklogQuery, Collect], None]:
    """Tells `run` when all replaced results have come: the number of rows does not show it."""

    def check(query: bs.BacklogQuery, sink: Collect) -> None:
        wait(lambda: state(sink) == expected, query)
        query.processAllAvailable()

    return check


def known(root: Path, tables: dict[str, list[pa.Table]]) -> None:
    """Make the sources' columns known before they have rows."""
    for name, parts in tables.items():
        (root / name).mkdir()
        pq.write_table(parts[0].slice(0, 0), root / name / "0000.parquet")


def inputs(query: str, seed: int, rows: int = 40) -> dict[str, list[pa.Table]]:
    names = [name for name in "ab" if re.search(rf"\b(FROM|JOIN|TABLE) {name}\b|, {name} AS", query)]
    made = {n: [events(seed * 100 + i * 7 + ord(n), rows, i * rows) for i in range(3)] for n in names}
    return {name: [*tables, flush(tables)] for name, tables in made.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backlog"),
    [("version", 2)]
    + [pytest.param(name, backlog, marks=pytest.mark.grid) for name in APPENDED for backlog in range(4)],
)
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_rows_that_come_once(spark: SparkSession, tmp_path: Path, name: str, backlog: int) -> None:
    query, in_spark = APPENDED[name]
    given = inputs(query, backlog)
    expected = of_spark(spark, in_spark or query, given)
    assert expected.total() > 4
    known(tmp_path, given)
    streams = {each: source(tmp_path, each) for each in given}
    sink = run(spark, tmp_path, bs.sql(spark, query, **streams), given, backlog, expected)
    assert multiset(r for b in sink.batches.values() for r in b) == expected


@pytest.mark.parametrize(
    ("name", "backlog"),
    [pytest.param(name, 2, marks=pytest.mark.slow) for name in ("greatest of a join", "distinct values")]
    + [pytest.param(name, backlog, marks=pytest.mark.grid) for name in UPDATED for backlog in range(4)],
)
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_rows_that_are_replaced(spark: SparkSession, tmp_path: Path, name: str, backlog: int) -> None:
    query, keys = UPDATED[name]
    given = inputs(query, backlog)
    expected = of_spark(spark, query, given)
    assert expected
    known(tmp_path, given)
    streams = {each: source(tmp_path, each) for each in given}
    state = left_over if keys < 0 else lambda sink: multiset((*k, *v) for k, v in sink.newest(keys).items())
    until = settled(state, expected)
    sink = run(spark, tmp_path, bs.sql(spark, query, **streams), given, backlog, Counter(), check=until)
    assert state(sink) == expected


def history(seed: int, batches: int) -> tuple[list[pa.Table], list[tuple[Any, ...]]]:
    """Random changes of a table in the form of ``mysql_cdc``, and the final table."""
    chance = random.Random(seed)
    table: dict[int, tuple[str, int | None]] = {}
    parts: list[Sequence[tuple[Any, ...]]] = []
    seq = 0
    for _ in range(batches):
        rows: list[tuple[Any, ...]] = []
        for _ in range(40):
            seq += 1
            key = chance.randrange(25)
            new = chance.choice(["ann", "bob", "cy"]), chance.choice([None, chance.randrange(-9, 99)])
            if key not in table:
                rows.append(change("insert", seq, key, *new))
                table[key] = new
            elif chance.random() < 0.3:
                rows.append(change("delete", seq, key, *table.pop(key)))
            else:
                rows.append(change("update_preimage", seq, key, *table[key]))
                rows.append(change("update_postimage", seq, key, *new))
                table[key] = new
        parts.append(rows)
    made = [pa.table(list(zip(*rows, strict=True)), schema=CHANGES) for rows in parts]
    return made, [(key, *value) for key, value in table.items()]


# Each kind of statement over a table that changes: what it gives for the table that is left.
CHANGED: dict[str, str] = {
    "columns": "SELECT id, upper(user) AS name, amount + 1 AS more FROM orders WHERE amount > 3",
    "groups": """
        SELECT upper(user) AS name, count(*) AS n, sum(amount) AS total, max(amount) AS most
        FROM (SELECT id, user, amount FROM orders WHERE amount >= 0) AS paid GROUP BY upper(user)""",
    "all rows": "SELECT count(*) AS n, sum(amount) FILTER (WHERE amount > 0) / 2 AS half FROM orders",
    "last rows": """
        SELECT user, count(*) AS n, max(id) AS most FROM (
          SELECT *, ROW_NUMBER() OVER (PARTITION BY id % 6 ORDER BY amount NULLS LAST, id DESC) AS n FROM orders
        ) WHERE n = 1 GROUP BY user""",
    "top three": """
        SELECT id, amount, n FROM (
          SELECT *, ROW_NUMBER() OVER (PARTITION BY user ORDER BY amount DESC NULLS LAST, id DESC) AS n FROM orders
        ) WHERE n <= 3""",
    "ranks of groups": """
        SELECT part, n FROM (
          SELECT part, n, RANK() OVER (ORDER BY n DESC) AS place FROM (
            SELECT id % 6 AS part, count(*) AS n FROM orders GROUP BY 1)) WHERE place <= 2""",
    "over": """
        SELECT id, avg(amount) OVER w AS mean, lag(id) OVER (PARTITION BY user ORDER BY id) AS before,
               dense_rank() OVER (ORDER BY user DESC) AS place,
               count(*) OVER (PARTITION BY id % 2 ORDER BY amount DESC NULLS FIRST) AS n
        FROM orders WINDOW w AS (PARTITION BY user ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)""",
    "over all rows of a key": """
        SELECT id, sum(amount) OVER (PARTITION BY user) AS total, lag(id) OVER (ORDER BY id) AS before,
               count(*) OVER () AS n FROM orders""",
    "least of its own groups": """
        SELECT o.id, g.least FROM orders AS o JOIN (SELECT user, min(amount) AS least FROM orders GROUP BY user) AS g
        ON o.user = g.user WHERE g.least = o.amount""",
    "over of last rows": """
        SELECT user, part, sum(amount) OVER (PARTITION BY user ORDER BY part ROWS UNBOUNDED PRECEDING) AS total FROM (
          SELECT *, id % 6 AS part, ROW_NUMBER() OVER (PARTITION BY id % 6 ORDER BY id DESC) AS n FROM orders)
        WHERE n = 1""",
    "distinct values": """
        SELECT id % 3 AS part, count(DISTINCT user) AS users, max(amount) AS most,
               count(DISTINCT amount) FILTER (WHERE amount > 5) AS amounts,
               avg(DISTINCT amount) AS mean FROM orders GROUP BY id % 3""",
    "distinct values of distinct values": """
        SELECT users, count(DISTINCT part) AS parts, count(*) AS n FROM (
          SELECT id % 7 AS part, count(DISTINCT user) AS users FROM orders GROUP BY 1) GROUP BY users""",
    "having": "SELECT user, min(amount) AS least FROM orders GROUP BY user HAVING count(*) % 2 = 0",
    "having without groups": "SELECT sum(amount) AS total FROM orders HAVING count(*) > 3",
    "condition around groups": """
        SELECT * FROM (SELECT user, id % 3 AS part, count(*) AS n FROM orders GROUP BY user, part) WHERE n > 2""",
    "distinct": "SELECT DISTINCT user, amount % 3 AS rest FROM orders",
    "distinct groups of having": """
        WITH lots AS (SELECT user, id % 4 AS part, count(*) AS n FROM orders GROUP BY 1, 2 HAVING max(amount) > 9)
        SELECT DISTINCT n, n > 2 AS many FROM lots WHERE n > 1""",
    "groups of groups": """
        SELECT n, count(*) AS parts FROM (SELECT user, id % 5 AS part, count(*) AS n FROM orders GROUP BY user, part)
        GROUP BY n HAVING count(*) > 1""",
    "union": """
        SELECT name, count(*) AS n FROM (
          SELECT user AS name, amount FROM orders UNION ALL SELECT upper(user), amount FROM orders WHERE amount > 0)
        GROUP BY name HAVING sum(amount) > 9""",
    "join": """
        SELECT l.id, r.id AS other FROM orders AS l JOIN orders AS r ON l.user = r.user AND l.id = r.id + 1
        WHERE l.amount > 0""",
    "join with groups": """
        SELECT o.id, t.n FROM orders AS o LEFT JOIN (
          SELECT user, count(*) AS n FROM orders GROUP BY user HAVING count(*) % 2 = 0) AS t ON o.user = t.user""",
    "distinct of a join": """
        SELECT DISTINCT l.user, r.amount > 5 AS large FROM orders AS l JOIN orders AS r ON l.id = r.id""",
}


@pytest.mark.parametrize(
    ("name", "backlog"),
    [pytest.param(name, 1, marks=pytest.mark.slow) for name in ("last rows", "distinct values")]
    + [pytest.param(name, backlog, marks=pytest.mark.grid) for name in CHANGED for backlog in range(4)],
)
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_statements_over_a_table_that_changes(spark: SparkSession, tmp_path: Path, name: str, backlog: int) -> None:
    query = CHANGED[name]
    parts, table = history(backlog, 3)
    spark.createDataFrame(table, "id long, user string, amount long").createOrReplaceTempView("orders")
    expected = multiset(spark.sql(query).collect())
    known(tmp_path, {"orders": parts})
    orders = bs.source("scripted", name="orders", path=tmp_path / "orders").with_watermark("at", DELAY)
    until = settled(left_over, expected)
    stream = bs.sql(spark, query, orders=orders)
    sink = run(spark, tmp_path, stream, {"orders": parts}, backlog, Counter(), check=until)
    assert left_over(sink) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CHANGED if name != "over"])  # rows that do not change have a time
def test_statements_are_taken_over_both_kinds_of_rows(
    spark: SparkSession, streams: dict[str, bs.BacklogStream], name: str
) -> None:
    """In changing rows the change type is the last column, present once and marked."""
    told = Schemas(spark).of(bs.sql(spark, CHANGED[name], orders=streams["orders"])._node)
    plain = streams["orders"].transform(lambda frame: frame.drop("_change_type", "_commit_timestamp", "_commit_seq"))
    added = Schemas(spark).of(bs.sql(spark, CHANGED[name], orders=plain)._node)
    own = [column for column in told.names if column not in METADATA]
    assert own == [column for column in added.names if column not in METADATA]
    assert told.names.count("_change_type") == 1
