"""Every keyed operator with random rows and a random switch: one batch, backlog then stream, and stream agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import backlog_spark as bs
from backlog_spark.operators.aggregates import ApproxCountDistinct
from tests.operators.aggregates.test_aggregates import COLLECTED, EXTREMES, NUMBERS, PICKED, Case, close

from .conftest import plain
from .grid import KEYS, Example, key_names, result, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Exact for the few values that these columns have.
DISTINCT: list[Case] = [
    (ApproxCountDistinct("few"), "count(distinct few)"),
    (ApproxCountDistinct("s", where="t", name="texts"), "count(distinct s) filter (where t)"),
]
FAMILIES = {"numbers": NUMBERS, "extremes": EXTREMES, "picked": PICKED, "collected": [*COLLECTED, *DISTINCT]}


@dataclass(frozen=True)
class Operator:
    """A keyed operator and the same in Spark SQL.

    Parameters
    ----------
    name : str
    apply : callable
        From the keyed stream to the operator's output.
    columns : dict of str to str
        The results' names, in order, and Spark's aggregate expressions that they equal.
    order : str, optional
        Given to ``key_by``, by the operators whose result is a row: the declared aggregates name theirs themselves.
    """

    name: str
    apply: Callable[[bs.KeyedStream], bs.BacklogStream]
    columns: dict[str, str]
    order: str | None = None

    def __repr__(self) -> str:
        return self.name


def aggregates(name: str, cases: list[Case]) -> Operator:
    """Declared aggregates in one operator, under names that are all different."""
    renamed = [(replace(aggregate, name=f"a{number}"), sql) for number, (aggregate, sql) in enumerate(cases)]
    declared = [aggregate for aggregate, _ in renamed]
    return Operator(
        name,
        lambda keyed: keyed.aggregate(*declared, name="all"),
        {aggregate.name: sql for aggregate, sql in renamed},
    )


def picked(function: str, by: str, last: bool) -> Operator:
    """`min_by` and `max_by`: the row's columns other than the key's, of which a few are compared."""
    latest = {("min_by", False): "seq", ("min_by", True): "-seq", ("max_by", False): "-seq", ("max_by", True): "seq"}
    names = ["seq", *OTHERS]
    rows = f"{function}(struct({', '.join(map(_quoted, names))}), struct({by}, {latest[function, last]}))"
    condition = f" filter (where {by} is not null)"
    return Operator(
        f"{function}({by}, last={last})",
        lambda keyed: getattr(keyed, function)(by, last=last),
        {name: f"({rows}{condition}).{_quoted(name)}" for name in names},
        order="seq",
    )


def single(function: str, column: str = "") -> Operator:
    """`sum`, `min`, `max` and `count`."""
    if not column:
        return Operator(function, lambda keyed: keyed.count(), {"count": "count(*)"})
    return Operator(
        f"{function}({column})",
        lambda keyed: getattr(keyed, function)(column),
        {column: f"{function}({_quoted(column)})"},
    )


def newest_with_total(a: Any, b: Any) -> Any:
    """The row with the greatest seq, with the sum of i64."""
    known = [row.i64 for row in (a, b) if row.i64 is not None]
    return (a if a.seq > b.seq else b)._replace(i64=sum(known) if known else None)


class Sum(bs.AggregateFunction):
    """As ``sum(i64)``."""

    accumulator = "long"
    output = "total long"

    def create_accumulator(self) -> None:
        return None

    def add(self, row: Any, accumulator: int | None) -> int | None:
        return self.merge(row.i64, accumulator)

    def merge(self, one: int | None, other: int | None) -> int | None:
        known = [value for value in (one, other) if value is not None]
        return sum(known) if known else None

    def get_result(self, accumulator: int | None) -> int | None:
        return accumulator


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# Of all kinds that Arrow keeps: numbers, texts, bytes, times, structs, maps and lists.
OTHERS = ["i8", "big", "f32", "odd", "d38", "s", "b", "t", "d", "ts", "ntz", "iv", "st", "m", "l", "a b`c"]
REDUCE = Operator(
    "reduce",
    lambda keyed: keyed.reduce(newest_with_total),
    {"seq": "max(seq)", "i64": "sum(i64)", **{name: f"max_by({_quoted(name)}, seq)" for name in OTHERS}},
)
FUNCTION = Operator("function", lambda keyed: keyed.aggregate(Sum()), {"total": "sum(i64)"})
PICKS = [
    picked(function, by, last) for function, by in (("min_by", "few"), ("max_by", "odd")) for last in (False, True)
]
SINGLES = [single("sum", "d18"), single("min", "st"), single("max", "b"), single("count")]


def check(spark: SparkSession, root: Path, example: Example, operator: Operator) -> None:
    """Run the three ways and compare the final result of every key."""
    from pyspark.sql import functions as F

    keys = key_names(example.key)
    batches = tables(spark, example)

    def run(name: str, mixed: bool) -> tuple[dict[Any, Any], list[str]]:
        def applied(source: bs.BacklogStream) -> bs.BacklogStream:
            return operator.apply(source.key_by(*keys, order=operator.order))

        return result(spark, root / name, example, batches, applied, mixed=mixed)

    # Side by side, as each waits more than it works.
    with ThreadPoolExecutor(2) as both:
        ways = {name: both.submit(run, name, mixed) for name, mixed in (("mixed", True), ("stream", False))}
        # In one chunk: Spark 4.2 takes an empty one, of an empty batch, for the end of the table.
        rows = spark.createDataFrame(pa.concat_tables(batches).combine_chunks())
        own = rows.groupBy(*keys).agg(*(F.expr(sql).alias(name) for name, sql in operator.columns.items()))
        collected = [tuple(row) for row in own.collect()]
    wanted = {plain(row[: len(keys)]): row[len(keys) :] for row in collected}
    for way, future in ways.items():
        found, names = future.result()
        assert found.keys() == wanted.keys(), way
        if operator.order:
            assert names == [name for name in rows.columns if name not in keys], "a whole row, without its key twice"
        for name, sql in operator.columns.items():
            at = list(operator.columns).index(name)
            for key, row in wanted.items():
                value = found[key][names.index(name)]
                assert close(value, row[at]), (way, sql, key, value, row[at])


def two_of_each() -> list[Case]:
    """Two declared aggregates of each class, and those that take the last of equal rows."""
    seen: Counter[type] = Counter()
    found = []
    for case in chain(*FAMILIES.values()):
        seen[type(case[0])] += 1
        if seen[type(case[0])] <= 2 or getattr(case[0], "last", False):
            found.append(case)
    return found


# Between them: a switch, none, and a stay after live rows up to the last row; NULL among the keys; 1, 2, 5 partitions.
SAMPLE = [
    (Example(1, 160, (True, True, False), "composite", 2), aggregates("aggregates", two_of_each())),
    pytest.param(Example(3, 120, (False, True, False), "decimal", 5, "last"), REDUCE, marks=pytest.mark.grid),
    pytest.param(Example(4, 120, (False, True, False), "composite", 2), FUNCTION, marks=pytest.mark.grid),
]


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize(("example", "operator"), SAMPLE, ids=str)
def test_a_sample(spark: SparkSession, tmp_path: Path, example: Example, operator: Operator) -> None:
    check(spark, tmp_path, example, operator)


def flags(least: int) -> st.SearchStrategy[list[bool]]:
    return st.lists(st.booleans(), min_size=least, max_size=6)


@st.composite
def examples(draw: st.DrawFn) -> Example:
    """Any script. Scripts with one switch, at the very first or last row, are more frequent."""
    where = draw(st.sampled_from(["", "", "", "first", "last"]))
    number = draw(st.integers(1, 4))
    script = {"first": [True] + [False] * number, "last": [True] * number + [False]}.get(where) or draw(flags(1))
    return Example(
        seed=draw(st.integers(0, 2**32)),
        rows=draw(st.integers(len(script), 200)),
        flags=tuple(script),
        key=draw(st.sampled_from(sorted(KEYS))),
        partitions=draw(st.sampled_from([1, 2, 5])),
        one_row=where,
    )


OPERATORS = [*(aggregates(*family) for family in FAMILIES.items()), *PICKS, *SINGLES, REDUCE, FUNCTION]


@pytest.mark.grid
@pytest.mark.parametrize("operator", OPERATORS, ids=str)
# No shrinking: an example takes seconds, and says all that is needed to run it again.
@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(example=examples())
def test_any_script(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, operator: Operator, example: Example
) -> None:
    note(f"{example!r}, {operator!r}")
    check(spark, tmp_path_factory.mktemp("grid"), example, operator)
