"""The statements of Nexmark, part backlog and part live, equal Spark's batch; and the events have their proportions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.model.changes import CHANGE_TYPE
from benchmarks import nexmark_events as made
from benchmarks.nexmark_jobs import QUERIES, Query, ours, register_functions, spark_views
from tests.operators.conftest import Collect
from tests.operators.events import multiset, run

from .test_results import known, left_over, settled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTS = (0, 8_000, 16_000, 24_000)
"""Numbers of the first events of each part: so the windows of ten seconds are several."""

OF_A_PART = 1_000
BACKLOG = 2


def parts(spark: SparkSession) -> list[pa.Table]:
    """The events of each part, and one that ends all windows."""
    found = [made.events(spark, OF_A_PART, first, files=1).toArrow() for first in STARTS]
    last = spark.createDataFrame([(made.flush(STARTS[-1]).decode(),)], "value STRING")
    return [
        *found,
        last.selectExpr(f"from_json(value, '{made.EVENT}') AS e").select("e.*").toArrow().cast(found[0].schema),
    ]


def state_of(query: Query) -> Any:
    """What is left of the rows that came."""

    def found(sink: Collect) -> Counter[Any]:
        if not sink.batches:
            return Counter()
        if CHANGE_TYPE in sink.schema.names:
            return left_over(sink)
        if query.keys:
            return multiset((*key, *rest) for key, rest in sink.newest(query.keys).items())
        return multiset(row for batch in sink.batches.values() for row in batch)

    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) for name in ("q4", "q8", "q18")]
    + [pytest.param(name, marks=pytest.mark.grid) for name in QUERIES if name not in ("q4", "q8", "q12", "q18")],
)
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_statements_equal_a_batch(spark: SparkSession, tmp_path: Path, name: str) -> None:
    query = QUERIES[name]
    register_functions(spark)
    given = {"events": parts(spark)}
    spark_views(spark.createDataFrame(pa.concat_tables(given["events"]), made.EVENT), made.side_input(spark))
    expected = multiset(spark.sql(query.spark).collect())
    assert expected
    known(tmp_path, given)
    events = bs.source("scripted", name="events", path=tmp_path / "events", partitions=2)
    stream = ours(spark, query, events, made.side_input(spark))
    state = state_of(query)
    sink = run(spark, tmp_path, stream, given, BACKLOG, Counter(), check=settled(state, expected))
    assert state(sink) == expected


def test_the_events_are_a_function_of_their_number(spark: SparkSession) -> None:
    whole = made.events(spark, 1_500, files=2).toArrow()
    assert whole.slice(700, 500).equals(made.events(spark, 500, 700, files=3).toArrow())


def test_the_events_have_the_proportions_of_nexmark(spark: SparkSession) -> None:
    table = made.events(spark, 20_000, 100_000, files=2).toArrow().to_pylist()
    kinds = Counter(row["event_type"] for row in table)
    assert kinds == {0: 400, 1: 1_200, 2: 18_400}
    names = ("person", "auction", "bid")
    assert all([name for name in names if row[name] is not None] == [names[row["event_type"]]] for row in table)
    times = [row[names[row["event_type"]]]["dateTime"].timestamp() for row in table]
    assert sorted(round(at * 1000) for at in times) == list(range(made.BASE_MS + 100_000, made.BASE_MS + 120_000))
    late = max(max(times[: at + 1]) - times[at] for at in range(0, len(times), 100))
    assert 0.5 < late < 1
    people, auctions, bids = ([row[name] for row in table if row[name] is not None] for name in names)
    assert sorted(row["id"] for row in people) == list(range(3_000, 3_400))
    assert sorted(row["id"] for row in auctions) == list(range(7_000, 8_200))
    hot = sum(row["seller"] % 100 == 0 for row in auctions) / len(auctions)
    assert hot == pytest.approx(0.75, abs=0.05)
    assert sum(row["bidder"] % 100 == 1 for row in bids) / len(bids) == pytest.approx(0.75, abs=0.03)
    assert sum(row["auction"] % 100 == 0 for row in bids) / len(bids) == pytest.approx(0.5, abs=0.03)
    prices = sorted(row["price"] for row in bids)
    assert prices[0] >= 100
    assert prices[-1] <= 100_000_000
    assert 80_000 < prices[len(prices) // 2] < 125_000  # the middle of 10^2 and 10^8
    assert sum(not row["channel"].startswith("channel-") for row in bids) / len(bids) == pytest.approx(0.5, abs=0.03)
    assert {row["channel"] for row in bids} > {"Apple", "Baidu", "Facebook", "Google"}
    channels = {row["channel"]: row["url"] for row in bids if row["channel"].startswith("channel-")}
    assert sum("&channel_id=" in url for url in channels.values()) / len(channels) == pytest.approx(0.9, abs=0.02)
    for rows, size, fixed in ((people, 200, 60), (auctions, 500, 110), (bids, 100, 32)):
        assert sum(len(row["extra"]) for row in rows) / len(rows) == pytest.approx(size - fixed, rel=0.03)
    assert all(0 < (row["expires"] - row["dateTime"]).total_seconds() <= 3.4 for row in auctions)


def test_the_flush_is_in_no_view(spark: SparkSession) -> None:
    event = spark.createDataFrame([(made.flush(10).decode(),)], "value STRING").selectExpr(
        f"from_json(value, '{made.EVENT}') AS e"
    )
    spark_views(event.select("e.*"), made.side_input(spark))
    assert [spark.table(name).count() for name in made.VIEWS] == [0, 0, 0]
    row = event.select("e.*").selectExpr(made.TIME, "event_type").first()
    assert row is not None
    assert row[0].isoformat() == "2026-01-02T00:00:00.010000"


def test_there_is_a_statement_for_each_query() -> None:
    assert list(QUERIES) == [f"q{number}" for number in range(24)]
    assert {name: query.tables for name, query in QUERIES.items() if len(query.tables) != 1} == {
        **dict.fromkeys(("q4", "q6", "q9", "q20"), ("auction", "bid")),
        **dict.fromkeys(("q3", "q8"), ("person", "auction")),
        "q13": ("bid", "side"),
        "q23": ("person", "auction", "bid"),
    }
    assert all(query.about.endswith(".") for query in QUERIES.values())
