"""Offsets of both sources, as the JSON of a checkpoint: those of every phase, with positions of every class."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backlog_spark.connectors.hybrid.files.continuous_position import FilesPosition
from backlog_spark.connectors.hybrid.files.listed import _offset
from backlog_spark.connectors.hybrid.kafka.pinned_offsets import Pin
from backlog_spark.connectors.hybrid.kafka.positions import Flag, KafkaPosition
from backlog_spark.connectors.hybrid.offsets import HybridOffset
from backlog_spark.connectors.hybrid.table.position import TablePosition
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.offsets import Offset, SnapshotRange
from backlog_spark.connectors.mysql_cdc.schema.columns import Column
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.snapshot.requests import ALTERED, RangeRead, RangeRequest, Requests
from backlog_spark.spi import offset_flags
from tests.fuzz.kinds import ANY, Kind, Refusal, Wrong, as_text, mutated_json, mutated_text

__all__ = ["KINDS", "parsed_object"]

_UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def parsed_object(text: str) -> dict[str, Any]:
    """A JSON object of Spark's log, as Spark or a reader of ours hands it on."""
    found = offset_flags.parse_offset(text)
    if found is None:
        raise Refusal("no JSON object")
    return found


def _flags(found: dict[str, Any]) -> None:
    """What others read of an offset: they must not fail on it."""
    offset_flags.rows_behind(found)
    offset_flags.committed_ms(found)
    offset_flags.snapshot_follows(found)
    flags = offset_flags.BatchFlags([found], [found], [True])
    assert flags.in_backlog is not None
    assert flags.snapshot is not None


def _survives(written: dict[str, Any], read: Callable[[Any], Any]) -> None:
    """What is written is read back. As text: NaN is not equal to itself."""
    text = json.dumps(written)
    if json.dumps(read(json.loads(text)).to_json()) != text:
        raise Wrong(f"{text} is written otherwise")


# -- mysql_cdc ----------------------------------------------------------------------------------------------------


def _table(chance: random.Random, number: int) -> TableSchema:
    columns = [
        Column("id", "int", "int", nullable=False),
        Column("v", "varchar", "varchar(60)", charset="utf8mb4", collation="utf8mb4_bin"),
    ]
    columns += [
        Column(f"c{n}", "decimal", "decimal(12,2)", precision=12, scale=2) for n in range(chance.choice((0, 1, 90)))
    ]
    key = chance.choice((("id",), ("id", "v"), ()))
    past = frozenset({"old"}) if chance.random() < 0.3 else frozenset()
    return TableSchema("d", f"t{number}", tuple(columns), key, chance.choice((key, ())), past=past)


def _key(chance: random.Random) -> Any:
    return chance.choice(((5,), (7, b"\xff\0"), (2**70, "é"), None))


def _mysql(chance: random.Random) -> tuple[Any, Any]:
    tables = tuple(_table(chance, n) for n in range(chance.randint(1, 3)))
    lows = chance.choice((f"{_UUID}:1-5", "binlog.000003:99:0-1-7"))
    ranges = tuple(
        SnapshotRange(_key(chance), lows, 1_000 + n, chance.randrange(len(tables)), 90, chance.choice((0, 0, -1)))
        for n in range(chance.choice((0, 1, 3)))
    )
    offset = Offset("server", tables, ranges=ranges, rows=9, total=20)
    if chance.random() < 0.7:
        offset = replace(offset, complete=True)
        position = BinlogPosition("binlog.000007", chance.choice((4, 2**33)))
        name = (tables[0].database, tables[0].table)
        requests = Requests(
            (RangeRequest(ALTERED, name), RangeRequest("s", name, _key(chance), _key(chance), "a > 1", ((1,),))),
            (RangeRead(name, None, (5,), "", (), 77),),
            True,
            3,
        )
        offset = replace(
            offset,
            position=position,
            gtid=f"{_UUID}:1-9",
            filter_until=chance.choice((None, position)),
            joining=(0,),
            gtid_until=chance.choice((None, position)),
            shift=1,
            excess=2,
            salt_check="x",
            is_lagging=True,
            gone=(("d", "g"),),
            rejoining=(("d", "r"),),
            table_events=frozenset({"truncate"}),
            requests=chance.choice((Requests(), requests)),
            committed_ms=(1, 2),
            emptied=(name,),
            fills=((*name, "eA=="),),
            forms=chance.choice(((), (tables[0],))),
        )
    return offset.to_json(), offset


def _judge_mysql(found: Any, told: Any) -> None:
    found = parsed_object(found) if isinstance(found, str) else found
    _flags(found)
    offset = Offset.from_json(found)
    if told is not ANY and offset != told:
        raise Wrong(f"{offset} for {told}")
    _survives(offset.to_json(), Offset.from_json)
    offset.unread()
    for each in offset.ranges:
        offset.form_of(each)
    offset.added_since(offset)
    offset.quiet().without([("d", "t0")], come_back=True).to_json()
    position = offset.position or BinlogPosition("binlog.000008", 4)
    offset.at(position, f"{_UUID}:1-9").to_json()
    offset.with_snapshot([], 9, None).to_json()
    for table in offset.tables:
        table.fingerprint()
        table.indexes(table.key)


# -- hybrid -------------------------------------------------------------------------------------------------------


def _kafka(chance: random.Random) -> KafkaPosition:
    offsets = {("orders", n): chance.choice((0, 5, 2**40)) for n in range(chance.choice((1, 3)))}
    more: dict[str, Any] = chance.choice(
        ({}, {"until": offsets}, {"dedup": "keys.parquet", "dedup_ms": 7}, {"begin": offsets})
    )
    position = KafkaPosition(offsets, {"orders": "id"}, flag=Flag(True, 5), **more)
    return replace(position, started=position) if chance.random() < 0.5 else position


def _live(kind: Any, chance: random.Random) -> Any:
    common = {"file": 3, "offset": 5, "rows": 70, "is_backlog": True, "since": 9, "began_since": 2}
    if kind is FilesPosition:
        return FilesPosition(**common, id="x", began="a", head="b", first=2, files=9)
    return TablePosition(**common, table="t", first=4, files=9, version=chance.choice((4, 5)))


_FILES = {"manifest": "0123", "csvDefaults": 2, "files": 3, "file": 1, "offset": 0}
_DELTA = {"table": "t", "version": 4, "files": 3, "file": 1, "offset": 0}


def _hybrid(chance: random.Random) -> tuple[Any, Any]:
    last = chance.choice(
        (_kafka(chance).to_json(), _live(FilesPosition, chance).to_json(), _live(TablePosition, chance).to_json())
    )
    pin = Pin({("o", 0): 1}, {("o", 0): 9}, {"o": ""}, 5)
    has_begun = chance.random() < 0.6
    offset = HybridOffset(
        ("old:files", "new:kafka"),
        int(has_begun),
        last if has_begun else chance.choice((None, _FILES, _DELTA)),
        (_FILES,) if has_begun else (),
        is_backlog=True,
        rows=5,
        rows_before=2,
        total=chance.choice((None, 9)),
        pinned={} if has_begun else {"1": pin.to_json()},
        fixed_ms=chance.choice((None, 5)),
        no_rows_yet=chance.random() < 0.5,
    )
    return offset.to_json(), offset


_READERS: dict[str, Callable[[Any], Any]] = {
    "commits of a table": TablePosition.from_json,
    "lists of files": FilesPosition.from_json,
}


def _judge_hybrid(found: Any, told: Any) -> None:
    found = parsed_object(found) if isinstance(found, str) else found
    _flags(found)
    offset = HybridOffset.from_json(found)
    if told is not ANY and offset != told:
        raise Wrong(f"{offset} for {told}")
    _survives(offset.to_json(), HybridOffset.from_json)
    for phase in range(offset.phase + (offset.position is not None)):
        offset.last_of(phase)
    for pin in offset.pinned.values():
        Pin.from_json(pin)
    position = offset.position
    if position is None:
        return
    form = position.get("form")
    if "manifest" in position or ("version" in position and "offsets" not in position and form is None):
        _offset(position)
        return
    read = _READERS.get(form, KafkaPosition.from_json) if isinstance(form, str) else KafkaPosition.from_json
    made = read(position)
    _survives(made.to_json(), read)
    if isinstance(made, KafkaPosition):
        assert made.flag is not None
        for partition in made.offsets:
            made.first.start_of(made, partition)
    else:
        assert made.in_first in (True, False)


def _mutate(chance: random.Random, found: Any, other: Any) -> Any:
    if chance.random() < 0.2:
        return mutated_text(chance, as_text(found), as_text(other))
    return mutated_json(chance, found, other)


KINDS = [
    Kind("offsets of mysql_cdc", _mysql, _judge_mysql, _mutate),
    Kind("offsets of hybrid", _hybrid, _judge_hybrid, _mutate),
]
