"""Positions: their JSON is stable and defines a batch completely."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.kafka.backlog import Flag
from backlog_spark.connectors.hybrid.kafka.positions import KafkaPosition
from backlog_spark.errors import BacklogError

offsets = st.dictionaries(st.tuples(st.text(min_size=1, max_size=3), st.integers(0, 12)), st.integers(0, 2**62))
flags = st.builds(Flag, st.booleans(), st.integers(0, 2**50))
topics = st.dictionaries(st.text(min_size=1, max_size=3), st.text(max_size=3))


@st.composite
def positions(draw: st.DrawFn) -> KafkaPosition:
    dedup = draw(st.sampled_from(["", "s3://place/keys.parquet"]))
    dedup_ms = draw(st.none() | st.integers(0, 2**50)) if dedup else None
    first = KafkaPosition(
        draw(offsets),
        draw(topics),
        until=draw(st.none() | offsets),
        dedup=dedup,
        dedup_ms=dedup_ms,
        dedup_until=draw(offsets) if dedup and dedup_ms is None else {},
        flag=draw(flags),
    )
    return first.moved(draw(offsets), draw(topics), draw(offsets), draw(flags)) if draw(st.booleans()) else first


@given(positions())
def test_json_and_back(position: KafkaPosition) -> None:
    text = json.dumps(position.to_json())
    found = KafkaPosition.from_json(json.loads(text))
    assert found == position
    assert json.dumps(found.to_json()) == text
    assert found.first.to_json() == position.first.to_json()
    assert "first" not in found.first.to_json()


def test_the_json_is_sparks_and_in_order() -> None:
    position = KafkaPosition({("b", 0): 1, ("a", 10): 2, ("a", 9): 3}, {"b": "id b", "a": "id a"})
    assert json.dumps(position.to_json()) == (
        '{"version": 1, "offsets": {"a": {"9": 3, "10": 2}, "b": {"0": 1}}, "topics": {"a": "id a", "b": "id b"},'
        ' "isBacklog": false, "since": 0}'
    )


def test_a_move_to_the_same_position_is_none() -> None:
    start = KafkaPosition({("t", 0): 5}, {"t": "x"}, begin={("t", 0): 3}, flag=Flag(True, 1))
    assert start.moved({("t", 0): 5}, {"t": "x"}, {}, Flag(True, 1)) is start
    assert start.moved({("t", 0): 5}, {"t": "x"}, {}, Flag(False, 2)) != start
    assert start.moved({("t", 0): 6}, {"t": "x"}, {}, Flag(True, 1)).begin == {}


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (KafkaPosition({("t", 0): 9}, {"t": "x"}), 5),
        (KafkaPosition({("t", 0): 9}, {"t": "x"}, begin={("t", 0): 7}), 7),
        (KafkaPosition({("t", 0): 9}, {"t": "y"}), 0),
    ],
)
def test_where_a_batch_begins(end: KafkaPosition, expected: int) -> None:
    assert KafkaPosition({("t", 0): 5}, {"t": "x"}).start_of(end, ("t", 0)) == expected


def test_where_a_batch_begins_in_a_new_partition() -> None:
    end = KafkaPosition({("t", 0): 9, ("t", 1): 2}, {"t": "x"})
    assert KafkaPosition({("t", 0): 5}, {"t": "x"}).start_of(end, ("t", 1)) == 0


def test_a_position_of_something_else() -> None:
    with pytest.raises(BacklogError, match="position of Kafka in the checkpoint is damaged: KeyError 'offsets'"):
        KafkaPosition.from_json({"version": 1, "files": []})
