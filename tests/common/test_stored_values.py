"""What a checkpoint holds is checked when it is read: types, and fields that are missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from backlog_spark.common.stored_values import checked, reading_stored
from backlog_spark.connectors.hybrid.files.continuous_position import FilesPosition
from backlog_spark.connectors.hybrid.kafka.positions import KafkaPosition
from backlog_spark.connectors.hybrid.offsets import HybridOffset
from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.schema.types import Column
from backlog_spark.decide.ledger import Ledger
from backlog_spark.decide.query_record import QueryRecord
from backlog_spark.errors import BacklogError
from backlog_spark.spi.offset_flags import parse_offset
from backlog_spark.state.seeds import Control


@dataclass(frozen=True)
class Inner:
    number: int


@dataclass(frozen=True)
class Made:
    """One field of each form that is checked."""

    text: str = ""
    number: int | None = None
    pair: tuple[str, int] = ("", 0)
    many: tuple[Inner, ...] = ()
    names: frozenset[str] = frozenset()
    offsets: Mapping[tuple[str, int], int] | None = None
    anything: Any = None


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"number": 5},
        {"pair": ("a", 1)},
        {"many": (Inner(1), Inner(2))},
        {"names": frozenset({"a"})},
        {"offsets": {("t", 0): 5}},
        {"anything": [object()]},
    ],
)
def test_values_of_the_declared_types_pass(given: dict[str, Any]) -> None:
    assert checked(Made(**given)) == Made(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"text": 5},
        {"text": None},
        {"number": "5"},
        {"number": True},
        {"number": 5.0},
        {"pair": ("a", "b")},
        {"pair": ("a",)},
        {"pair": ["a", 1]},
        {"many": (Inner(1), 2)},
        {"many": (Inner(None),)},
        {"names": frozenset({1})},
        {"offsets": []},
        {"offsets": {("t", 0): "5"}},
        {"offsets": {"t": 5}},
    ],
)
def test_others_are_refused_by_the_name_of_the_field(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(given))):
        checked(Made(**given))


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("x"), RecursionError("x"), AttributeError("x")])
def test_damage_is_told_with_its_place_and_the_next_step(error: Exception) -> None:
    with (
        pytest.raises(BacklogError, match=r"^The state of x is damaged: .*Restore it from a backup"),
        reading_stored("The state of x"),
    ):
        raise error


TABLES = Offset("s", (TableSchema("d", "t", (Column("id", "int", "int"),), ("id",), ("id",)),)).to_json()
HYBRID = HybridOffset(("a:files", "b:kafka"), position={"files": 1}).to_json()
KAFKA = KafkaPosition({("t", 0): 5}, {"t": ""}).to_json()
FILES = FilesPosition(
    file=1, offset=0, rows=5, is_backlog=True, since=0, began_since=0, id="x", began="a", head="b", first=1, files=2
)
LEDGER = Ledger(128, 4, (), (), 0, -1).to_json()
RECORD = QueryRecord((), {"": {"kind": "delta"}}).to_json()
CONTROL = json.loads(Control(5).to_bytes())


@pytest.mark.parametrize(
    ("read", "data", "change"),
    [
        (Offset.from_json, TABLES, {"rows": "many"}),
        (Offset.from_json, TABLES, {"server": None}),
        (Offset.from_json, TABLES, {"ranges": [[7, None, 0, 1]], "lows": [["x", 1]]}),
        (Offset.from_json, TABLES, {"ranges": [[0, None, 3, 1]]}),
        (Offset.from_json, TABLES, {"tables": [["d", "t", [["id", "int"]], ["other"]]]}),
        (Offset.from_json, TABLES, {"tables": {"zlib": "eJw="}}),
        (Offset.from_json, TABLES, {"position": ["binlog.000001"]}),
        (HybridOffset.from_json, HYBRID, {"phase": 7}),
        (HybridOffset.from_json, HYBRID, {"phase": 1}),
        (HybridOffset.from_json, HYBRID, {"position": [1]}),
        (HybridOffset.from_json, HYBRID, {"rows": None}),
        (KafkaPosition.from_json, KAFKA, {"offsets": {"t": {"x": 5}}}),
        (KafkaPosition.from_json, KAFKA, {"offsets": {"t": {"0": "5"}}}),
        (KafkaPosition.from_json, KAFKA, {"topics": 5}),
        (FilesPosition.from_json, FILES.to_json(), {"head": None}),
        (FilesPosition.from_json, FILES.to_json(), {"more": 1}),
        (Ledger.from_json, LEDGER, {"runs": [[0, "flying", 0]]}),
        (Ledger.from_json, LEDGER, {"keyGroups": "128"}),
        (QueryRecord.from_json, RECORD, {"sources": [{"name": "o"}]}),
        (QueryRecord.from_json, RECORD, {"sinks": []}),
        (lambda data: Control.from_bytes(json.dumps(data).encode()), CONTROL, {"watermark": "5"}),
        (lambda data: Control.from_bytes(json.dumps(data).encode()), CONTROL, {"other": 5}),
    ],
)
def test_every_part_of_a_checkpoint_is_checked(
    read: Callable[[Any], Any], data: dict[str, Any], change: dict[str, Any]
) -> None:
    read(json.loads(json.dumps(data)))
    with pytest.raises(BacklogError, match="is damaged: "):
        read(json.loads(json.dumps({**data, **change})))


def test_deep_nesting_is_no_offset() -> None:
    assert parse_offset('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}") is None
