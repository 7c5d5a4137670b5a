"""SQL becomes the operators that one would chain by hand: their order, their keys, their columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.model.changes import CHANGE_TYPE
from backlog_spark.model.nodes import SourceNode
from backlog_spark.model.watermarks import EVENT_TIME
from backlog_spark.operators.joins.regular import JoinFold
from backlog_spark.spark.plan.schemas import Schemas
from backlog_spark.streamsql.times import Bounds, Difference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A = ["watermark ts, delay 5 s", "source a: scripted"]
B = ["watermark ts, delay 5 s", "source b: scripted"]
RIGHT_SIDE = "right: map `user` AS `r__user`, `v` AS `r__v`, `ts` AS `r__ts`"

# Statement, its operators from the output on, and the columns that come out.
TRANSLATED = {
    "nothing to do": ("SELECT * FROM a", A, "user item v price seq ts"),
    "expressions": (
        "SELECT x.*, v + 1 AS w FROM a AS x WHERE v > 1 AND (item = 2 OR user IS NULL)",
        [
            "map `user`, `item`, `v`, `price`, `seq`, `ts`, `v` + 1 AS `w`",
            "filter `item` = 2 OR `user` IS NULL",
            "filter `v` > 1",
            *A,
        ],
        "user item v price seq ts w",
    ),
    "group": (
        "SELECT user, sum(v) AS total FROM a GROUP BY user",
        ["aggregate user_aggregate by user", *A],
        "user total",
    ),
    "expressions around aggregates": (
        "SELECT upper(user) AS u, sum(v) / count(*) AS m, sum(v) AS s, count(*) FROM a GROUP BY u",
        [
            "map `__key1` AS `u`, `s` / `count` AS `m`, `s`, `count`",
            "aggregate key1_aggregate by __key1",
            "map *, UPPER(`user`) AS `__key1`",
            *A,
        ],
        "u m s count",
    ),
    "all rows": (
        "SELECT max(v) AS v FROM a",
        ["map `v`", "aggregate all_aggregate by __all", "map *, 0 AS `__all`", *A],
        "v",
    ),
    "having": (
        "SELECT user FROM a GROUP BY 1 HAVING min(v) > 3",
        ["map `user`, `_change_type`", "filter `__result1` > 3", "aggregate user_aggregate by user", *A],
        "user _change_type",
    ),
    "temporal join": (
        """SELECT a.user, a.seq, o.amount FROM a LEFT JOIN orders FOR SYSTEM_TIME AS OF a.proctime AS o
           ON a.user = o.user""",
        [
            "map `user`, `seq`, `amount`",
            "temporal join user_temporal_join by user: left temporal join",
            "left: map `user`, `seq`",
            *A,
            "right: map `user` AS `o__user`, `amount` AS `amount`, `_change_type`",
            "map `user`, `amount`, `_change_type`, `_commit_timestamp`, `_commit_seq`",
            "watermark at, delay 5 s",
            "source orders: scripted",
        ],
        "user seq amount",
    ),
    "temporal join with the newest row": (
        "SELECT a.user, b.v AS w FROM a JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.item = b.item AND b.v > 2",
        [
            "map `user`, `b__v` AS `w`",
            "filter `b__v` > 2",
            "temporal join item_temporal_join by item: inner temporal join, the newest by r6",
            "left: map `user`, `item`, `v`",
            *A,
            "right: map `user` AS `b__user`, `item` AS `b__item`, `v` AS `b__v`, `ts` AS `ts`",
            "map `user`, `item`, `v`, `ts`",
            *B,
        ],
        "user w",
    ),
    "temporal join at the rows' time": (
        "SELECT a.user, a.ts, b.v AS w FROM a LEFT JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.item = b.item",
        [
            "map `user`, `ts`, `b__v` AS `w`",
            "versioned join item_temporal_join by item: left join of versions by b__ts as of ts",
            "left: map `user`, `item`, `v`, `ts`",
            *A,
            "right: map `user` AS `b__user`, `item` AS `b__item`, `v` AS `b__v`, `ts` AS `b__ts`",
            "map `user`, `item`, `v`, `ts`",
            *B,
        ],
        "user ts w",
    ),
    "temporal join at the rows' time with a table that changes": (
        """SELECT x.user, x.ts, o.amount FROM a AS x JOIN orders FOR SYSTEM_TIME AS OF ts AS o
           ON x.user = o.user AND x.item > 2 AND o.amount > 3 WHERE o.at < x.ts""",
        [
            "map `user`, `ts`, `amount`",
            "filter `at` < `ts`",
            "filter `amount` > 3",
            "versioned join user_temporal_join by user: inner join of versions by at, then _commit_seq as of ts",
            "left: filter `item` > 2",
            "map `user`, `item`, `ts`",
            *A,
            "right: map `user` AS `o__user`, `amount` AS `amount`, `at` AS `at`, `_change_type`, `_commit_timestamp`, "
            "`_commit_seq`",
            "map `user`, `amount`, `at`, `_change_type`, `_commit_timestamp`, `_commit_seq`",
            "watermark at, delay 5 s",
            "source orders: scripted",
        ],
        "user ts amount",
    ),
    "groups of groups": (
        "SELECT n, count(*) AS users FROM (SELECT user, count(*) AS n FROM a GROUP BY user) GROUP BY n",
        ["aggregate n_aggregate by n: of changes", "map `n`", "aggregate user_aggregate by user", *A],
        "n users _change_type",
    ),
    "distinct": (
        "SELECT DISTINCT item FROM a",
        [
            "map `item`",
            "filter _change_type = 'insert'",
            "aggregate item_distinct by item",
            "map `item`",
            *A,
        ],
        "item",
    ),
    "tumbling windows": (
        """SELECT user, window_start, count(*) AS n FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '1' MINUTE,
           INTERVAL '30' SECOND)) GROUP BY user, window_start, window_end HAVING count(*) > 1""",
        [
            "map `user`, `window_start`, `n`",
            "filter `n` > 1",
            "window user_aggregate_window by user: TumblingEventTimeWindows(60000, 60000, 30000) of ts",
            *A,
        ],
        "user window_start n",
    ),
    "windows of all rows": (
        "SELECT window.end, count(*) AS n FROM a GROUP BY window(ts, '1 minute', '30 seconds')",
        [
            "map `window_end` AS `end`, `n`",
            "window all_aggregate_window by __all: SlidingEventTimeWindows(60000, 30000, 0) of ts",
            "map *, 0 AS `__all`",
            *A,
        ],
        "end n",
    ),
    "over": (
        """SELECT user, avg(v) OVER (PARTITION BY user ORDER BY ts RANGE BETWEEN INTERVAL '5' MINUTE PRECEDING
           AND CURRENT ROW) AS m FROM a""",
        [
            "map `user`, `m`",
            "over user_over by user: avg(v) over range between 300000 ms preceding by ts",
            "map `user`, `v`, `ts`",
            *A,
        ],
        "user m",
    ),
    "interval join": (
        """SELECT a.user, r.v FROM a JOIN b AS r ON r.user = a.user AND a.v <> r.v
           AND r.ts > a.ts - INTERVAL '5' MINUTE AND a.ts + INTERVAL '1' HOUR >= r.ts""",
        [
            "map `user`, `r__v` AS `v`",
            "filter `v` <> `r__v`",
            "interval join user_interval_join by user: inner join of right rows from -299999 ms to 3600000 ms",
            "left: map `user`, `v`, `ts`",
            *A,
            RIGHT_SIDE,
            "map `user`, `v`, `ts`",
            *B,
        ],
        "user v",
    ),
    "conditions of one side": (
        "SELECT a.v, r.v AS w FROM a LEFT JOIN b AS r ON r.user = a.user AND r.ts = a.ts AND r.v > 3",
        [
            "map `v`, `r__v` AS `w`",
            "interval join user_ts_interval_join by user, ts: left join of right rows from 0 ms to 0 ms",
            "left: map `user`, `v`, `ts`",
            *A,
            "right: filter `r__v` > 3",
            RIGHT_SIDE.removeprefix("right: "),
            "map `user`, `v`, `ts`",
            *B,
        ],
        "v w",
    ),
    "where before and behind outer joins": (
        """SELECT a.v FROM a JOIN plain AS p ON a.user = p.user LEFT JOIN b ON a.user = b.user
           WHERE p.item > 3 AND b.item IS NULL""",
        [
            "map `v`, `_change_type`",
            "filter `b__item` IS NULL",
            "join user_join_2 by user: left join",
            "left: join user_join by user: inner join",
            "left: map `user`, `item`, `v`",
            *A,
            "right: filter `p__item` > 3",
            "map `user` AS `p__user`, `item` AS `p__item`, `v` AS `p__v`",
            "map `user`, `item`, `v`",
            "source plain: scripted",
            "right: map `user` AS `b__user`, `item` AS `b__item`, `v` AS `b__v`",
            "map `user`, `item`, `v`",
            *B,
        ],
        "v _change_type",
    ),
    "where behind a right join": (
        "SELECT b.v FROM a JOIN plain AS p ON a.user = p.user RIGHT JOIN b ON a.user = b.user WHERE p.item > 3",
        [
            "map `b__v` AS `v`, `_change_type`",
            "filter `p__item` > 3",
            "join user_join_2 by user: right join",
            "left: join user_join by user: inner join",
            "left: map `user`, `item`, `v`",
            *A,
            "right: map `user` AS `p__user`, `item` AS `p__item`, `v` AS `p__v`",
            "map `user`, `item`, `v`",
            "source plain: scripted",
            "right: map `user` AS `b__user`, `item` AS `b__item`, `v` AS `b__v`",
            "map `user`, `item`, `v`",
            *B,
        ],
        "v _change_type",
    ),
    "regular join": (
        "SELECT user, a.item AS i, b.item AS j FROM a RIGHT JOIN b USING (user)",
        [
            "map `b__user` AS `user`, `item` AS `i`, `b__item` AS `j`, `_change_type`",
            "join user_join by user: right join",
            "left: map `user`, `item`",
            *A,
            "right: map `user` AS `b__user`, `item` AS `b__item`",
            "map `user`, `item`",
            *B,
        ],
        "user i j _change_type",
    ),
    "union and with": (
        "WITH one AS (SELECT user AS u FROM a), two AS (SELECT u FROM one UNION ALL SELECT upper(user) FROM b) "
        "SELECT u, count(*) AS n FROM two GROUP BY u",
        [
            "aggregate u_aggregate by u",
            "union",
            "map `user` AS `u`",
            *A,
            "map `upper(user)` AS `u`",
            "map UPPER(`user`) AS `upper(user)`",
            *B,
        ],
        "u n",
    ),
    "changes are carried along": (
        "SELECT id, amount * 2 AS twice FROM orders WHERE amount > 3",
        [
            "map `id`, `amount` * 2 AS `twice`, `_change_type`, `_commit_timestamp`, `_commit_seq`",
            "filter `amount` > 3",
            "watermark at, delay 5 s",
            "source orders: scripted",
        ],
        "id twice _change_type _commit_timestamp _commit_seq",
    ),
    "changes as data": (
        "SELECT kind, count(*) AS n FROM (SELECT _change_type AS kind FROM orders) GROUP BY kind",
        [
            "aggregate kind_aggregate by kind",
            "map `__data_change_type` AS `kind`",
            "map `id`, `user`, `amount`, `at`, `_change_type` AS `__data_change_type`, "
            "`_commit_timestamp` AS `__data_commit_timestamp`, `_commit_seq` AS `__data_commit_seq`",
            "watermark at, delay 5 s",
            "source orders: scripted",
        ],
        "kind n",
    ),
    "changes of a group": (
        "SELECT user, sum(amount) AS total FROM orders GROUP BY user",
        [
            "signed aggregate user_aggregate by user: of changes",
            "map `user`, `amount`, `_change_type`, `_commit_timestamp`, `_commit_seq`",
            "watermark at, delay 5 s",
            "source orders: scripted",
        ],
        "user total _change_type",
    ),
}


def operators(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if not line.strip().startswith("* ")]


@pytest.mark.parametrize("case", TRANSLATED)
def test_operators_and_columns(spark: SparkSession, streams: dict[str, bs.BacklogStream], case: str) -> None:
    query, expected, columns = TRANSLATED[case]
    stream = bs.sql(spark, query, **streams)
    kinds = r"^((left: |right: )?)(signed aggregate|aggregate)(?= \w+ by \w+: of changes)"
    found = [re.sub(kinds, r"\1aggregate", line) for line in operators(bs.explained(stream, spark=spark))]
    assert found == [re.sub(kinds, r"\1aggregate", line) for line in expected]
    assert Schemas(spark).of(stream._node).names == columns.split()


def test_event_time_is_kept(spark: SparkSession, streams: dict[str, bs.BacklogStream]) -> None:
    stream = bs.sql(spark, "SELECT user, ts AS at FROM (SELECT * FROM a WHERE v > 1)", **streams)
    assert Schemas(spark).of(stream._node)["at"].metadata == {EVENT_TIME: "ts"}
    windowed = bs.sql(
        spark,
        "SELECT window.end, sum(n) AS n FROM "
        "(SELECT window_time(window) AS t, count(*) AS n FROM a GROUP BY window(ts, '1 minute')) "
        "GROUP BY window(t, '1 hour')",
        **streams,
    )
    assert Schemas(spark).of(windowed._node).names == ["end", "n"]
    of_version = bs.sql(
        spark, "SELECT a.ts, b.v FROM a JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.item = b.item", **streams
    )
    assert Schemas(spark).of(of_version._node)["ts"].metadata == {EVENT_TIME: "ts"}


def test_the_time_of_a_commit_is_that_of_a_version(spark: SparkSession, streams: dict[str, bs.BacklogStream]) -> None:
    source = next(node for node in streams["orders"]._node.walk() if isinstance(node, SourceNode))
    orders = bs.BacklogStream(source).with_watermark("_commit_timestamp", "5 seconds")
    query = "SELECT a.ts, o.* FROM a JOIN orders FOR SYSTEM_TIME AS OF a.ts AS o ON a.user = o.user"
    stream = bs.sql(spark, query, a=streams["a"], orders=orders)
    joined = next(line for line in operators(bs.explained(stream, spark=spark)) if line.startswith("versioned join"))
    assert joined.endswith("inner join of versions by _commit_timestamp, then _commit_seq as of ts")
    assert Schemas(spark).of(stream._node).names == ["ts", "id", "user", "amount", "at"]


@pytest.mark.parametrize(
    ("query", "told", "filtered"),
    [
        ("SELECT v FROM (SELECT {} FROM a) WHERE n = 1 AND v > 0", True, 1),
        ("WITH q AS (SELECT {} FROM a) SELECT v FROM q WHERE q.n <= 1", True, 0),
        # The number may be NULL afterwards, so the condition stays.
        ("SELECT q.v FROM (SELECT {} FROM a) AS q RIGHT JOIN b ON q.v = b.v WHERE q.n = 1", True, 1),
        ("SELECT q.v FROM (SELECT {} FROM a) AS q JOIN b ON q.v = b.v WHERE 1 = q.n", True, 0),
    ],
)
def test_first_rows(
    spark: SparkSession, streams: dict[str, bs.BacklogStream], query: str, told: bool, filtered: int
) -> None:
    numbered = "v, ROW_NUMBER() OVER (PARTITION BY user ORDER BY price DESC) AS n"
    lines = operators(bs.explained(bs.sql(spark, query.format(numbered), **streams), spark=spark))
    assert any("first_row" in line for line in lines) == told
    assert len([line for line in lines if line.startswith("filter")]) == filtered


@pytest.mark.parametrize(
    ("items", "names"),
    [
        ("user, price * 2, upper(a.user)", ["user", "(price * 2)", "upper(user)"]),
        ("CAST(v AS STRING), ts + INTERVAL '1' DAY", ["v", "ts + INTERVAL '1' DAY"]),
        ("a.v, v + 1 AS V, a.*", ["v", "V0", "user", "item", "v1", "price", "seq", "ts"]),
    ],
)
def test_names_of_columns(
    spark: SparkSession, streams: dict[str, bs.BacklogStream], items: str, names: list[str]
) -> None:
    """Without AS Spark's; of several columns of one name all but the first with a number."""
    assert Schemas(spark).of(bs.sql(spark, f"SELECT {items} FROM a", **streams)._node).names == names


def test_an_error_of_spark_is_one_line(
    spark: SparkSession, streams: dict[str, bs.BacklogStream], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(bs.SqlError, match="Cannot resolve routine") as caught:
        bs.sql(spark, "SELECT uper(user) AS u FROM a", **streams)
    assert "\n" not in str(caught.value)
    # Spark cannot name this one: it is of the window.
    bs.sql(spark, "SELECT upper(string(window.end)), count(*) AS n FROM a GROUP BY window(ts, '9 s')", **streams)
    assert capfd.readouterr().err == ""


def test_types_are_those_of_spark(spark: SparkSession, streams: dict[str, bs.BacklogStream]) -> None:
    query = "SELECT user, sum(price) AS s, avg(v) AS m, struct(user, max(v) AS x) AS both FROM a GROUP BY user"
    stream = bs.sql(spark, query, **streams)
    schemas = Schemas(spark)
    schemas.empty(schemas.of(streams["a"]._node)).createOrReplaceTempView("a")
    assert schemas.of(stream._node).simpleString() == spark.sql(query).schema.simpleString()


def test_a_stream_that_is_keyed_already(spark: SparkSession, streams: dict[str, bs.BacklogStream]) -> None:
    totals = streams["a"].key_by("user").aggregate("sum(v) AS total")
    stream = bs.sql(spark, "SELECT upper(user) AS u, total FROM totals WHERE total > 3", totals=totals)
    assert operators(bs.explained(stream, spark=spark))[:2] == [
        "map UPPER(`user`) AS `u`, `total`, `_change_type`",
        "filter `total` > 3",
    ]


def test_bounds_narrow() -> None:
    bounds = Bounds()
    for operator, ms in ((">=", -5), (">", -5), (">=", -7), ("<", 9), ("<=", 9)):
        bounds.narrow(Difference(operator, ms))
    assert (bounds.lower, bounds.lower_exclusive, bounds.upper, bounds.upper_exclusive) == (-5, True, 9, True)
    bounds.narrow(Difference("=", 3))
    assert (bounds.lower, bounds.lower_exclusive, bounds.upper, bounds.upper_exclusive) == (3, False, 3, False)


def test_state_ttl(spark: SparkSession, streams: dict[str, bs.BacklogStream], monkeypatch: pytest.MonkeyPatch) -> None:
    """For each table of a join, by its name in FROM. For earlier joins, and for 0, rows are kept for ever."""
    given: list[Any] = []
    made = JoinFold.__init__

    def recorded(self: JoinFold, *arguments: Any, **more: Any) -> None:
        given.append(more["ttl_ms"])
        made(self, *arguments, **more)

    monkeypatch.setattr(JoinFold, "__init__", recorded)
    stream = bs.sql(
        spark,
        """SELECT /*+ STATE_TTL('X' = '1 day', 'p' = '2 h'), STATE_TTL('b' = '0', 'q' = '1 min') */ x.v FROM a AS x
           LEFT JOIN plain AS p ON x.v = p.v JOIN b ON x.user = b.user JOIN plain AS q ON q.user = b.user""",
        **streams,
    )
    assert Schemas(spark).of(stream._node).names == ["v", CHANGE_TYPE]
    assert set(given) == {(86_400_000, 7_200_000), (None, None), (None, 60_000)}
