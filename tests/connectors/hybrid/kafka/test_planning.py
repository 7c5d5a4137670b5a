"""Where the phase begins and where its batches end, on a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backlog_spark.connectors.hybrid.phases import Limit, Position
from backlog_spark.errors import BacklogError, SettingError

from .broker import ALL, Broker, read, step

T0 = 1_700_000_000_000


def _values(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["value"].decode() for row in rows)


def _offsets(position: Position) -> Any:
    return position["offsets"]


def test_begins_at_the_earliest_and_ends_at_the_latest(broker: Broker) -> None:
    topic = broker.topic(3)
    broker.send(topic, ["a", "b"], 0)
    broker.send(topic, ["c"], 2)
    phase = broker.phase(subscribe=topic)
    begin = phase.begin({})
    assert _offsets(begin) == {topic: {"0": 0, "1": 0, "2": 0}}
    found = step(phase, begin)
    assert _offsets(found.position) == {topic: {"0": 2, "1": 0, "2": 1}}
    assert (found.rows, found.is_finished, found.is_backlog, found.total) == (3, False, False, None)
    assert _values(read(phase, begin, found.position)) == ["a", "b", "c"]
    assert phase.first(found.position) == begin
    assert phase.first(begin) == begin
    # Nothing is new: the very same object, as Spark compares offsets as text.
    assert step(phase, found.position).position is found.position
    # The topic grows.
    broker.send(topic, ["d"], 1)
    more = step(phase, found.position)
    assert _values(read(phase, found.position, more.position)) == ["d"]
    assert phase.first(more.position) == begin


def test_an_empty_topic_has_nothing_and_then_something(broker: Broker) -> None:
    topic = broker.topic()
    phase = broker.phase(subscribe=topic)
    begin = phase.begin({})
    assert step(phase, begin).position is begin
    assert list(phase.partitions(begin, begin)) == []
    broker.send(topic, ["a"])
    found = step(phase, begin)
    assert (found.rows, _values(read(phase, begin, found.position))) == (1, ["a"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest"}, [0, 0]),
        ({"startingOffsets": "latest"}, [10, 5]),
        ({"startingOffsets": '{"TOPIC": {"0": 7, "1": -1}}'}, [7, 5]),
        ({"startingOffsets": '{"TOPIC": {"0": -2, "1": 5}}'}, [0, 5]),
        ({"startingTimestamp": str(T0 + 3)}, [3, 3]),
        ({"startingOffsetsByTimestamp": f'{{"TOPIC": {{"0": {T0 + 9}, "1": 0}}}}'}, [9, 0]),
        ({"startingTimestamp": str(T0 + 6), "startingOffsetsByTimestampStrategy": "latest"}, [6, 5]),
        # A time goes before the offsets, as in Spark.
        ({"startingTimestamp": str(T0 + 3), "startingOffsets": "latest"}, [3, 3]),
    ],
    ids=str,
)
def test_boundaries_to_begin(broker: Broker, options: dict[str, str], expected: list[int]) -> None:
    topic = broker.topic(2)
    broker.send(topic, map(str, range(10)), 0, at=T0)
    broker.send(topic, map(str, range(5)), 1, at=T0)
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    begin = broker.phase(subscribe=topic, **given).begin({})
    assert _offsets(begin) == {topic: {"0": expected[0], "1": expected[1]}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": str(T0 + 6)}, r"startingTimestamp = .*-1 has no record of that time or later"),
        ({"startingOffsets": '{"TOPIC": {"0": 7}}'}, r"startingOffsets = .*-1 is missing"),
        (
            {"startingOffsets": '{"TOPIC": {"0": 7, "1": 0, "2": 0}}'},
            r"startingOffsets = .*-2 is not read by this phase",
        ),
        ({"startingOffsets": '{"TOPIC": {"0": 11, "1": 0}}'}, r"startingOffsets = 11: .*-0 ends at 10"),
        ({"endingOffsets": '{"TOPIC": {"1": 3}}'}, r"endingOffsets = .*-0 is missing"),
    ],
    ids=str,
)
def test_missing_boundaries(broker: Broker, options: dict[str, str], expected: str) -> None:
    topic = broker.topic(2)
    broker.send(topic, map(str, range(10)), 0, at=T0)
    broker.send(topic, map(str, range(5)), 1, at=T0)
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(SettingError, match=expected):
        broker.phase(subscribe=topic, **given).begin({})


@pytest.mark.usefixtures("one_look")
def test_a_pattern_that_matches_no_topic(broker: Broker) -> None:
    topic = broker.topic()
    pattern = topic[1:]  # matches within the name, and not the name
    phase = broker.phase(subscribePattern=pattern)
    for look in (phase.check, lambda: phase.begin({})):
        with pytest.raises(SettingError, match=f"subscribePattern = '{pattern}': no topic of .* matches it"):
            look()
    assert _offsets(broker.phase(subscribePattern=pattern, allowEmpty="true").begin({})) == {}
    broker.phase(subscribePattern=f".{pattern}").check()


@pytest.mark.usefixtures("one_look")
def test_missing_topics(broker: Broker) -> None:
    topic = broker.topic()
    with pytest.raises(BacklogError, match=r"has no no-such-topic\. Create it, or correct subscribe"):
        broker.phase(subscribe=f"{topic}, no-such-topic").begin({})
    with pytest.raises(BacklogError, match="has no no-such-topic"):
        broker.phase(subscribe="no-such-topic").check()
    with pytest.raises(BacklogError, match=f"has no {topic}-4"):
        broker.phase(assign=json.dumps({topic: [0, 4]})).begin({})


def test_limit_is_shared_by_what_partitions_have(broker: Broker) -> None:
    topic = broker.topic(4)
    broker.send(topic, map(str, range(600)), 0)
    broker.send(topic, map(str, range(300)), 1)
    broker.send(topic, ["x"], 2)
    phase = broker.phase(subscribe=topic)
    begin = phase.begin({})
    found = step(phase, begin, rows=90)
    # 90 of 901: 59.9, 30.0 and 0.1, rounded up.
    assert _offsets(found.position) == {topic: {"0": 60, "1": 30, "2": 1, "3": 0}}
    assert found.rows == 91
    position, rows = begin, 0
    while (found := step(phase, position, rows=200)).position is not position:
        rows += len(read(phase, position, found.position))
        position = found.position
    assert rows == 901


def test_partitions_added_on_the_fly_are_read_from_their_first_record(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.send(topic, ["0"], 0)
    phase = broker.phase(subscribe=topic)
    begin = phase.begin({})
    one = step(phase, begin).position
    broker.add_partitions(topic, 22)
    for number in range(2, 22):
        broker.send(topic, [f"{number}-{i}" for i in range(3)], number)
    two = step(phase, one).position
    expected = sorted(f"{number}-{i}" for number in range(2, 22) for i in range(3))
    assert _values(read(phase, one, two)) == expected
    assert _values(read(phase, one, two)) == expected
    assert phase.first(two) == begin
    # Several batches as one, as when phases change within a batch.
    assert _values(read(phase, begin, two)) == sorted([*expected, "0"])
    assert step(phase, two).position is two


def test_pattern_takes_topics_that_come_later_and_no_internal_ones(broker: Broker) -> None:
    prefix = broker.topic()
    broker.commit(prefix, ["a"])  # makes __transaction_state
    phase = broker.phase(subscribePattern=f"{prefix}(-more)?|__.*")
    begin = phase.begin({})
    assert list(_offsets(begin)) == [prefix]
    one = step(phase, begin).position
    broker.topic(2, name=f"{prefix}-more")
    broker.topic(1, name=f"{prefix}-other")
    broker.send(f"{prefix}-more", ["b"], 1)
    two = step(phase, one).position
    assert list(_offsets(two)) == [prefix, f"{prefix}-more"]
    assert _values(read(phase, one, two)) == ["b"]


def test_assign_reads_its_partitions_only(broker: Broker) -> None:
    topic = broker.topic(3)
    for number in range(3):
        broker.send(topic, [str(number)], number)
    phase = broker.phase(assign=json.dumps({topic: [0, 2]}))
    begin = phase.begin({})
    broker.add_partitions(topic, 4)
    broker.send(topic, ["3"], 3)
    assert _values(read(phase, begin, step(phase, begin).position)) == ["0", "2"]


def test_last_stable_offset_is_the_end(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, ["a"])
    phase = broker.phase(subscribe=topic)
    careless = broker.phase(subscribe=topic, kafka__isolation__level="read_uncommitted")
    begin = phase.begin({})
    with broker.transaction(topic, ["b"], commit=True):
        broker.send(topic, ["c"])
        found = step(phase, begin).position
        assert _offsets(found) == {topic: {"0": 1}}
        assert _values(read(phase, begin, found)) == ["a"]
        seen = step(careless, begin).position
        assert _offsets(seen) == {topic: {"0": 3}}
        assert _values(read(careless, begin, seen)) == ["a", "b", "c"]
        # Who has read on by other rules waits for the transaction, and loses nothing.
        assert step(phase, seen).position is seen
    assert _values(read(phase, begin, step(phase, begin).position)) == ["a", "b", "c"]


def test_ending_offsets_bound_the_phase(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.send(topic, map(str, range(10)), 0, at=T0)
    broker.send(topic, map(str, range(5)), 1, at=T0)
    ending = json.dumps({topic: {"0": 4, "1": 7}})
    phase = broker.phase(subscribe=topic, endingOffsets=ending)
    assert phase.is_bounded is True
    assert broker.phase(subscribe=topic).is_bounded is False
    begin = phase.begin({})
    assert phase.target(begin) is None
    found = step(phase, begin)
    # Offset 6 of the second partition does not exist yet.
    assert (found.rows, found.is_finished, found.is_backlog, found.total) == (9, False, True, 11)
    broker.add_partitions(topic, 3)
    broker.send(topic, ["not part of it"], 2)
    broker.send(topic, ["5", "6", "7"], 1)
    last = step(phase, found.position)
    assert (last.rows, last.is_finished) == (2, True)
    assert [row["value"] for row in read(phase, found.position, last.position)] == [b"5", b"6"]
    again = step(phase, last.position)
    assert (again.position, again.is_finished) == (last.position, True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"endingOffsets": "latest"}, [10, 5]),
        ({"endingTimestamp": str(T0 + 7)}, [7, 5]),
        ({"endingOffsetsByTimestamp": f'{{"TOPIC": {{"0": {T0 + 1}, "1": {T0 + 4}}}}}'}, [1, 4]),
    ],
    ids=str,
)
def test_boundaries_to_end(broker: Broker, options: dict[str, str], expected: list[int]) -> None:
    topic = broker.topic(2)
    broker.send(topic, map(str, range(10)), 0, at=T0)
    broker.send(topic, map(str, range(5)), 1, at=T0)
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    phase = broker.phase(subscribe=topic, **given)
    begin = phase.begin({})
    broker.send(topic, ["later"], 0)
    found = step(phase, begin)
    assert found.is_finished
    assert _offsets(found.position) == {topic: {"0": expected[0], "1": expected[1]}}


def test_target_of_available_now_is_the_end_as_it_was(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.send(topic, map(str, range(10)), 0)
    phase = broker.phase(subscribe=topic)
    begin = phase.begin({})
    target = phase.target(begin)
    assert target is not None
    broker.send(topic, ["later"], 0)
    broker.add_partitions(topic, 3)
    broker.send(topic, ["later"], 2)
    found = phase.next_until(begin, target, Limit(6), 0)
    assert (found.rows, found.is_finished) == (6, False)
    last = phase.next_until(found.position, target, Limit(6), 0)
    assert (last.rows, last.is_finished) == (4, True)
    done = phase.next_until(last.position, target, ALL, 0)
    assert (done.position, done.is_finished) == (last.position, True)
    assert _values(read(phase, last.position, step(phase, last.position).position)) == ["later", "later"]


def test_begins_where_the_files_ended(broker: Broker) -> None:
    topic = broker.topic(3)
    broker.send(topic, map(str, range(10)), 0, at=T0)
    broker.send(topic, map(str, range(4)), 1, at=T0)
    options = {"subscribe": topic, "startingFrom": "lastFileTimestamp"}
    begin = broker.phase(**options).begin({"lastTimestamp": T0 + 6})
    # The second partition has nothing so new: it begins at its end. The third is empty.
    assert _offsets(begin) == {topic: {"0": 6, "1": 4, "2": 0}}
    begin = broker.phase(**options, startingOverlap="4 ms").begin({"lastTimestamp": T0 + 6})
    assert _offsets(begin) == {topic: {"0": 2, "1": 2, "2": 0}}
    # No file had a row.
    assert _offsets(broker.phase(**options).begin({})) == {topic: {"0": 0, "1": 0, "2": 0}}
    latest = broker.phase(**options, startingOffsets="latest").begin({})
    assert _offsets(latest) == {topic: {"0": 10, "1": 4, "2": 0}}
