"""The statements of Nexmark, and the tables that they read: for ``bs.sql`` and for Spark, as a batch or as a stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import backlog_spark as bs
from benchmarks.nexmark_events import TIME, VIEWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DELAY", "QUERIES", "Query", "ours", "register_functions", "spark_views", "streams_of"]

DELAY = "4 seconds"
"""Of the watermark, as in the public DDL."""

_FOLDER = Path(__file__).parent / "nexmark_queries"


class Query(NamedTuple):
    """A query of the benchmark.

    Parameters
    ----------
    name : str
        ``q0`` to ``q23``.
    keys : int
        Of how many first columns a result has one row, which later rows replace, if it has no change types. 0: rows
        come once, or have change types.
    text : str
        For ``bs.sql``.
    spark, stream, flink : str
        For Spark's batch, Spark's streaming and Flink: the same, unless it has forms that they lack.
    tables : tuple of str
        The tables that it reads.
    is_compared : bool
        False if the result depends on the clock.
    """

    name: str
    keys: int
    text: str
    spark: str
    stream: str
    flink: str
    tables: tuple[str, ...]
    is_compared: bool = True

    @property
    def about(self) -> str:
        """What it asks."""
        return self.text.partition("\n")[0].removeprefix("-- ")


# Later rows of a key replace the former ones in these; their first columns are the key.
_KEYS = {"q4": 1, "q9": 1, "q15": 1, "q16": 2, "q17": 2, "q18": 2}


def _read(number: int) -> Query:
    text = (_FOLDER / f"q{number:02}.sql").read_text()
    tables = tuple(t for t in (*VIEWS, "side") if re.search(rf"\b(FROM|JOIN|TABLE) {t}\b", text))

    def variant(kind: str, otherwise: str) -> str:
        file = _FOLDER / f"q{number:02}.{kind}.sql"
        return file.read_text() if file.exists() else otherwise

    spark = variant("spark", text)
    texts = text, spark, variant("stream", spark), variant("flink", text)
    return Query(f"q{number}", _KEYS.get(f"q{number}", 0), *texts, tables, is_compared=number != 12)


QUERIES: Mapping[str, Query] = {query.name: query for query in map(_read, range(24))}


def register_functions(spark: SparkSession) -> None:
    """Make the function of query 14 known to the session."""
    spark.sql(
        "CREATE OR REPLACE TEMPORARY FUNCTION count_char(t STRING, c STRING) RETURNS BIGINT "
        "RETURN CAST(length(t) - length(replace(t, c, '')) AS BIGINT)"
    )


def _columns(view: str) -> list[str]:
    return [name if name == "dateTime" else f"{view}.{name} AS {name}" for name in VIEWS[view][1]]


def streams_of(events: bs.BacklogStream) -> dict[str, bs.BacklogStream]:
    """The views over a stream of events."""
    timed = events.map("event_type", "person", "auction", "bid", TIME).with_watermark("dateTime", DELAY)
    return {name: timed.filter(f"event_type = {kind}").map(*_columns(name)) for name, (kind, _) in VIEWS.items()}


def ours(spark: SparkSession, query: Query, events: bs.BacklogStream, side: DataFrame) -> bs.BacklogStream:
    """The result of a query as our stream.

    Raises
    ------
    SqlError
        The statement is not supported.
    """
    given: dict[str, bs.BacklogStream | DataFrame] = {**streams_of(events), "side": side}
    return bs.sql(spark, query.text, **{name: given[name] for name in query.tables})


def spark_views(events: DataFrame, side: DataFrame) -> None:
    """Make Spark's views over a DataFrame of events, a batch or a stream."""
    timed = events.selectExpr("*", TIME)
    if events.isStreaming:
        timed = timed.withWatermark("dateTime", DELAY)
    for name, (kind, _) in VIEWS.items():
        timed.where(f"event_type = {kind}").selectExpr(*_columns(name)).createOrReplaceTempView(name)
    side.createOrReplaceTempView("side")
