"""Random keyed queries: rows, begin and end of backlog, and the result of each kind of run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import backlog_spark as bs
from backlog_spark.decide.steps import Mode
from tests.operators.aggregates.test_aggregates import SCHEMA, random_rows

from .conftest import Collect, wait
from .scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KEYS", "Example", "key_names", "result", "tables"]

# Keys that are easy to confuse: NULL and "", 0.0 and -0.0, NaN and itself, a text and the same with spaces.
_TEXTS = ["", None, "a", "a ", "A", "ä", "a\u0308", "\U0001f600", "\x00", "0", "null", "a" * 300]
_NUMBERS = [0.0, -0.0, float("nan"), None, 1.5, float("-inf")]
_DECIMALS = [
    None,
    *map(Decimal, ("0", "-0.0000000001", "0.0000000001", "1", "-1", "9999999999999999999999999999", "-9999999999")),
]
KEYS: dict[str, tuple[str, list[Callable[[int], Any]]]] = {
    "null": ("k0 bigint", [lambda n: None if n % 3 else n]),
    "composite": (
        "k0 string, k1 decimal(10,2), k2 double",
        [lambda n: _TEXTS[n % 3], lambda n: Decimal(n % 2) / 4, lambda n: _NUMBERS[n % 6]],
    ),
    "string": ("k0 string", [lambda n: _TEXTS[n % 12]]),
    "decimal": ("k0 decimal(38,10)", [lambda n: _DECIMALS[n % 8]]),
}
"""Columns of each kind of key, and from a number below 12 to their values."""


def key_names(kind: str) -> list[str]:
    """The key's columns."""
    return [column.split()[0] for column in KEYS[kind][0].split(", ")]


@dataclass(frozen=True)
class Example:
    """A script for the source.

    Parameters
    ----------
    seed : int
        Of the rows and of where they are cut into batches.
    rows : int
    flags : tuple of bool
        Whether each batch is backlog. Batches may be empty.
    key : str
        One of `KEYS`.
    partitions : int
        Of the source.
    one_row : str
        "first" or "last": that batch has exactly one row, so that the switch is at the first or the last row of all.
    """

    seed: int
    rows: int
    flags: tuple[bool, ...]
    key: str
    partitions: int
    one_row: str = ""


def tables(spark: SparkSession, example: Example) -> list[pa.Table]:
    """The batches: rows of all types, in random order, cut at random places."""
    chance = random.Random(example.seed)
    columns, values = KEYS[example.key]
    data = [(*(value(row[0]) for value in values), *row[1:]) for row in random_rows(example.rows, example.seed)]
    chance.shuffle(data)
    schema = f"{columns}, {SCHEMA.partition(',')[2]}"
    whole = spark.createDataFrame(data, schema).toArrow()
    count = whole.num_rows
    fixed = {"first": [1], "last": [count - 1]}.get(example.one_row, [])
    low, high = (1, count) if example.one_row == "first" else (0, count - len(fixed))
    inner = [chance.randint(low, high) for _ in range(len(example.flags) - 1 - len(fixed))]
    cuts = [0, *sorted(fixed + inner), count]
    return [whole.slice(start, end - start) for start, end in pairwise(cuts)]


Stream = Callable[[bs.BacklogStream], bs.BacklogStream]


def result(
    spark: SparkSession, root: Path, example: Example, batches: list[pa.Table], operator: Stream, *, mixed: bool
) -> tuple[dict[Any, Any], list[str]]:
    """The final content of an upserting sink: with backlog in the sorted vehicle, or everything in the stream vehicle.

    The values of each key, and the names of the columns that they are in.
    """
    script, sink = root / "script", Collect()
    chain = operator(bs.source("scripted", name="s", path=script, partitions=example.partitions))

    def start(**trigger: Any) -> bs.BacklogQuery:
        made = (
            chain.write(f"{root.parent.name} {root.name}")
            .trigger(interval_during_backlog=0 if mixed else None, **trigger)
            .to(sink)
        )
        return made.option("checkpointLocation", str(root / "checkpoint")).start(spark)

    flagged = groupby(zip(example.flags, batches, strict=True), lambda pair: pair[0])
    stays = [(flag, [table for _, table in pairs]) for flag, pairs in flagged]
    # A first backlog and what follows are there from the start, and need no waiting for.
    at_once, later = (stays[:2], stays[2:]) if mixed else (stays, [])
    _add(script, at_once)
    if later:
        query = start(processing_time="50 ms")
        try:
            _add_later(query, root, script, at_once, later)
        finally:
            query.stop()
        assert query.exception() is None
    # Takes over what a last stay in backlog has left, and finds out that there is nothing more.
    if not later or later[-1][0]:
        query = start(available_now=True)
        try:
            assert query.awaitTermination(180), "the query did not end"
        finally:
            query.stop()
    keys = len(key_names(example.key))
    return sink.newest(keys), sink.schema.names[keys:]


Stay = tuple[bool, list[pa.Table]]


def _add(script: Path, stays: list[Stay]) -> int:
    for flag, batches in stays:
        for batch in batches:
            append(script, batch, backlog=flag)
    return sum(batch.num_rows for _, batches in stays for batch in batches)


def _add_later(query: bs.BacklogQuery, root: Path, script: Path, before: list[Stay], later: list[Stay]) -> None:
    """Return to backlog as often as the script says, and check that the sorted vehicle ran."""
    rows = sum(batch.num_rows for _, batches in before for batch in batches)
    for flag, batches in later:
        if flag:
            wait(lambda: query.mode is Mode.STREAM and query.backlogProgress.rows == rows, query)  # noqa: B023
            # The stream run learns of it by a batch, which it may take itself: this one has no rows.
            append(script, batches[0].slice(0, 0), backlog=True)
            wait(lambda: _in_sorted_vehicle(root), query)
        rows += _add(script, [(flag, batches)])
    wait(lambda: query.backlogProgress.rows == rows, query)
    if not later[-1][0]:
        wait(lambda: query.mode is Mode.STREAM, query)
        query.processAllAvailable()


def _in_sorted_vehicle(root: Path) -> bool:
    """Whether the present run is sorted, from the checkpoint's ledger."""
    while True:
        newest = max((root / "checkpoint" / "backlog").glob("plan-*.json"), key=lambda p: int(p.stem.partition("-")[2]))
        try:
            return bool(json.loads(newest.read_text())["runs"][-1][1] == "sorted")
        except FileNotFoundError:  # a newer one has taken its place
            continue
