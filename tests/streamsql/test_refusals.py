"""Refusals of SQL over streams: the construct, its position, and what to do."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TUMBLE = "TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '1' MINUTE)"
BY_WINDOW = "GROUP BY window_start, window_end"
OVER = "OVER (PARTITION BY user ORDER BY ts"

# Statement, where it is refused, and what is said.
REFUSED = [
    # Clauses
    ("SELECT user FROM a ORDER BY v", "line 1, column 29: ORDER BY is not possible"),
    ("SELECT user\nFROM a\nLIMIT 5", "line 3, column 7: LIMIT is not possible"),
    ("SELECT user FROM a OFFSET 3", "line 1, column 27: OFFSET is not possible"),
    ("SELECT user FROM a SORT BY v", "SORT BY is not possible"),
    ("SELECT user FROM a CLUSTER BY v", "CLUSTER BY is not possible"),
    ("SELECT user FROM a DISTRIBUTE BY v", "DISTRIBUTE BY has no effect"),
    ("SELECT * FROM a PIVOT (sum(v) FOR user IN ('x'))", "column 24: PIVOT and UNPIVOT are not supported"),
    ("SELECT user FROM a TABLESAMPLE (10 PERCENT)", "TABLESAMPLE is not supported"),
    ("SELECT /*+ BROADCAST(a) */ user FROM a", "column 28: a hint is not supported"),
    ("SELECT /*+ STATE_TTL('a' = '1 d') */ user FROM a", "STATE_TTL without a join"),
    ("SELECT /*+ STATE_TTL('c' = '1 d') */ a.v FROM a JOIN b ON a.v = b.v", "STATE_TTL of 'c'; the tables are a, b"),
    ("SELECT /*+ STATE_TTL('a') */ a.v FROM a JOIN b ON a.v = b.v", "STATE_TTL of "),
    ("SELECT /*+ STATE_TTL('a' = '1 x') */ a.v FROM a JOIN b ON a.v = b.v", "STATE_TTL of 'a' = '1 x'"),
    (
        "SELECT /*+ STATE_TTL('a' = '1 d') */ a.v FROM a JOIN b ON a.v = b.v AND a.ts = b.ts",
        "STATE_TTL does not apply to this join",
    ),
    ("SELECT user, sum(v) AS s FROM a GROUP BY ALL", "GROUP BY ALL is not supported. Name the columns."),
    ("SELECT user, SUMM(v) AS s FROM a GROUP BY user", "neither in GROUP BY nor in an aggregate. Did you mean sum?"),
    ("SELECT uper(user) AS u FROM a", "Cannot resolve routine `UPER`"),
    ("SELECT uper(user) AS u FROM a", "Did you mean upper?"),
    ("SELECT user, sum(v) AS s FROM a GROUP BY 3", "column 42: GROUP BY 3: there is no such column. There are 2."),
    ("SELECT * EXCEPT (v) FROM a", "column 18: * EXCEPT is not supported. Name the columns."),
    ("SELECT user FROM a WINDOW w AS (PARTITION BY user ORDER BY ts)", "WINDOW clause without OVER"),
    ("WITH RECURSIVE c AS (SELECT user FROM a) SELECT user FROM c", "WITH RECURSIVE is not supported"),
    ("SELECT x FROM (SELECT user FROM a) AS t(x)", "renaming columns after a table's alias"),
    ("SELECT DISTINCT ON (user) user FROM a", "is not supported"),
    # Statements
    ("INSERT INTO a SELECT user FROM b", "line 1, column 1: INSERT is no query. Write a SELECT, and choose its target"),
    ("UPDATE a SET v = 1", "column 1: UPDATE is no query"),
    ("MERGE INTO a USING b ON a.v = b.v WHEN MATCHED THEN DELETE", "column 1: MERGE is no query"),
    ("CREATE TABLE x AS SELECT user FROM a", "column 1: CREATE is no query"),
    ("SELECT user FROM a; SELECT user FROM b", "column 21: there are several statements. Call bs.sql for each."),
    ("", "line 1, column 1: there is no statement"),
    ("SELECT user FROM\n  a WHERE (v = 1", "line 2, column 16: malformed: Expecting )"),
    ("SELECT user,, v FROM a", "column 12: malformed: nothing follows the comma"),
    ("SELECT user FROM a UNION ALL SELECT user, v FROM b", "column 37: UNION ALL of 1 columns and 2"),
    # Names
    ("SELECT user FROM nowhere", "column 18: there is no table 'nowhere'. Given are: a, b, plain, orders."),
    ("SELECT user FROM db.a", "the name of a table must have one part"),
    ("SELECT user FROM range(10)", "the table function range is not supported"),
    ("SELECT x FROM (VALUES (1)) AS t(x)", "VALUES in FROM is not supported"),
    ("SELECT 1 AS one", "a SELECT without FROM"),
    ("SELECT nothing FROM a", "column 8: there is no column 'nothing'. There are: user, item, v, price, seq, ts."),
    ("SELECT x.user FROM a", "there is no column 'x.user'. There is no table 'x' either; there are: a."),
    ("SELECT x.* FROM a", "there is no table 'x' in this FROM. There are: a."),
    ("SELECT v FROM a JOIN b ON a.user = b.user", "column 8: the column 'v' is ambiguous. Write one of a.v, b.v."),
    (
        "SELECT a.v FROM a JOIN orders ON a.v = orders.id JOIN b ON b.v = a.v WHERE item = 3",
        "column 76: the column 'item' is ambiguous. Write one of a.item, b.item.",
    ),
    ("SELECT v FROM (SELECT a.v, b.v FROM a JOIN b ON a.user = b.user)", "column 8: the column 'v' is ambiguous. Give"),
    ("SELECT t.user FROM (SELECT user, v AS USER FROM a) AS t", "column 8: the column 't.user' is ambiguous"),
    ("SELECT a.user FROM a JOIN a ON a.v = a.seq", "two tables are named 'a'. Give one another name with AS."),
    # Expressions
    ("SELECT (SELECT max(v) FROM b) AS m FROM a", "a subquery is not possible in an expression"),
    ("SELECT user FROM a WHERE v = :limit", "column 26: the parameter :limit has no value"),
    ("SELECT user,\n  no_such(v) AS x FROM a", "line 2, column 3: the column 'x': Spark refuses it: [UNRES"),
    ("SELECT user FROM a WHERE user + ts > 1", "the condition: Spark refuses it"),
    ("SELECT histogram_numeric(v, 3) AS h FROM a", "column 8: the column 'h': an aggregate or window"),
    ("SELECT user FROM a WHERE sum(v) > 3", "column 26: the condition: Spark refuses it: [INVALID_WHERE_CONDITION]"),
    # GROUP BY
    ("SELECT user, v FROM a GROUP BY user", "column 14: the column 'v' is neither in GROUP BY nor in an aggregate"),
    (f"SELECT count(DISTINCT v) AS n FROM {TUMBLE} {BY_WINDOW}", "column 8: DISTINCT in an aggregate of a window. Use"),
    ("SELECT user FROM (SELECT DISTINCT a.user, b.user FROM a JOIN b ON a.v = b.v)", "the column 'user' is ambiguous"),
    (
        "SELECT v FROM (SELECT v, item AS v FROM a UNION ALL SELECT v, item FROM b)",
        "column 8: the column 'v' is ambiguous",
    ),
    ("SELECT item AS c, count(*) AS c FROM a GROUP BY item HAVING c > 1", "there is no column 'c'"),
    (
        "SELECT x FROM (SELECT v, ROW_NUMBER() OVER (ORDER BY v) AS n FROM a) AS t(x, n) WHERE n = 1",
        "renaming columns after a table's alias",
    ),
    (
        "SELECT t.v FROM (SELECT v, ROW_NUMBER() OVER (ORDER BY v) AS n FROM a) AS t JOIN b ON t.v = b.v WHERE b.v = 1",
        "OVER must be ordered by the event time",
    ),
    ("SELECT stddev(DISTINCT v) AS n FROM a", "stddev(DISTINCT …) is not supported. Use count, sum or avg"),
    ("SELECT sum(DISTINCT v, item) AS n FROM a", "sum(DISTINCT …) of 2 values. Only count(DISTINCT a, b) takes"),
    ("SELECT percentile_approx(v, 0.5) AS p FROM a", "is not supported, or cannot be merged"),
    ("SELECT sum(max(v)) AS s FROM a", "an aggregate within an aggregate"),
    ("SELECT sum(v) AS s FROM a GROUP BY sum(v)", "is an aggregate. Group by columns."),
    # Windows
    (f"SELECT * FROM TABLE({TUMBLE})", "column 21: the rows of a window function must be grouped"),
    (f"SELECT user, count(*) AS n FROM TABLE({TUMBLE}) GROUP BY user", "must be grouped by window_start"),
    (f"SELECT count(*) AS n FROM TABLE({TUMBLE}) WHERE window_start > now() {BY_WINDOW}", "WHERE on a column"),
    (f"SELECT count(*) AS n FROM TABLE({TUMBLE.replace('TABLE a', 'TABLE plain')}) {BY_WINDOW}", "stream has none."),
    (f"SELECT count(*) AS n FROM TABLE({TUMBLE.replace('(ts)', '(v)')}) {BY_WINDOW}", "v is not the stream's"),
    (f"SELECT count(*) AS n FROM TABLE({TUMBLE.replace('MINUTE', 'MONTH')}) {BY_WINDOW}", "months and years"),
    (f"SELECT count(*) AS n FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts))) {BY_WINDOW}", "TUMBLE: SIZE is missing"),
    (f"SELECT count(*) AS n FROM TABLE({TUMBLE.replace('DESCRIPTOR(ts)', 'ts')}) {BY_WINDOW}", "ts is not a DESC"),
    (
        f"SELECT count(*) AS n FROM CUMULATE(TABLE a, DESCRIPTOR(ts), INTERVAL '2' DAY, INTERVAL '3' DAY) {BY_WINDOW}",
        "does not divide the size",
    ),
    (
        f"""SELECT user, count(*) AS n FROM TABLE(SESSION(TABLE a PARTITION BY item, DESCRIPTOR(ts), INTERVAL '1' DAY))
            {BY_WINDOW}, user""",
        "line 2, column 22: SESSION has PARTITION BY `item`, GROUP BY other keys",
    ),
    ("SELECT count(*) AS n FROM a GROUP BY window(v, '1 day')", "column 45: window: v is not the stream's event time"),
    ("SELECT count(*) AS n FROM a GROUP BY window(ts, '1 day'), window(ts, '2 days')", "GROUP BY has two windows"),
    ("SELECT count(*) AS n FROM a GROUP BY window(ts, '1 day', '2 days')", "column 38: window slide"),
    # The column that tells of changes
    (
        "SELECT _change_type, count(*) AS n FROM orders GROUP BY _change_type HAVING count(*) > 1",
        "column 8: the rows are changes, and _change_type says which rows are retracted, so no other "
        "column can be named '_change_type'. Give it another name: _change_type AS change.",
    ),
    (
        "SELECT * FROM (SELECT _change_type, count(*) AS n FROM orders GROUP BY _change_type) WHERE n > 1",
        "no other column can be named '_change_type'",
    ),
    ("SELECT user AS _change_type FROM orders", "column 8: the rows are changes"),
    ("SELECT seq FROM a LEFT SEMI JOIN b ON item = b.item", "the column 'item' is ambiguous. Write it with the name"),
    (
        "SELECT seq FROM a WHERE CAST(v AS DOUBLE) IN (SELECT seq FROM b)",
        "IN, EXISTS or SEMI JOIN of double with bigint: different values are equal as double. Select CAST(… AS DOUBLE)",
    ),
    # OVER
    (f"SELECT ntile(4) {OVER}) AS n FROM a", "column 8: over: NTILE"),
    (f"SELECT sum(v) {OVER} DESC) AS s FROM a", "ORDER BY … DESC would need rows that have not come"),
    (f"SELECT row_number() {OVER}, v NULLS LAST) AS n FROM a", "column 58: ORDER BY … NULLS LAST is not possible"),
    (f"SELECT count(* EXCEPT (v)) {OVER}) AS n FROM a", "the argument of count must be one column"),
    ("SELECT first_value(v) OVER (PARTITION BY user) AS s FROM a", "FIRST_VALUE(v) OVER without ORDER BY. Write"),
    ("SELECT rank() OVER (PARTITION BY user) AS s FROM a", "RANK() OVER without ORDER BY. Write ORDER BY ts."),
    ("SELECT sum(v) OVER (ROWS CURRENT ROW) AS s FROM a", "a frame of OVER without ORDER BY. Write ORDER BY, or leave"),
    ("SELECT sum(v) OVER (ORDER BY v) AS s FROM a", "OVER must be ordered by the event time, not by v. Write"),
    ("SELECT sum(v) OVER (ORDER BY ts) AS s FROM plain", "OVER needs the event time, and the stream has none"),
    (f"SELECT sum(v) {OVER} ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS s FROM a", "a frame must end with"),
    (f"SELECT sum(v) {OVER}, seq) AS s FROM a", "a RANGE frame must be ordered by the event time alone"),
    (f"SELECT lag(v) {OVER} ROWS 2 PRECEDING) AS s FROM a", "always sees all rows before, so it takes no frame"),
    (f"SELECT sum(v) {OVER}) AS s, count(*) AS n FROM a", "OVER together with GROUP BY or an aggregate"),
    ("SELECT sum(v) OVER w AS s FROM a", "column 20: there is no window 'w'"),
    (f"SELECT user FROM a WHERE sum(v) {OVER}) > 3", "OVER in WHERE. Put the OVER into a subquery."),
    # Joins
    ("SELECT user FROM a NATURAL JOIN b", "a NATURAL or ASOF join is not supported"),
    ("SELECT a.user FROM a JOIN b ON a.user = b.v", "a join of string with bigint. Cast one side"),
    (
        "SELECT a.v FROM a JOIN b FOR SYSTEM_TIME AS OF a.seq AS r ON a.v = r.v",
        "column 48: FOR SYSTEM_TIME AS OF a.seq: this is neither the rows' event time nor the processing time. Write",
    ),
    (
        "SELECT a.v FROM a JOIN b FOR SYSTEM_TIME AS OF a.v AS r ON a.v = r.v",
        "column 48: FOR SYSTEM_TIME AS OF a.v: this is neither the rows' event time nor the processing time. Write",
    ),
    (
        "SELECT a.ts FROM a JOIN b FOR SYSTEM_TIME AS OF a.ts - INTERVAL '1' HOUR AS r ON a.v = r.v",
        "AS OF a.ts - INTERVAL '1' HOUR: this is neither the rows' event time nor",
    ),
    (
        "SELECT a.ts FROM a JOIN b FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-01 00:00:00' AS r ON a.v = r.v",
        "this is neither the rows' event time nor the processing time",
    ),
    (
        "SELECT p.ts FROM plain AS p JOIN b FOR SYSTEM_TIME AS OF p.ts AS r ON p.v = r.v",
        "FOR SYSTEM_TIME AS OF p.ts: this is neither the rows' event time nor the processing time",
    ),
    (
        "SELECT a.ts FROM a JOIN plain FOR SYSTEM_TIME AS OF a.ts AS r ON a.v = r.v",
        "temporal_join: the build side has no event time, which as_of needs to find versions",
    ),
    (
        "SELECT o.at FROM orders AS o JOIN b FOR SYSTEM_TIME AS OF o.at AS r ON o.user = r.user",
        "and temporal_join cannot retract rows",
    ),
    (
        "SELECT a.ts FROM a LEFT JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.v = b.v AND b.item > 3",
        "column 76: this condition of a LEFT join cannot be applied before the join. Put it into WHERE.",
    ),
    ("SELECT a.v FROM a FULL JOIN b FOR SYSTEM_TIME AS OF now() ON a.v = b.v", "a FULL temporal join is not possible"),
    ("SELECT v FROM a FOR SYSTEM_TIME AS OF now()", "FOR SYSTEM_TIME AS OF is supported only after JOIN"),
    (
        "SELECT a.user FROM a LEFT JOIN b ON a.v = b.v AND a.item > b.item",
        "column 51: this condition of a LEFT join cannot be applied before the join. Put it into WHERE, or on the",
    ),
    ("SELECT a.user FROM a FULL JOIN b ON a.v = b.v AND b.item > a.item", "this condition of a FULL join"),
    ("SELECT a.user FROM a RIGHT SEMI JOIN b ON a.v = b.v", "RIGHT SEMI JOIN is not supported"),
    ("SELECT a.v FROM a JOIN b FOR SYSTEM_TIME AS OF now() ON a.v > b.v", "a temporal join without an equality"),
    # Subqueries
    ("SELECT v FROM a WHERE v > 1 OR v IN (SELECT v FROM b)", "IN (SELECT …) is not possible in an expression"),
    ("SELECT v FROM a WHERE EXISTS (SELECT v FROM b WHERE b.v = a.v) OR v > 1", "EXISTS (SELECT …) is not possible"),
    ("SELECT v FROM a WHERE EXISTS (SELECT v FROM b WHERE b.v > a.v)", "on columns of both queries that is not an eq"),
    ("SELECT v FROM a WHERE v IN (SELECT * FROM b)", "column 23: IN with the columns of a star."),
    ("SELECT v FROM a WHERE (v, item) NOT IN (SELECT v, item FROM b)", "NOT IN of several values"),
    (
        "SELECT v FROM a WHERE EXISTS (SELECT max(v) FROM b WHERE b.user = a.user)",
        "a subquery with GROUP BY, aggregates or OVER that names columns of the query around it",
    ),
    ("SELECT v FROM a WHERE v IN ((SELECT v FROM b) LIMIT 1)", "LIMIT is not possible"),
    (
        "SELECT v FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.v = a.v QUALIFY row_number() OVER (ORDER BY b.ts) = 1)",
        "OVER that names columns of the query around it",
    ),
    ("SELECT user, count(*) AS n, PROCTIME() AS p FROM a GROUP BY user", "PROCTIME() of rows that change"),
    # Functions in FROM
    ("SELECT x FROM a LATERAL VIEW nothing(v) t AS x", "the function nothing in FROM is not supported. There are"),
    ("SELECT x FROM a, UNNEST(array(1), array(2)) AS t(x, y)", "UNNEST of several values"),
    ("SELECT x FROM a, UNNEST(array(1)) AS t(x, y)", "explode gives 1 columns, not 2. Name each after the alias"),
    ("SELECT x FROM a LEFT JOIN UNNEST(array(1)) AS t(x) ON x = v", "a condition or side of a join with a function"),
    ("SELECT x FROM a, UNNEST(v) AS t(x)", "Spark refuses it"),
    # Orders
    ("SELECT user, v FROM a ORDER BY v", "column 32: ORDER BY is not possible"),
    ("SELECT user, ts FROM a ORDER BY ts DESC", "ORDER BY is not possible"),
    ("SELECT user, ts FROM a ORDER BY ts LIMIT 3", "LIMIT is not possible"),
    ("SELECT user FROM a MATCH_RECOGNIZE (PARTITION BY user)", "column 20: MATCH_RECOGNIZE is not supported."),
    ("SELECT user, n FROM (SELECT user, rank() OVER (PARTITION BY user ORDER BY v) AS n FROM a)", "ordered by the ev"),
    ("SELECT rank() OVER (PARTITION BY id) AS n FROM orders", "RANK() OVER without ORDER BY"),
    (
        """SELECT sum(amount) OVER (ORDER BY at RANGE BETWEEN INTERVAL '1' DAY PRECEDING AND CURRENT ROW) AS n
           FROM orders""",
        "a RANGE frame of a length of time over rows that change",
    ),
    # Grouping sets
    ("SELECT count(*) AS n FROM a GROUP BY CUBE(user, item, v, seq, price, ts, 1 + v)", "GROUP BY has 128 grouping"),
    (
        f"SELECT window_start, user, count(*) AS n FROM {TUMBLE} GROUP BY ROLLUP(window_start, window_end, user)",
        "a grouping set without the window",
    ),
    ("SELECT grouping(item) AS g FROM a GROUP BY ROLLUP(user)", "`item` is not in GROUP BY"),
    (
        "SELECT a.v FROM a JOIN b ON a.v = b.v AND a.ts BETWEEN b.ts AND b.ts - INTERVAL '1' HOUR",
        "interval = '[3600000 ms, 0 ms]': is empty",
    ),
    # Streams that change
    ("SELECT first(id) AS n FROM orders GROUP BY window(at, '1 day')", "and first(id) cannot do so in a window"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "message"), REFUSED)
def test_refused(spark: SparkSession, streams: dict[str, bs.BacklogStream], query: str, message: str) -> None:
    with pytest.raises(bs.SqlError) as caught:
        bs.sql(spark, query, **streams)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"SQL, line {caught.value.line}, column {caught.value.column}: ")
    assert caught.value.hint or "Spark refuses it" in caught.value.problem


def test_neither_stream_nor_text(spark: SparkSession, streams: dict[str, bs.BacklogStream]) -> None:
    with pytest.raises(bs.BacklogError, match=r"sql was given int as 'a'\. Wrap a streaming DataFrame"):
        bs.sql(spark, "SELECT user FROM a", a=3)  # type: ignore[arg-type]
    with pytest.raises(bs.BacklogError, match=r"sql was given NoneType\. Pass the text"):
        bs.sql(spark, None, **streams)  # type: ignore[arg-type]


def test_an_error_goes_through_pickle() -> None:
    error = bs.SqlError("no.", "Do that.", 2, 7)
    found = pickle.loads(pickle.dumps(error))
    assert (str(found), found.line, found.column, found.hint) == (str(error), 2, 7, "Do that.")
