"""Which joins of a query with its own aggregates become OVER, and which stay joins."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from sqlglot import exp

from backlog_spark.streamsql.own_aggregates import as_over
from backlog_spark.streamsql.parsing import parsed
from backlog_spark.streamsql.rows import text_of

if TYPE_CHECKING:
    from backlog_spark.streamsql.translation import Translation

COLUMNS = {"x": {"k", "n", "u", "at", "s"}, "y": {"k", "other"}}


class Names:
    """What a rewrite needs of a `Translation`."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def hidden(self, what: str) -> str:
        return f"__{what}{next(self._numbers)}"


def has(item: exp.Expr, column: exp.Column) -> bool:
    if isinstance(item, exp.Subquery):
        return column.name in [each.alias_or_name for each in item.this.expressions]
    return column.name in COLUMNS.get(item.name, ())


def rewritten(text: str) -> str | None:
    """The rewritten query; None if it stays."""
    _, tree = parsed(text, "spark")
    assert isinstance(tree, exp.Select)
    tables: dict[str, exp.Query] = {}
    for each in tree.args["with_"].expressions if tree.args.get("with_") else []:
        query = each.this.copy()
        query.meta["tables"] = dict(tables)
        tables[each.alias] = query
    names: Any = Names()
    tr: Translation = names
    made = as_over(tr, tree, tables, has, lambda item, column: column.name == "at")
    return None if made is tree else text_of(made).replace("`", "")


SUM = "SELECT a.n, b.m FROM x AS a JOIN (SELECT k, {call} AS m FROM x GROUP BY k) AS b ON a.k = b.k"


def test_sums() -> None:
    assert rewritten(SUM.format(call="sum(n)")) == (
        "SELECT a.n, a.__own1 AS m FROM (SELECT k, n, SUM(n) OVER (PARTITION BY k) AS __own1 FROM x AS a) AS a "
        "WHERE NOT a.k IS NULL"
    )


def test_greatest_values() -> None:
    for condition in ("a.n = b.m", "a.n >= b.m", "b.m <= a.n"):
        assert rewritten(f"{SUM.format(call='max(n)')} WHERE {condition}") == (
            "SELECT a.n, a.n AS m FROM (SELECT k, n, RANK() OVER (PARTITION BY k ORDER BY n DESC) AS __own1 "
            "FROM x AS a) AS a WHERE NOT a.k IS NULL AND a.__own1 = 1 AND NOT a.n IS NULL"
        )
    for call, condition in (("max(n)", "a.n <= b.m"), ("min(n)", "a.n >= b.m"), ("max(u)", "a.n >= b.m"),
                            ("avg(n)", "a.n = b.m"), ("sum(n)", "a.n = b.m"), ("count(n)", "a.n = b.m")):  # fmt: skip
        made = rewritten(f"{SUM.format(call=call)} WHERE {condition}")
        assert made is not None
        assert "RANK" not in made
    made = rewritten(
        "SELECT a.at FROM x a JOIN (SELECT k, min(at) AS m FROM x GROUP BY k) b ON a.k = b.k AND a.at = b.m"
    )
    assert made is not None
    assert "RANK" not in made


SAME = [
    "WITH t AS (SELECT k, n FROM x) SELECT a.n FROM t a JOIN (SELECT k, sum(n) AS m FROM t GROUP BY k) b ON a.k = b.k",
    "WITH t AS (SELECT k, n FROM x), b AS (SELECT k, sum(n) AS m FROM t GROUP BY k) "
    "SELECT b.m FROM t JOIN b ON t.k = b.k",
    "SELECT a.n FROM (SELECT k, n, u FROM x WHERE n > 3) a JOIN (SELECT j, sum(v) AS m FROM (SELECT n AS v, k AS j "
    "FROM x WHERE n > 3) GROUP BY j) b ON a.k = b.j",
    "SELECT a.c FROM (SELECT k, u AS w, count(*) AS c FROM x GROUP BY k, u) a JOIN (SELECT k, max(d) AS m FROM "
    "(SELECT count(*) AS d, k FROM x GROUP BY k, u) GROUP BY k) b ON b.k = a.k AND a.c >= m",
    "SELECT a.n, y.other FROM x a JOIN y ON a.k = y.k JOIN (SELECT k, sum(n) AS m FROM x GROUP BY k) b ON a.k = b.k",
]


@pytest.mark.parametrize("text", SAME)
def test_the_same_rows_in_other_words(text: str) -> None:
    made = rewritten(text)
    assert made is not None
    assert " OVER (PARTITION BY " in made


JOINED = "SELECT a.k FROM {left} a JOIN (SELECT k, sum(c) AS m FROM {right} GROUP BY k) b ON a.k = b.k"
OTHER = [
    "SELECT a.n FROM x a JOIN (SELECT k, sum(n) AS m FROM y GROUP BY k) b ON a.k = b.k",
    "SELECT a.n FROM x a LEFT JOIN (SELECT k, sum(n) AS m FROM x GROUP BY k) b ON a.k = b.k",
    "SELECT a.n FROM x a JOIN (SELECT k, u, sum(n) AS m FROM x GROUP BY k, u) b ON a.k = b.k",
    "SELECT a.n FROM x a JOIN (SELECT k, sum(n) AS m FROM x GROUP BY k) b ON a.k = b.m",
    "SELECT a.n FROM x a JOIN (SELECT k, sum(n) AS m FROM x WHERE n > 1 GROUP BY k) b ON a.k = b.k",
    "SELECT a.n FROM x a JOIN (SELECT k, sum(n) AS m FROM x GROUP BY k HAVING sum(n) > 1) b ON a.k = b.k",
    "SELECT a.n FROM x a JOIN (SELECT k, sum(DISTINCT n) AS m FROM x GROUP BY k) b ON a.k = b.k",
    "SELECT a.n FROM x a JOIN (SELECT k, sum(n) AS m FROM x GROUP BY ROLLUP(k)) b ON a.k = b.k",
    "SELECT a.n FROM x a JOIN (SELECT k, sum(n) AS m FROM x GROUP BY k) b(m, k) ON a.k = b.k",
    "SELECT a.n FROM x a JOIN (SELECT k, sum(n) AS m FROM x TABLESAMPLE (5 PERCENT) GROUP BY k) b ON a.k = b.k",
    "SELECT k FROM x a JOIN (SELECT k, sum(n) AS m FROM x GROUP BY k) b ON a.k = b.k",
    "SELECT * FROM x a JOIN (SELECT k, sum(n) AS m FROM x GROUP BY k) b ON a.k = b.k",
    "SELECT b.m + 1 FROM x a JOIN (SELECT k, sum(n) AS m FROM x GROUP BY k) b ON a.k = b.k",
    "SELECT a.n FROM x a JOIN (SELECT s.k, sum(s.n) AS m FROM x GROUP BY s.k) b ON a.k = b.k",
    "SELECT a.n FROM x a JOIN (SELECT k, sum(n) AS m FROM x GROUP BY k) b ON a.k = b.k "
    "JOIN y FOR SYSTEM_TIME AS OF a.at AS d ON d.k = a.k",
    "WITH m AS (SELECT k, sum(n) AS t FROM x GROUP BY k) SELECT a.k, b.t FROM x a "
    "JOIN m FOR SYSTEM_TIME AS OF a.at AS b ON a.k = b.k",
    "WITH x AS (SELECT k, n FROM y) SELECT a.n FROM (SELECT k, n FROM x) a JOIN "
    "(WITH x AS (SELECT k, n FROM z) SELECT k, sum(n) AS m FROM (SELECT k, n FROM x) GROUP BY k) b ON a.k = b.k",
    JOINED.format(left="(SELECT k, n % 2 AS g, count(*) AS c FROM x GROUP BY k, g)",
                  right="(SELECT k, n % 3 AS g, count(*) AS c FROM x GROUP BY k, g)"),
    JOINED.format(left="(SELECT k, sum(n) AS c, count(*) AS v FROM x GROUP BY k HAVING v > 1)",
                  right="(SELECT k, sum(n) AS c, max(n) AS v FROM x GROUP BY k HAVING v > 1)"),
    JOINED.format(left="(SELECT k, n, u AS c FROM x GROUP BY 1, 2, 3)",
                  right="(SELECT k, u, u AS c FROM x GROUP BY 1, 2, 3)"),
    JOINED.format(left="(SELECT count(*) AS c, max(k) AS k FROM x)", right="(SELECT n AS c, k FROM x)"),
    JOINED.format(left="(SELECT k, explode(u) AS c FROM x)", right="(SELECT k, n AS c FROM x)"),
    JOINED.format(left="(SELECT DISTINCT k, n AS c, u FROM x)", right="(SELECT DISTINCT k, n AS c FROM x)"),
]  # fmt: skip


@pytest.mark.parametrize("text", OTHER)
def test_other_joins_stay(text: str) -> None:
    assert rewritten(text) is None
