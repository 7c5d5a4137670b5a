"""Aggregates that count each value, against Spark's own over the remaining rows."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from backlog_spark.operators.aggregates import Avg, BoolAnd, BoolOr, CollectList, Count, First, Max, MaxBy, Min, Sum
from backlog_spark.operators.aggregates.counted import counted
from backlog_spark.operators.aggregates.signed import SIGN
from backlog_spark.state.tables import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = dt.date(2026, 1, 1)
VALUES: dict[str, list[Any]] = {
    "double": [None, 0.5, -0.0, 0.0, 2.0**70, -(2.0**70), 1.0, math.inf, -math.inf, math.nan],
    "float": [None, 0.5, -1.5, 3.0],
    "string": [None, "", "a", "ä", "z"],
    "binary": [None, b"", b"\xff", b"a"],
    "boolean": [None, True, False],
    "bigint": [None, -(2**63), 0, 2**63 - 1],
    "decimal(38,2)": [None, Decimal("-0.01"), Decimal("9" * 36), Decimal(0)],
    "date": [None, DAY, DAY - dt.timedelta(30000)],
    "timestamp": [None, *(dt.datetime(2026, 1, 1, microsecond=n) for n in (0, 1, 999999))],
    "struct<a:int,b:string>": [None, (1, None), (1, "x"), (None, "x"), (2, "")],
}


def changes(random: random.Random, values: list[Any]) -> tuple[list[Any], list[tuple[str, Any, int]]]:
    """The remaining rows, and all changes. A row may be retracted before it comes."""
    left, made = [], []
    for key in "abc":
        for _ in range(random.randrange(12)):
            value = random.choice(values)
            rounds = random.randrange(3)
            made += [(key, value, 1), (key, value, -1)] * rounds
            if random.random() < 0.6:
                left.append((key, value))
                made.append((key, value, 1))
    random.shuffle(made)
    return left, made


@pytest.mark.parametrize("kind", VALUES)
def test_aggregates_of_the_remaining_rows(spark: SparkSession, kind: str) -> None:
    """Counted by Spark in one and in two steps, and in a worker batch by batch."""
    seeded = random.Random(kind)
    left, made = changes(seeded, VALUES[kind])
    while not any(value is not None for _, value in left):
        left, made = changes(seeded, VALUES[kind])
    given = spark.createDataFrame(made, f"k string, v {kind}, {SIGN} int")
    inner: list[Any] = [Min("v", name="least"), Max("v", name="greatest")]
    if kind == "boolean":
        inner += [BoolAnd("v", name="every"), BoolOr("v", name="some", where="k <> 'a'")]
    if kind in ("double", "float"):
        inner += [Sum("v", name="total"), Avg("v", name="mean")]
    own = ", ".join(f"{each} AS {each.name}" for each in inner)
    there = spark.createDataFrame(left, "k string, v " + kind)
    expected = spark.sql(f"SELECT k, {own} FROM {{there}} GROUP BY k", there=there).collect()

    aggregates = [counted(each) for each in inner]
    slots = [each.slots(given.schema)[0] for each in aggregates]
    names = [f"s{i}" for i in range(len(inner))]
    results = [
        each.finish(given.schema, [F.col(name)]).alias(each.name) for each, name in zip(aggregates, names, strict=True)
    ]

    def reduced(rows: Any) -> Any:
        made = [each.reduce(given.schema)[0].alias(name) for each, name in zip(aggregates, names, strict=True)]
        return rows.groupBy("k").agg(*made)

    once = reduced(given)
    assert seen(once.select("k", *results).collect(), left) == seen(expected, left)

    first, second = (reduced(given.where(condition)) for condition in ("rand(1) < 0.5", "NOT rand(1) < 0.5"))
    both = first.withColumnsRenamed({name: f"l{name}" for name in names}).join(
        second.withColumnsRenamed({name: f"r{name}" for name in names}), "k", "full"
    )
    merged = [
        each.merge(given.schema, [F.col(f"l{name}")], [F.col(f"r{name}")])[0].alias(name)
        for each, name in zip(aggregates, names, strict=True)
    ]
    assert seen(both.select("k", *merged).select("k", *results).collect(), left) == seen(expected, left)

    lifted = given.select("k", *(a.lift(given.schema)[0].alias(n) for a, n in zip(aggregates, names, strict=True)))
    table = lifted.toArrow().combine_chunks()
    state = table.slice(0, 0)
    for start in range(0, table.num_rows, 7):
        state = pa.concat_tables([state, table.slice(start, 7)]).sort_by("k").combine_chunks()
        keys = np.array(state["k"].to_pylist())
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        columns = [
            each.merge_groups([pa.concat_arrays(state[name].chunks)], starts)[0]
            for each, name in zip(aggregates, names, strict=True)
        ]
        state = pa.table({"k": pa.array(keys[starts]), **dict(zip(names, columns, strict=True))})
    for each, name, slot in zip(aggregates, names, slots, strict=True):
        wanted = arrow_schema(spark.createDataFrame([], f"s {slot.simpleString()}").schema)
        assert state.schema.field(name).type == wanted.field(0).type
        for key, entries in zip(state["k"].to_pylist(), state[name].to_pylist(), strict=True):
            numbers = Counter(repr(e["value"]) for e in entries or [])
            assert all(e["number"] > 0 for e in entries or []), "what has come and gone leaves nothing"
            assert max(numbers.values(), default=1) == 1, (each, key)
    finished = spark.createDataFrame(state).select("k", *results)
    assert seen(finished.collect(), left) == seen(expected, left)


def seen(rows: list[Any], left: list[Any]) -> dict[str, str]:
    """Rows by key, of the keys that have rows; -0.0 is 0.0."""
    keys = {key for key, _ in left}
    return {row["k"]: repr([0.0 if v == 0 else v for v in row[1:]]) for row in rows if row["k"] in keys}


def test_what_takes_more_than_values_is_left_to_others() -> None:
    for each in (Count(), First("v", order="t"), MaxBy("v", "t"), CollectList("v")):
        assert counted(each) is None
