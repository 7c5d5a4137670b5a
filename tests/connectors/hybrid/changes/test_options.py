"""The options of change topics, and the columns that they give a stream."""

from __future__ import annotations

import pytest

from backlog_spark.connectors.hybrid.decode import parse
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.errors import BacklogError, SettingError

from .test_debezium import ID, of

BASE = {"path": "/x", "subscribe": "t", "kafka.bootstrap.servers": "b:1", "schema": "id INT"}


def metadata(**options: str) -> tuple[str, ...]:
    return HybridOptions.parse({**BASE, **options}).metadata


def test_metadata_columns() -> None:
    changes = ("_change_type", "_commit_timestamp", "_commit_seq")
    for form in ("debezium", "Canal", " maxwell ", "debezium-avro-confluent"):
        assert metadata(valueFormat=form) == changes
    assert metadata(valueFormat="json") == ()
    assert metadata(valueFormat="debezium", metadataColumns="_change_type,_topic") == ("_change_type", "_topic")
    with pytest.raises(SettingError, match="lacks _change_type"):
        metadata(valueFormat="debezium", metadataColumns="_commit_seq")
    with pytest.raises(SettingError, match="_commit_seq is a column of changes"):
        metadata(valueFormat="json", metadataColumns="_commit_seq")


def test_defaults_by_format() -> None:
    found = parse({"valueFormat": "debezium"})
    assert (found.mode, found.changes.order) == ("FAILFAST", "position")
    assert parse({"valueFormat": "debezium", "mode": "permissive"}).mode == "PERMISSIVE"
    assert parse({"valueFormat": "maxwell"}).changes.order == "offset"
    assert parse({"valueFormat": "json"}).mode == "PERMISSIVE"
    assert parse({"valueFormat": "debezium", "startingPosition": "b.000002:5"}).changes.since == (2 << 38) + 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("columnEncodings", "a"),
        ("columnEncodings", "a:days, a:text"),
        ("columnEncodings", "a:seconds"),
        ("startingPosition", "binlog.12"),
        ("startingPosition", "binlog.x:4"),
        ("startingPosition", f"b.1:{2**40}"),
        ("changeOrder", "time"),
        ("changeTables", "orders"),
        ("decimal.handling.mode", "exact"),
        ("time.precision.mode", "seconds"),
        ("binary.handling.mode", "utf8"),
        ("unknownColumns", "drop"),
        ("beforeImages", "no"),
        ("tableEvents", "stop"),
    ],
)
def test_wrong_values(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=name):
        parse({"valueFormat": "debezium", name: value})


def test_columns_that_the_options_need() -> None:
    with pytest.raises(BacklogError, match="columnEncodings names at, which is not a column"):
        of(ID, columnEncodings="at:micros")
    with pytest.raises(BacklogError, match="the column id is days"):
        of(ID.set(0, ID.field(1).with_name("id")), columnEncodings="id:days")
