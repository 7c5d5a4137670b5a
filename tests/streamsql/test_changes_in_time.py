"""Statements with time over a changing table: each is right for the remaining rows, or refused."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.model.changes import CHANGE_TYPE
from backlog_spark.spark.plan.schemas import Schemas
from tests.operators.events import EPOCH, multiset, run

from .conftest import CHANGES
from .test_results import known, of_spark, windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[int, str, "int | None", int]
"""id, user, amount and the second of its time."""

FLUSH: Row = (9, "~flush", None, 1000)
# Row before and row after, of each change. Bob's and cy's first windows end empty; one row changes its window, one its
# window within a batch, one its user.
HISTORY: list[list[tuple[Row | None, Row | None]]] = [
    [
        (None, (1, "ann", 5, 1)),
        (None, (2, "ann", 7, 2)),
        (None, (3, "bob", 4, 3)),
        (None, (4, "cy", 3, 4)),
        (None, (5, "ann", None, 14)),
    ],
    [
        ((2, "ann", 7, 2), (2, "ann", 9, 2)),
        ((3, "bob", 4, 3), None),
        ((4, "cy", 3, 4), (4, "cy", 8, 12)),
        ((5, "ann", None, 14), (5, "bob", 6, 14)),
    ],
    [
        (None, (6, "ann", 9, 9)),
        ((1, "ann", 5, 1), None),
        ((6, "ann", 9, 9), (6, "ann", 2, 11)),
        (None, FLUSH),
    ],
]
LEFT: list[Row] = [(2, "ann", 9, 2), (4, "cy", 8, 12), (5, "bob", 6, 14), (6, "ann", 2, 11), FLUSH]


def at(second: int) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=second)


def table(rows: list[Row], kinds: list[str], first: int = 1) -> pa.Table:
    """As `CHANGES`, committed in this order, one each second."""
    whole = [
        (identity, user, amount, at(second), kind, at(seq), seq)
        for seq, ((identity, user, amount, second), kind) in enumerate(zip(rows, kinds, strict=True), first)
    ]
    return pa.table([list(column) for column in zip(*whole, strict=True)], schema=CHANGES)


def history() -> list[pa.Table]:
    parts: list[pa.Table] = []
    seq = 1
    for changes in HISTORY:
        rows: list[Row] = []
        kinds: list[str] = []
        for before, after in changes:
            if before is not None:
                rows.append(before)
                kinds.append("delete" if after is None else "update_preimage")
            if after is not None:
                rows.append(after)
                kinds.append("insert" if before is None else "update_postimage")
        parts.append(table(rows, kinds, seq))
        seq += len(rows)
    return parts


def windowed(table_function: str, spark_function: str) -> tuple[str, str]:
    """As of `windows`, with the columns of `CHANGES`."""
    texts = windows(table_function, spark_function)
    for old, new in (("seq", "id"), ("price", "amount"), ("sum(v + 1)", "sum(amount + 1)"), ("v > 0", "amount > 2")):
        texts = texts[0].replace(old, new), texts[1].replace(old, new)
    return texts[0].replace("count(*) > 1", "count(*) > 0"), texts[1].replace("count(*) > 1", "count(*) > 0").replace(
        "FROM a ", "FROM orders "
    )


TUMBLE = "TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '10' SECOND)"
PER_WINDOW = f"SELECT user, window_start, count(*) AS n FROM {TUMBLE} GROUP BY user, window_start, window_end"
IN_SPARK = "SELECT user, window.start AS start, count(*) AS n FROM orders GROUP BY user, window(at, '10 seconds')"

# Text for the stream, and for Spark's batch over the rows that are left.
WINDOWS: dict[str, tuple[str, str]] = {
    "tumble": windowed(TUMBLE, "window(at, '10 seconds')"),
    "hop": windowed(
        "HOP(TABLE orders, DESCRIPTOR(at), INTERVAL '4' SECOND, INTERVAL '10' SECOND)",
        "window(at, '10 seconds', '4 seconds')",
    ),
    "cumulate": (
        """SELECT user, window_end, count(*) AS n, max(amount) AS most
           FROM CUMULATE(TABLE orders, DESCRIPTOR(at), INTERVAL '10' SECOND, INTERVAL '30' SECOND)
           WHERE user <> '~flush' GROUP BY user, window_start, window_end""",
        """SELECT user, until, count(*), max(amount)
           FROM (SELECT *, explode(transform(sequence(1, 3), n -> start + n * INTERVAL '10' SECOND)) AS until
                 FROM (SELECT *, window(at, '30 seconds').start AS start FROM orders WHERE user <> '~flush'))
           WHERE at < until GROUP BY user, start, until""",
    ),
    "Spark's function": (
        """SELECT window.end AS e, avg(amount) AS mean FROM orders WHERE user <> '~flush'
           GROUP BY window(at, '9 seconds')""",
        "",
    ),
    "windows alone": (
        f"SELECT window_start, window_end FROM {TUMBLE} WHERE user = 'cy' GROUP BY window_start, window_end",
        "SELECT window.start, window.end FROM orders WHERE user = 'cy' GROUP BY window(at, '10 seconds')",
    ),
    "condition around windows": (
        f"SELECT * FROM ({PER_WINDOW}) WHERE n = 1 AND user <> '~flush'",
        f"SELECT * FROM ({IN_SPARK}) WHERE n = 1 AND user <> '~flush'",
    ),
    "distinct windows": (
        f"SELECT DISTINCT window_start, n FROM ({PER_WINDOW}) WHERE user <> '~flush'",
        f"SELECT DISTINCT start, n FROM ({IN_SPARK}) WHERE user <> '~flush'",
    ),
    "windows of windows": (
        """SELECT window.end AS e, sum(n) AS n FROM (
             SELECT window_time(window) AS t, count(*) AS n FROM orders WHERE user <> '~flush'
             GROUP BY window(at, '10 seconds')) GROUP BY window(t, '20 seconds')""",
        """SELECT window.end, count(*) FROM orders WHERE user <> '~flush' GROUP BY window(at, '20 seconds')""",
    ),
}


@pytest.mark.grid
@pytest.mark.parametrize(
    ("name", "backlog"),
    [("tumble", 1)] + [pytest.param(name, backlog, marks=pytest.mark.grid) for name in WINDOWS for backlog in range(4)],
)
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_windows_take_rows_back(spark: SparkSession, tmp_path: Path, name: str, backlog: int) -> None:
    query, in_spark = WINDOWS[name]
    expected = of_spark(spark, in_spark or query, {"orders": [table(LEFT, ["insert"] * len(LEFT))]})
    assert expected
    given = {"orders": history()}
    known(tmp_path, given)
    orders = bs.source("scripted", name="orders", path=tmp_path / "orders").with_watermark("at", "1 minute")
    sink = run(spark, tmp_path, bs.sql(spark, query, orders=orders), given, backlog, expected)
    assert multiset(row for batch in sink.batches.values() for row in batch) == expected


CLICKS = pa.schema([("order", pa.int64()), ("clicked", pa.timestamp("us", "UTC"))])
VERSION = """
    SELECT c.order, unix_timestamp(c.clicked) AS second, o.user, o.amount
    FROM clicks AS c {how} JOIN orders FOR SYSTEM_TIME AS OF {time} AS o ON c.order = o.id WHERE c.order < 9"""
# Changes are committed at seconds 1 to 5, then 6-7 (order 2), 8 (3 goes), 9-10 (4), 11-12 (5), 13, 14 (1 goes), 15-16.
CLICKED = [(1, 1), (1, 13), (1, 14), (2, 1), (2, 6), (2, 7), (3, 7), (3, 8), (6, 12), (6, 15), (6, 16), (7, 500)]
AT_ITS_TIME: list[tuple[Any, ...]] = [
    (1, 1, "ann", 5),
    (1, 13, "ann", 5),
    (1, 14, None, None),
    (2, 1, None, None),
    (2, 6, "ann", 7),
    (2, 7, "ann", 9),
    (3, 7, "bob", 4),
    (3, 8, None, None),
    (6, 12, None, None),
    (6, 15, "ann", 9),
    (6, 16, "ann", 2),
    (7, 500, None, None),
]
AT_THE_END = {2: ("ann", 9), 6: ("ann", 2)}


@pytest.mark.parametrize(
    ("how", "time", "backlog"),
    [(how, time, n) for how in ("LEFT", "INNER") for time in ("c.clicked", "PROCTIME()") for n in range(4)],
)
@pytest.mark.grid
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_versions_of_a_table_that_changes(
    spark: SparkSession, tmp_path: Path, how: str, time: str, backlog: int
) -> None:
    """A click is joined with its version at its time; at processing time with the final row, as clicks come last."""
    made = AT_ITS_TIME if time == "c.clicked" else [(o, s, *AT_THE_END.get(o, (None, None))) for o, s in CLICKED]
    start = int(EPOCH.timestamp())
    expected: Counter[Any] = Counter((o, start + s, *rest) for o, s, *rest in made if how == "LEFT" or rest[0])
    parts = history()
    late = table([FLUSH], ["insert"], 1000)
    clicks = pa.table([[o for o, _ in CLICKED] + [9], [at(s) for _, s in CLICKED] + [at(1000)]], schema=CLICKS)
    none = clicks.slice(0, 0)
    given = {"orders": [*parts, late], "clicks": [none, none, none, none, clicks]}
    known(tmp_path, given)
    streams = {
        "orders": bs.source("scripted", name="orders", path=tmp_path / "orders").with_watermark(
            "_commit_timestamp", "0 s"
        ),
        "clicks": bs.source("scripted", name="clicks", path=tmp_path / "clicks").with_watermark(
            "clicked", "10 minutes"
        ),
    }
    if time == "c.clicked":
        # Nothing holds clicks back, and none is late.
        given["clicks"].append(pa.table([[9], [at(5000)]], schema=CLICKS))
        given["orders"] += [late.slice(0, 0), table([FLUSH], ["insert"], 5000)]
    stream = bs.sql(spark, VERSION.format(how=how, time=time), **streams)
    sink = run(spark, tmp_path, stream, given, backlog, expected)
    assert multiset(row for batch in sink.batches.values() for row in batch) == expected


BUILD = "SELECT a.seq, o.id FROM a LEFT JOIN orders FOR SYSTEM_TIME AS OF {0} AS o ON a.item = o.id"
ONCE = {name: query for name, (query, _) in WINDOWS.items()} | {t: BUILD.format(t) for t in ("a.ts", "PROCTIME()")}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE)
def test_rows_come_once_over_both_kinds(spark: SparkSession, streams: dict[str, bs.BacklogStream], name: str) -> None:
    """The columns are the same, without a change type: results of windows and clicks are emitted once."""
    orders = streams["orders"]
    added = orders.transform(lambda frame: frame.drop(CHANGE_TYPE, "_commit_timestamp", "_commit_seq"))
    told, plain = (
        Schemas(spark).of(bs.sql(spark, ONCE[name], **streams | {"orders": each})._node) for each in (orders, added)
    )
    assert told.names == plain.names
    assert CHANGE_TYPE not in told.names


ADDED = "(SELECT * FROM (SELECT id, user, amount, at, _change_type AS change FROM orders) WHERE change = 'insert')"
WITHIN = "ON a.user = o.user AND o.at BETWEEN a.ts - INTERVAL '4' SECOND AND a.ts + INTERVAL '5' SECOND"
GAP = "SESSION(TABLE {0} PARTITION BY user, DESCRIPTOR(at), INTERVAL '5' SECOND)"
# Queries that cannot retract rows, and the operator in the message. Each reads {0}.
REFUSED: list[tuple[str, str]] = [
    (
        f"SELECT user, window_start, count(*) AS n FROM TABLE({GAP}) GROUP BY user, window_start, window_end",
        "session window cannot",
    ),
    ("SELECT user, count(*) AS n FROM {0} AS o GROUP BY user, session_window(at, '1 day')", "session window cannot"),
    ("SELECT user, max_by(id, amount) AS n FROM {0} AS o GROUP BY user, window(at, '1 day')", "max_by(id, amount)"),
    *(
        (f"SELECT a.seq, o.id FROM a {how} JOIN {{0}} AS o {WITHIN}", "interval_join cannot")
        for how in ("INNER", "LEFT", "FULL")
    ),
    (f"SELECT a.seq, o.id FROM {{0}} AS o JOIN a {WITHIN}", "interval_join cannot"),
    *(
        (
            f"SELECT o.id FROM {{0}} AS o LEFT JOIN b FOR SYSTEM_TIME AS OF {time} AS b ON b.user = o.user",
            "temporal_join cannot",
        )
        for time in ("o.at", "PROCTIME()")
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("query", "message"), REFUSED)
def test_statements_that_cannot_retract_rows(
    spark: SparkSession, streams: dict[str, bs.BacklogStream], query: str, message: str
) -> None:
    """Changes are refused; added rows, taken as data, are accepted."""
    with pytest.raises(bs.SqlError, match=r"retracts rows|cannot retract rows") as caught:
        bs.sql(spark, query.format("orders"), **streams)
    assert message in str(caught.value)
    taken = f"WITH added AS {ADDED} {query.format('added')}"
    assert CHANGE_TYPE not in Schemas(spark).of(bs.sql(spark, taken, **streams)._node).names
