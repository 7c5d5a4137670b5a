"""Aggregates from SQL: which are supported, and which are refused and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.operators.aggregates import (
    ApproxCountDistinct,
    Avg,
    BoolAnd,
    BoolOr,
    CollectList,
    CollectSet,
    Count,
    First,
    Last,
    Max,
    MaxBy,
    Min,
    MinBy,
    StdDev,
    StdDevPop,
    Sum,
    Variance,
    VariancePop,
)
from backlog_spark.operators.declare import parse_aggregates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.operators.aggregates.aggregate import Aggregate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum(amount) AS total", Sum("amount", name="total")),
        ("SUM(amount) total", Sum("amount", name="total")),
        ("sum(amount)", Sum("amount", name="sum_amount")),
        ("count(*)", Count(name="count")),
        ("count(*) FILTER (WHERE a = 'it''s') AS n", Count(where="a = 'it''s'", name="n")),
        ("max(to_char(a, 'S99')) AS m", Max("TO_CHAR(a, 'S99')", name="m")),
        ("count(*) AS n", Count(name="n")),
        ("count(paid_at)", Count("paid_at", name="count_paid_at")),
        ("count(1) AS n", Count("1", name="n")),
        ("min(a), max(a)", [Min("a"), Max("a")]),
        ("avg(price * qty) AS p", Avg("price * qty", name="p")),
        ("mean(a)", Avg("a", name="avg_a")),
        ("stddev(a), std(a) s, stddev_samp(a) t", [StdDev("a"), StdDev("a", name="s"), StdDev("a", name="t")]),
        ("stddev_pop(a)", StdDevPop("a")),
        ("variance(a) v, var_samp(a) w", [Variance("a", name="v"), Variance("a", name="w")]),
        ("var_pop(a)", VariancePop("a")),
        ("first(a)", First("a")),
        ("first_value(a) f", First("a", name="f")),
        ("first(a, true)", First("a", ignore_nulls=True)),
        ("first(a) IGNORE NULLS", First("a", ignore_nulls=True)),
        ("first(a) RESPECT NULLS", First("a")),
        ("last(a IGNORE NULLS) AS l", Last("a", ignore_nulls=True, name="l")),
        ("last_value(a) FILTER (WHERE b) AS l", Last("a", where="b", name="l")),
        ("min_by(a, b)", MinBy("a", "b")),
        ("max_by(struct(*), price) AS dearest", MaxBy("*", "price", name="dearest")),
        ("count(struct(*)) AS n", Count("1", name="n")),
        ("bool_and(a), every(b)", [BoolAnd("a"), BoolAnd("b")]),
        ("bool_or(a), some(b), any(c)", [BoolOr("a"), BoolOr("b"), BoolOr("c")]),
        ("approx_count_distinct(a)", ApproxCountDistinct("a")),
        ("collect_list(a), array_agg(b)", [CollectList("a"), CollectList("b")]),
        ("collect_set(a)", CollectSet("a")),
        ("sum(a) FILTER (WHERE b > 1) AS x", Sum("a", where="b > 1", name="x")),
        ("count(*) FILTER (WHERE b IS NULL)", Count(where="b IS NULL")),
        ("(sum(a)) AS x", Sum("a", name="x")),
        ("sum((a)) AS x", Sum("a", name="x")),
        ("sum(`a b`) AS `x y`", Sum("`a b`", name="x y")),
        ("sum(`order`)", Sum("order")),
        ("sum(a.b) AS x", Sum("a.b", name="x")),
        ("max(cast(a AS timestamp_ntz)) AS x", Max("CAST(a AS TIMESTAMP_NTZ)", name="x")),
        ("max(try_cast(a AS int)) AS x", Max("TRY_CAST(a AS INT)", name="x")),
        ("sum(CASE WHEN a THEN 1 ELSE 0 END) AS x", Sum("CASE WHEN a THEN 1 ELSE 0 END", name="x")),
        ("sum(amount) -- all of it", Sum("amount")),
    ],
)
def test_understood(text: str, expected: Any) -> None:
    assert parse_aggregates(text) == (expected if isinstance(expected, list) else [expected])


def test_objects_and_texts_keep_their_order() -> None:
    found = parse_aggregates(Max("x"), "sum(a), min(a)", Count())
    assert found == [Max("x"), Sum("a"), Min("a"), Count()]


def test_the_order_goes_to_those_that_lack_one() -> None:
    found = parse_aggregates(First("a", order="mine"), "last(a), collect_list(a), max_by(a, b), sum(a)", order="seq")
    assert found == [
        First("a", order="mine"),
        Last("a", order="seq"),
        CollectList("a", order="seq"),
        MaxBy("a", "b", order="seq"),
        Sum("a"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sum(DISTINCT a) AS x", r"SUM\(DISTINCT a\) AS x: DISTINCT would need to keep every value.*approx_count_dist"),
        ("count(DISTINCT a, b) AS x", "DISTINCT would need to keep every value"),
        ("collect_list(DISTINCT a)", "DISTINCT .*collect_set"),
        ("percentile(a, 0.5) AS x", r"percentile is not supported, or cannot be merged.*Known: any, .*var_samp, vari"),
        ("percentile_approx(a, 0.5) AS x", "percentile_approx is not supported, or cannot be merged"),
        ("percentile_cont(0.5) WITHIN GROUP (ORDER BY a) AS x", "percentile_cont is not supported, or cannot be mer"),
        ("median(a) AS x", "median is not supported, or cannot be merged"),
        ("mode(a) AS x", "mode is not supported, or cannot be merged"),
        ("corr(a, b) AS x", "corr is not supported"),
        ("my_function(a) AS x", "my_function is not supported.*Known: any, approx_count_distinct, avg"),
        ("count_if(a > 1) AS x", r"Use count\(\*\) FILTER \(WHERE ...\)"),
        ("any_value(a) AS x", "Use first"),
        ("upper(a) AS x", "upper is not supported"),
        (
            "sum(a) / sum(b) AS r",
            r"SUM\(a\) / SUM\(b\) AS r is an expression around aggregates.*transform after it",
        ),
        ("max(a) + 1 AS x", "expression around aggregates"),
        ("upper(max(a)) AS x", "expression around aggregates"),
        ("CASE WHEN max(a) > 1 THEN 1 END AS x", "expression around aggregates"),
        ("a", r"a is not an aggregate\. The result has the key already"),
        ("a + 1 AS x", "is not an aggregate"),
        ("sum(max(a)) AS x", "an aggregate within an aggregate"),
        ("sum(a) OVER (PARTITION BY b) AS x", r"a window \(OVER\) has no accumulators"),
        ("sum(a) FILTER (WHERE b) OVER () AS x", r"a window \(OVER\)"),
        ("sum((SELECT 1)) AS x", "a subquery is not possible"),
        ("sum(a) FILTER (WHERE a IN (SELECT 1)) AS x", "a subquery is not possible"),
        ("sum(a), min(b) AS sum_a", "Several aggregates have the same name: sum_a"),
        ("sum(a + b)", r"sum\(a \+ b\) has no name for its result"),
        ("sum(`a b`)", "has no name for its result"),
        ("sum(*) AS x", r"sum\(\*\): the star is not possible here"),
        ("count(t.*) AS x", r"count\(t.\*\): the star is not possible here"),
        ("count(a, b) AS x", r"COUNT\(a, b\) AS x: count takes 1 argument here, found 2"),
        ("min_by(a) AS x", "min_by takes 2 arguments here, found 1"),
        ("min_by(a, b, 3) AS x", "min_by takes 2 arguments here, found 3"),
        ("approx_count_distinct(a, 0.01) AS x", "takes 1 argument here, found 2"),
        ("max(a) IGNORE NULLS AS x", "max ignores nulls anyway"),
        ("sum(a) RESPECT NULLS AS x", "sum ignores nulls anyway"),
        ("max(a) WITHIN GROUP (ORDER BY b) AS x", "max has no WITHIN GROUP"),
        ("count(* EXCEPT (a)) AS x", "the star is not possible here"),
        ("max_by(struct(* EXCEPT (a)), b) AS x", "the star is not possible here"),
        ("sum(a", r"'sum\(a' is not a list of aggregates: Expecting \)\. Line 1, Col: \d+\. Check its SQL"),
        ("sum(a) x sum(b)", "is not a list of aggregates: Invalid expression"),
        ("sum('a) AS x", "is not a list of aggregates"),
        ("", "is not just a list of aggregates"),
        ("sum(a) FROM t", "is not just a list of aggregates"),
        ("sum(a) WHERE b", "is not just a list of aggregates"),
        ("sum(a); sum(b)", "is not just a list of aggregates"),
        ("DISTINCT sum(a)", "is not just a list of aggregates"),
        ("sum(a) UNION SELECT 1", "is not just a list of aggregates"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(BacklogError, match=message) as refusal:
        parse_aggregates(text)
    assert "\x1b" not in str(refusal.value)
    assert len(str(refusal.value)) < 600


def test_names_are_unique_over_all_specs() -> None:
    with pytest.raises(BacklogError, match="same name: n, sum_a"):
        parse_aggregates("sum(a), count(*) AS n", Sum("a"), Max("b", name="n"))


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(BacklogError, match="No aggregate is given"):
        parse_aggregates()


# Expressions that another dialect would spell differently.
EXPRESSIONS = [
    "a * 2 + b % 3 - a div 2",
    "a / b",
    "s || '-' || cast(a as string)",
    "if(a > b, a, null)",
    "nvl(a, 0) + coalesce(b, 1)",
    "date_trunc('month', ts)",
    "date_add(d, 7)",
    "datediff(d, date'2020-01-01')",
    "ts + interval 1 hour",
    "timestampadd(HOUR, 1, ts)",
    "unix_timestamp(ts)",
    "to_date(s, 'yyyy-MM-dd')",
    "date_format(ts, 'yyyy-MM-dd HH:mm:ss')",
    "from_unixtime(a)",
    "regexp_extract(s, '(\\\\d+)-(\\\\d+)', 2)",
    "split(s, '-')[0]",
    "s rlike '^2' and s like '%0_'",
    "get_json_object(j, '$.x')",
    "m['k']",
    "element_at(array(a, b), 1)",
    "transform(array(a, b), x -> x + 1)[1]",
    "aggregate(array(a, b), 0L, (acc, x) -> acc + x)",
    "struct(a, b AS c)",
    "named_struct('x', a)",
    "try_cast(s as int)",
    "cast(a as decimal(10, 2)) / 3",
    "extract(year from d)",
    "substring(s, 1, 4)",
    "a is distinct from b",
    "a <=> b",
    "not (a between 1 and 3 or b in (1, 2))",
    "1.5BD + 2L + 3.5D",
    "`we``ird col` + 1",
    "hash(a, s), xxhash64(s)",
    "round(a / 7, 2)",
    "log(2, a + 1) + ln(a + 1)",
    "greatest(a, b) - least(a, b)",
    "array_contains(array(a), 1)",
    "size(split(s, '-'))",
    "concat_ws(',', s, s)",
    "case a when 1 then 'x' else 'y' end",
    "-a + ~b",
    "a & b | 3 ^ a",
    "trim(both ' ' from s)",
    "instr(s, '0') + locate('0', s)",
    "last_day(d)",
    "months_between(ts, d)",
    "add_months(d, 1)",
    "to_timestamp(s)",
    "percent = 1",
]


def test_an_argument_means_in_spark_what_was_written(spark: SparkSession) -> None:
    """The text goes through sqlglot and back; Spark must see the same expression, by type and by value."""
    frame = spark.sql(
        """SELECT 5 a, 2 b, '2020-02-10' s, date'2021-03-04' d, timestamp'2021-03-04 05:06:07' ts, '{"x": 1}' j,
        map('k', 1) m, 7 `we``ird col`, 1 percent"""
    )
    aggregates = [_first(f"first(({each})) AS r{index}") for index, each in enumerate(EXPRESSIONS)]
    written = frame.selectExpr(*(f"({each}) AS r{index}" for index, each in enumerate(EXPRESSIONS)))
    parsed = frame.selectExpr(*(f"({each.argument}) AS {each.name}" for each in aggregates))
    assert [field.dataType for field in parsed.schema] == [field.dataType for field in written.schema]
    assert parsed.first() == written.first()


def _first(text: str) -> Any:
    (found,) = parse_aggregates(text)
    return found


def test_parsed_aggregates_run(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    frame = spark.sql(
        "SELECT id % 2 AS k, id AS `order`, cast(id AS decimal(9, 2)) AS price, id % 3 AS qty FROM range(10)"
    )
    aggregates: list[Aggregate] = parse_aggregates(
        "sum(price * qty) AS revenue, count(*) FILTER (WHERE qty > 0) AS n, max_by(struct(*), price) AS dearest",
        "first(qty) AS f, collect_list(qty) FILTER (WHERE price > 4) AS l",
        order="order",
    )
    schema = frame.schema
    slots = [each.reduce(schema)[0].alias(each.name) for each in aggregates]
    results = [each.finish(schema, [F.col(each.name)]).alias(each.name) for each in aggregates]
    found = [
        row.asDict(recursive=True) for row in frame.groupBy("k").agg(*slots).select(*results).orderBy("f").collect()
    ]
    # Key 0 has the rows 0, 2, 4, 6, 8 and key 1 the rows 1, 3, 5, 7, 9.
    assert [{**row, "dearest": row["dearest"]["order"], "revenue": int(row["revenue"])} for row in found] == [
        {"revenue": 0 + 4 + 4 + 0 + 16, "n": 3, "dearest": 8, "f": 0, "l": [0, 2]},
        {"revenue": 1 + 0 + 10 + 7 + 0, "n": 3, "dearest": 9, "f": 1, "l": [2, 1, 0]},
    ]
