"""No gap between earlier phases and the topic, if records are removed or written, or topics created, in between."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.kafka.phase import KafkaPhase
from backlog_spark.connectors.hybrid.kafka.pinned_offsets import Pin
from backlog_spark.connectors.hybrid.offsets import HybridOffset
from backlog_spark.connectors.hybrid.phases import Columns, Limit, Position
from backlog_spark.connectors.hybrid.planner import HybridPlanner
from backlog_spark.errors import BacklogError

from .broker import Broker, read, step

T0 = 1_700_000_000_000
DAY = 86_400_000
FROM_FILES = {"startingFrom": "lastFileTimestamp"}


def _pinned(broker: Broker, topic: str, **options: str) -> tuple[KafkaPhase, KafkaPhase, Any]:
    """A strict and a lenient phase, and the pin as read back from the log."""
    strict = broker.phase(subscribe=topic, **options)
    lenient = broker.phase(subscribe=topic, failOnDataLoss="false", **options)
    return strict, lenient, json.loads(json.dumps(strict.pin()))


def _values(phase: KafkaPhase, begin: Position) -> list[str]:
    return [row["value"].decode() for row in read(phase, begin, step(phase, begin).position)]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "spark.connectors." in r.name and r.levelno == logging.WARNING]


def test_pins_are_kept_as_text() -> None:
    pin = Pin({("t", 0): 3}, {("t", 0): 5}, {"t": "id"}, T0)
    assert Pin.from_json(json.loads(json.dumps(pin.to_json()))) == pin


def test_retention_while_files_are_read_is_noticed(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = broker.topic(2)
    broker.send(topic, map(str, range(10)), 0)
    broker.send(topic, ["x"], 1)
    strict, lenient, pin = _pinned(broker, topic)
    assert strict.begin({"pinned": pin})["offsets"] == {topic: {"0": 0, "1": 0}}
    broker.remove_before(topic, 4)
    with pytest.raises(BacklogError, match=f"Records of {topic}-0 are lost: the next offset is 0.* the earliest is 4"):
        strict.begin({"pinned": pin})
    begin = lenient.begin({"pinned": pin})
    assert _values(lenient, begin) == ["4", "5", "6", "7", "8", "9", "x"]
    assert len(_warnings(caplog)) == 1
    # What was gone when the query first started was never asked for.
    assert strict.begin({"pinned": strict.pin()})["offsets"] == {topic: {"0": 4, "1": 0}}


def test_latest_is_where_the_topic_ended_when_the_query_first_started(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, ["old"])
    strict, _, pin = _pinned(broker, topic, startingOffsets="latest")
    broker.send(topic, ["while files were read"])
    begin = strict.begin({"pinned": pin})
    assert _values(strict, begin) == ["while files were read"]
    broker.remove_before(topic, 2)
    with pytest.raises(BacklogError, match="the next offset is 1"):
        strict.begin({"pinned": pin})


@pytest.mark.parametrize("starting", ["earliest", "latest", '{"TOPIC": {"0": 1, "1": -1}}', "lastFileTimestamp"])
def test_partitions_added_meanwhile_are_read_whole(broker: Broker, starting: str) -> None:
    topic = broker.topic(2)
    broker.send(topic, ["0", "1"], 0, at=T0)
    given = FROM_FILES if starting in FROM_FILES.values() else {"startingOffsets": starting.replace("TOPIC", topic)}
    strict, lenient, pin = _pinned(broker, topic, **given)
    broker.add_partitions(topic, 4)
    broker.send(topic, ["later", "too"], 3, at=T0 - DAY)  # the time says otherwise
    before = {"pinned": pin, "lastTimestamp": T0 + 1}
    begin = strict.begin(before)
    first = {"earliest": 0, "latest": 2}.get(starting, 1)
    assert begin["offsets"] == {topic: {"0": first, "1": 0, "2": 0, "3": 0}}
    broker.remove_before(topic, 1, 3)
    with pytest.raises(BacklogError, match=f"{topic}-3 are lost: the next offset is 0.*it is new"):
        strict.begin(before)
    assert lenient.begin(before)["offsets"][topic]["3"] == 1


def test_an_end_by_offsets_leaves_out_partitions_that_came_meanwhile(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, ["a", "b", "c"])
    strict, _, pin = _pinned(broker, topic, endingOffsets=json.dumps({topic: {"0": 2}}))
    broker.add_partitions(topic, 2)
    broker.send(topic, ["later"], 1)
    begin = strict.begin({"pinned": pin})
    assert _values(strict, begin) == ["a", "b"]
    assert step(strict, step(strict, begin).position).is_finished


def test_a_topic_that_was_recreated_meanwhile(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = broker.topic()
    broker.send(topic, ["0"], at=T0)
    for options in ({}, FROM_FILES):
        strict, lenient, pin = _pinned(broker, topic, **options)
        broker.delete(topic)
        broker.topic(name=topic)
        broker.send(topic, ["new"], at=T0 + 1)
        before = {"pinned": pin, "lastTimestamp": T0}
        with pytest.raises(BacklogError, match="the topic was deleted and recreated"):
            strict.begin(before)
        assert _values(lenient, lenient.begin(before)) == ["new"]


def test_the_log_no_longer_goes_back_to_where_the_files_end(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = broker.topic(3)
    broker.send(topic, map(str, range(6)), 0, at=[T0 + day * DAY for day in range(6)])
    broker.send(topic, ["0", "5"], 1, at=[T0, T0 + 5 * DAY])
    strict, lenient, pin = _pinned(broker, topic, **FROM_FILES)
    before = {"pinned": pin, "lastTimestamp": T0 + DAY}
    # Nothing is wrong as long as there is one that is older.
    assert strict.begin(before)["offsets"] == {topic: {"0": 1, "1": 1, "2": 0}}
    broker.remove_before(topic, 4, 0)
    with pytest.raises(BacklogError) as caught:
        strict.begin(before)
    assert (
        f"Records of {topic}-0 from 2023-11-15T22:13:20.000Z to 2023-11-18T22:13:20.000Z (offset 4) may be lost"
        in str(caught.value)
    )
    assert "failOnDataLoss=false" in str(caught.value)
    begin = lenient.begin(before)
    assert begin["offsets"] == {topic: {"0": 4, "1": 1, "2": 0}}
    assert [topic in text for text in _warnings(caplog)] == [True]
    # So it is if it had gone before the query first started, and if nothing is left.
    broker.remove_before(topic, 2, 1)
    broker.remove_before(topic, 6, 0)
    for pinned in ({"pinned": strict.pin()}, {}):
        with pytest.raises(BacklogError, match=r"from 2023-11-15T22:13:20.000Z to now may be lost"):
            strict.begin({**before, **pinned})
    # The overlap is a time from which all is wanted.
    other = broker.topic()
    broker.send(other, ["0", "1"], at=[T0, T0 + DAY])
    broker.remove_before(other, 1)
    for overlap in ("0 s", "1 hour"):
        phase = broker.phase(subscribe=other, startingOverlap=overlap, **FROM_FILES)
        with pytest.raises(BacklogError, match="may be lost"):
            phase.begin({"lastTimestamp": T0 + DAY - 1})


def test_a_starting_time_is_looked_up_as_if_the_query_had_just_started(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, map(str, range(6)), at=T0)
    broker.remove_before(topic, 2)
    strict, _, pin = _pinned(broker, topic, startingTimestamp=str(T0))
    assert strict.begin({"pinned": pin})["offsets"] == {topic: {"0": 2}}
    broker.remove_before(topic, 3)
    with pytest.raises(BacklogError, match=f"{topic}-0 from .* may be lost"):
        strict.begin({"pinned": pin})
    late = broker.phase(subscribe=topic, startingTimestamp=str(T0 + 4))
    assert late.begin({"pinned": pin})["offsets"] == {topic: {"0": 4}}


def test_a_row_of_the_future_does_not_skip_the_topic(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = broker.topic()
    now = int(time.time() * 1000)
    broker.send(topic, ["0", "1", "2"], at=[now - DAY, now - 3_600_000, now - 1000])
    options = {**FROM_FILES, "startingOverlap": "2 hours"}
    strict, lenient, pin = _pinned(broker, topic, **options)
    before = {"pinned": pin, "lastTimestamp": 4_070_908_800_000}
    with pytest.raises(
        BacklogError, match=r"is of 2099-01-01T00:00:00.000Z. That was in the future .* startingTimestamp"
    ):
        strict.begin(before)
    assert lenient.begin(before)["offsets"] == {topic: {"0": 1}}
    assert ["2099-01-01" in text for text in _warnings(caplog)] == [True]
    # As the error says: a time of the user's, on the same checkpoint.
    other = broker.phase(subscribe=topic, startingTimestamp=str(now - 10_000))
    assert other.begin(before)["offsets"] == {topic: {"0": 2}}


def test_what_came_since_the_first_start_is_read_whatever_its_time(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, ["0", "1"], at=T0)
    strict, _, pin = _pinned(broker, topic, **FROM_FILES)
    broker.send(topic, ["late", "later"], at=T0 - DAY)
    begin = strict.begin({"pinned": pin, "lastTimestamp": T0 + 10})
    assert _values(strict, begin) == ["late", "later"]
    broker.remove_before(topic, 3)
    with pytest.raises(BacklogError, match="lost: the next offset is 2, the earliest is 3"):
        strict.begin({"pinned": pin, "lastTimestamp": T0 - 2 * DAY})


def test_files_that_are_written_while_the_first_ones_are_read_come_from_the_topic_alone(
    broker: Broker, tmp_path: Path
) -> None:
    topic, first_ms = broker.topic(), int(time.time() * 1000) - 10_000
    common = {"metadataLocation": str(tmp_path / "meta"), "timestampColumn": "at"}
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])

    def archive(name: str, *numbers: int) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        rows = pa.table({"n": numbers, "at": [first_ms + 60_000 * n for n in numbers]}, schema)
        pq.write_table(rows, tmp_path / name / f"{numbers[0]}.parquet")

    def send(*numbers: int) -> None:
        broker.send(topic, map(str, numbers), at=[first_ms + 60_000 * n for n in numbers])

    files = [FilePhase(name, {"path": str(tmp_path / name), **common}) for name in ("old", "more")]
    for phase in files:
        phase.open(Columns(schema))
    live = broker.phase(subscribe=topic, **FROM_FILES)
    planner = HybridPlanner([*files, live], ["old:files", "more:files", "live:kafka"])
    archive("old", -9)
    archive("old", -8)
    archive("more", -3, -2, -1)
    send(-3, -2, -1)
    at = planner.next(planner.first(), Limit(1), 0)
    assert at.phase == 0
    # An hour later; the archiver has gone on.
    send(*range(60))
    archive("more", *range(50))
    at = HybridOffset.from_json(json.loads(json.dumps(at.to_json())))
    at = planner.next(at, Limit(), 0, whole_backlog=True)
    assert at.position is not None
    assert (at.phase, at.ended[1]["files"]) == (2, 1)
    assert live.first(at.position)["offsets"] == {topic: {"0": 2}}


def test_wrong_offsets_are_reported_when_the_query_first_starts(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, ["0", "1"])
    broker.remove_before(topic, 1)
    for starting, error in ((0, "the next offset is 0"), (3, "ends at 2")):
        options = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": starting}})}
        with pytest.raises(BacklogError, match=error):
            broker.phase(**options).pin()
    with pytest.raises(BacklogError, match="has no no-such-topic"):
        broker.phase(subscribe="no-such-topic").pin()
