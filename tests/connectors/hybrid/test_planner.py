"""Batches over several phases, without a real source: their rows and flags."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.common.loopback import LoopbackServer
from backlog_spark.connectors.hybrid.offsets import HybridOffset
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.phases import Columns, Limit
from backlog_spark.connectors.hybrid.planner import HybridPlanner
from backlog_spark.connectors.hybrid.reader import HybridStreamReader
from backlog_spark.errors import BacklogError

from .numbers import Live, Numbers


def planner(*phases: Numbers) -> HybridPlanner:
    return HybridPlanner(phases, [f"{p.name}:numbers" for p in phases])


def rows(phases: tuple[Numbers, ...], start: HybridOffset, end: HybridOffset) -> list[int]:
    """The rows of a batch, planned by another process from Spark's log."""
    start, end = (HybridOffset.from_json(json.loads(json.dumps(o.to_json()))) for o in (start, end))
    found: list[int] = []
    for span in planner(*phases).spans(start, end):
        for partition in phases[span.phase].partitions(span.start, span.end):
            found += [n for batch in phases[span.phase].read(partition) for n in batch.column(0).to_pylist()]
    return found


def test_a_batch_ends_where_the_backlog_ends() -> None:
    phases = (Numbers("old", 0, 10), Live("live", 10))
    phases[1].end = 15
    plan = planner(*phases)
    first = plan.first()
    assert (first.is_processing_backlog, first.position) == (True, None)
    one = plan.next(first, Limit(6), 0)
    two = plan.next(one, Limit(6), 0)
    three = plan.next(two, Limit(6), 0)
    assert [rows(phases, a, b) for a, b in ((first, one), (one, two), (two, three))] == [
        list(range(6)), list(range(6, 10)), list(range(10, 15)),
    ]  # fmt: skip
    flags = [(o.is_backlog, o.is_processing_backlog, o.phase, o.rows, o.total) for o in (one, two, three)]
    assert flags == [(True, True, 0, 6, 10), (True, False, 1, 10, 10), (False, False, 1, 15, 10)]
    assert plan.next(three, Limit(6), 0) is three
    assert three.position is not None
    assert three.position["told"] == {"last": 9}


def test_several_phases_are_one_batch_if_all_of_the_backlog_is_asked_for() -> None:
    phases = (Numbers("a", 0, 10), Numbers("none", 10, 10), Numbers("b", 10, 25, 7), Live("live", 25))
    phases[3].end = 30
    plan = planner(*phases)
    first = plan.first()
    whole = plan.next(first, Limit(3), 0, whole_backlog=True)
    assert rows(phases, first, whole) == list(range(25))
    assert (whole.phase, whole.is_backlog, whole.is_processing_backlog, whole.total) == (3, True, False, 25)
    after = plan.next(whole, Limit(3), 0, whole_backlog=True)
    assert rows(phases, whole, after) == [25, 26, 27]
    assert not after.is_backlog


def test_an_unbounded_phase_that_is_far_behind_is_backlog_too() -> None:
    phases = (Numbers("old", 0, 10), Live("live", 10, threshold=5))
    phases[1].end = 40
    plan = planner(*phases)
    one = plan.next(plan.first(), Limit(12), 0)
    assert rows(phases, plan.first(), one) == list(range(12)), "both are backlog: a batch may hold of both"
    assert (one.is_backlog, one.is_processing_backlog) == (True, True)
    whole = plan.next(plan.first(), Limit(1), 0, whole_backlog=True)
    assert rows(phases, plan.first(), whole) == list(range(40))
    assert (whole.is_backlog, whole.is_processing_backlog) == (True, False)
    phases[1].end = 50
    later = plan.next(whole, Limit(0), 0)
    assert (later.is_processing_backlog, later.is_backlog, rows(phases, whole, later)) == (True, False, [])


def test_an_unbounded_phase_alone_fixes_where_it_begins_before_anything_is_there() -> None:
    phases = (Live("live", 7),)
    plan = planner(*phases)
    first = plan.first()
    assert not first.is_processing_backlog
    began = plan.next(first, Limit(5), 0)
    assert began.position is not None
    assert began != first
    assert rows(phases, first, began) == []
    phases[0].first_number, phases[0].end = 9, 9  # "latest" is elsewhere by now
    assert rows(phases, began, plan.next(began, Limit(5), 0)) == [7, 8]


def test_where_it_begins_is_fixed_though_its_rows_wait_for_the_backlog_of_others() -> None:
    answers = [True]
    server = LoopbackServer(lambda _: {"isProcessingBacklog": answers[0]})
    phases = (Live("live", 7),)
    token = f"{server.port}:{server.token}"
    options = HybridOptions(
        phases=(("live", "numbers"),), of_phase=({},), decoded=({},), during_backlog_ms=0, query_token=token
    )
    try:
        reader = HybridStreamReader(options, phases, Columns(pa.schema([("n", pa.int64())])))
        began = reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))
        phases[0].first_number, phases[0].end = 9, 9  # "latest" is elsewhere by now
        assert reader.latestOffset(began, ReadMaxRows(5)) is began
        answers[0] = False
        end = reader.latestOffset(began, ReadMaxRows(5))
    finally:
        server.close()
    assert rows(phases, HybridOffset.from_json(began), HybridOffset.from_json(end)) == [7, 8]


def test_bounded_phases_alone_come_to_an_end() -> None:
    """The flag is false from where the last one begins, also if that has an end (FLIP-309, "Update HybridSource")."""
    phases = (Numbers("a", 0, 3), Numbers("b", 3, 5))
    plan = planner(*phases)
    one = plan.next(plan.first(), Limit(4), 0)
    two = plan.next(one, Limit(1), 0)
    end = plan.next(two, Limit(4), 0)
    assert [rows(phases, a, b) for a, b in ((plan.first(), one), (one, two), (two, end))] == [[0, 1, 2], [3], [4]]
    flags = [(o.is_backlog, o.is_processing_backlog, o.is_finished) for o in (one, two, end)]
    assert flags == [(True, False, False), (False, False, False), (False, False, True)]
    assert plan.next(end, Limit(4), 0) is end


def test_a_single_bounded_phase_is_backlog_to_its_end() -> None:
    plan = planner(Numbers("a", 0, 3))
    one = plan.next(plan.first(), Limit(2), 0)
    end = plan.next(one, Limit(2), 0)
    flags = [(o.is_backlog, o.is_processing_backlog, o.is_finished) for o in (one, end)]
    assert flags == [(True, True, False), (True, False, True)]


def test_available_now_ends_where_the_phase_was_when_it_began() -> None:
    phases = (Numbers("old", 0, 4), Live("live", 4))
    phases[1].end = 6
    plan = planner(*phases)
    plan.until_now(plan.first())
    one = plan.next(plan.first(), Limit(100), 0)
    two = plan.next(one, Limit(1), 0)
    phases[1].end = 60
    three = plan.next(two, Limit(100), 0)
    assert rows(phases, one, three) == [4, 5]
    assert plan.next(three, Limit(100), 0) is three
    again = planner(*phases)
    again.until_now(three)
    assert rows(phases, three, again.next(three, Limit(100), 0)) == list(range(6, 60))


def test_a_checkpoint_of_other_phases() -> None:
    start = planner(Numbers("old", 0, 4), Live("live", 4)).first()
    with pytest.raises(BacklogError, match="about phases old:numbers, live:numbers; the query has live:numbers"):
        planner(Live("live", 4)).check(start)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=0, max_size=4),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20), st.booleans()), max_size=40),
    st.sampled_from([float("inf"), 0, 5]),
)
def test_every_row_once_and_in_batches_of_one_flag(
    bounded: list[tuple[int, int]], steps: list[tuple[int, int, bool]], threshold: float
) -> None:
    phases: list[Numbers] = []
    at = 0
    for count, step in bounded:
        phases.append(Numbers(f"p{len(phases)}", at, at + count, step))
        at += count
    live = Live("live", at, threshold)
    phases.append(live)
    offset = planner(*phases).first()
    found: list[int] = []
    for limit, more, whole in [*steps, (1, 0, True), (10**6, 0, True), (10**6, 0, True)]:
        live.end += more
        # A new planner each time: nothing but the offset is remembered.
        plan = planner(*phases)
        end = plan.next(offset, Limit(limit), 0, whole_backlog=whole)
        if offset.position is not None:
            assert end.is_backlog == offset.is_processing_backlog or end == offset
        if offset.phase < len(bounded) and end.phase == len(bounded) and threshold == float("inf"):
            assert offset.position is None or not end.is_processing_backlog
            assert rows(tuple(phases), offset, end) == list(range(len(found), at)), "it ends at the switch"
        found += rows(tuple(phases), offset, end)
        offset = end
    assert found == list(range(live.end))
    assert offset.rows == len(found)
