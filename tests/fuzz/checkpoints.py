"""What a checkpoint holds beside offsets: state, metadata of versions and sources, and the event log."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DoubleType, LongType, StringType

from backlog_spark.decide.ledger import Ledger, Run, Vehicle
from backlog_spark.decide.query_record import QueryRecord, SourceRecord
from backlog_spark.sinks.iceberg.marks import Mark, mark_name
from backlog_spark.spark.checkpoint.driver_claim import runs
from backlog_spark.spark.checkpoint.offset_entries import offset_lines
from backlog_spark.spi.offset_flags import parse_offset
from backlog_spark.state.seeds import Control
from backlog_spark.state.state_codec import (
    as_text,
    from_text,
    packed_hashes,
    packed_rows,
    unpacked_hashes,
    unpacked_rows,
)
from backlog_spark.state.tables import StateSchema
from backlog_spark.tools.inspection import inspected, shown
from backlog_spark.tools.report import page
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint
from tests.fuzz.kinds import ANY, Kind, Refusal, Wrong, mutated_json, mutated_text
from tests.fuzz.kinds import as_text as as_json
from tests.tools.stories import hostile, story

__all__ = ["KINDS"]

# -- state --------------------------------------------------------------------------------------------------------

_NUMBERS = StateSchema((LongType(),), (LongType(), DoubleType()))
_TEXTS = StateSchema((StringType(),), (LongType(), StringType()))


def _state(chance: random.Random) -> tuple[Any, Any]:
    schema = chance.choice((_NUMBERS, _TEXTS))
    rows = chance.choice((0, 1, 50))
    columns = [pa.array(np.arange(rows) * 7)]
    for field in list(schema.arrow())[1:]:
        values = [None if chance.random() < 0.2 else chance.randrange(99) for _ in range(rows)]
        texts = [None if v is None else "é" * (v % 9) for v in values]
        columns.append(pa.array(texts if pa.types.is_string(field.type) else values, field.type))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow())
    text, slots = packed_rows(batch, schema)
    return (schema is _NUMBERS, text, slots), batch


def _judge_state(found: Any, told: Any) -> None:
    is_numbers, text, slots = found
    rows = unpacked_rows(text, slots, _NUMBERS if is_numbers else _TEXTS)
    if told is not ANY and not rows.equals(told):
        raise Wrong(f"{rows} for {told}")
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid as error:  # RocksDB's checksums are the guard
        raise Refusal(str(error)) from error


def _mutate_state(chance: random.Random, found: Any, other: Any) -> Any:
    is_numbers, text, slots = found
    if chance.random() < 0.7:
        # As bytes that still are packed as text.
        data = bytearray(from_text(text[8:]))
        for _ in range(chance.choice((1, 2, 9))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        size = text[:8] if chance.random() < 0.8 else f"{chance.choice((0, 1, 2**31 - 1, 2**32 - 1)):08x}"
        return is_numbers, size + as_text(bytes(data)), chance.choice((slots, slots, 0, 1, 3, -1))
    return chance.choice((is_numbers, not is_numbers)), mutated_text(chance, text, other[1]), slots


def _hashes(chance: random.Random) -> tuple[Any, Any]:
    found = np.array([chance.getrandbits(63) for _ in range(chance.choice((0, 1, 30)))], np.int64)
    return packed_hashes(found), found.tolist()


def _judge_hashes(text: str, told: Any) -> None:
    found = unpacked_hashes(text).tolist()
    if told is not ANY and found != told:
        raise Wrong(f"{found} for {told}")


# -- metadata -----------------------------------------------------------------------------------------------------


def _ledger(chance: random.Random) -> dict[str, Any]:
    vehicles = [*Vehicle]
    made = Ledger(
        128, 4, (("sum", {"slots": ["bigint"], "kind": "sum"}),),
        tuple(Run(n, chance.choice(vehicles), n) for n in range(chance.randint(0, 3))), 0, -1, True, False,
    )  # fmt: skip
    return made.to_json()


def _metadata(chance: random.Random) -> tuple[Any, Any]:
    match chance.randrange(5):
        case 0:
            return ("ledger", _ledger(chance)), None
        case 1:
            record = QueryRecord(
                (SourceRecord("o", "mysql_cdc", {"table": "a.b"}),), {"": {"kind": "delta", "path": "/x"}}, ("sum",)
            )
            return ("record", record.to_json()), None
        case 2:
            return ("control", json.loads(Control(5, 6, 1, 9, 7).to_bytes())), None
        case 3:
            return ("mark", json.loads(Mark(5, chance.choice((None, 2**60)), 7, True).to_text())), None
        case _:
            return (
                "claim",
                {"version": 1, "pid": 1, "host": "h", "machine": "m", "at": "2026-11-26T16:00:00+00:00"},
            ), None


def _judge_metadata(found: Any, told: Any) -> None:
    kind, value = found
    if not isinstance(value, str) and not isinstance(value, dict):
        raise Refusal("no object")
    text = value if isinstance(value, str) else json.dumps(value)
    parsed = parse_offset(text)  # as `Checkpoint.read_object`
    if kind == "control":
        made: Any = Control.from_bytes(text.encode("utf-8", "surrogatepass"))
        if Control.from_bytes(made.to_bytes()) != made:
            raise Wrong("it is written otherwise")
        return
    if kind == "mark":
        made = Mark.of({mark_name("q"): text}, "q")
        assert made is not None
        return
    if parsed is None:
        raise Refusal("no object")
    if kind == "ledger":
        ledger = Ledger.from_json(parsed)
        _ = ledger.last_epoch, ledger.unpublished, ledger.is_half_published, ledger.is_mergeable, ledger.configuration()
        if Ledger.from_json(ledger.to_json()) != ledger:
            raise Wrong("it is written otherwise")
    elif kind == "record":
        record = QueryRecord.from_json(parsed)
        record.check(record, lambda output: False)
    else:
        runs(parsed)


def _mutate_metadata(chance: random.Random, found: Any, other: Any) -> Any:
    kind, value = found
    if chance.random() < 0.2:
        return kind, mutated_text(chance, as_json(value), as_json(other[1]))
    return kind, mutated_json(chance, value, other[1])


def _entry(chance: random.Random) -> tuple[Any, Any]:
    version = chance.choice(("v1", "v2"))
    lines = ['{"a":1}', "-", '{"b":"x:y"}']
    named = [f"{name}:{line}" if version == "v2" else line for name, line in zip("012", lines, strict=True)]
    return "\n".join([version, '{"batchWatermarkMs":0}', *named]), {"0": lines[0], "1": None, "2": lines[2]}


def _judge_entry(text: str, told: Any) -> None:
    found = offset_lines(text, "offsets/0")
    if told is not ANY and found != told:
        raise Wrong(f"{found} for {told}")
    for line in found.values():
        parse_offset(line)


# -- the event log ------------------------------------------------------------------------------------------------

_directory: Path | None = None


def _events(chance: random.Random) -> tuple[Any, Any]:
    events = story()
    if chance.random() < 0.3:
        events = hostile(events, chance.choice(("<script>", "\x1b[31m", "a\u202eb", "é" * 300)))
    estimate = {"v": 1, "at": events[5]["at"], "kind": "estimate", "query": "q", "after_batch": 1,
                "sources": [{"name": "o", "rows": 5, "total": 9}]}  # fmt: skip
    events.insert(6, estimate)
    begin = chance.randrange(1, len(events))
    return events[:1] + events[begin : begin + chance.choice((3, 40))], None


def _judge_events(found: Any, told: Any) -> None:
    global _directory
    if _directory is None:
        _directory = Path(tempfile.mkdtemp(prefix="fuzz-events-"))
        (_directory / "backlog" / "events").mkdir(parents=True)
    lines = found if isinstance(found, bytes) else b"".join(json.dumps(each).encode() + b"\n" for each in found)
    (_directory / "backlog" / "events" / "00000001-a.jsonl").write_bytes(lines)
    checkpoint = StoredCheckpoint(str(_directory))
    told_of = inspected(checkpoint)
    if told is not ANY and len(checkpoint.events) != len(found):
        raise Wrong("an event is missing")
    json.dumps(told_of)
    assert shown(told_of)
    page(checkpoint).encode()
    if not checkpoint.events:
        raise Refusal("no event is left")


def _mutate_events(chance: random.Random, found: Any, other: Any) -> Any:
    if chance.random() < 0.3:
        lines = b"".join(json.dumps(each).encode() + b"\n" for each in found)
        at = chance.randrange(len(lines))
        return (
            lines[:at]
            + chance.choice((b"", b"\xff", b"\0", b"\n", b'"', b"\\ud800"))
            + lines[at + chance.choice((0, 1, 40)) :]
        )
    return mutated_json(chance, found, other)


def _close() -> None:
    if _directory is not None:
        shutil.rmtree(_directory, ignore_errors=True)


KINDS = [
    Kind("state", _state, _judge_state, _mutate_state),
    Kind("hashes of state", _hashes, _judge_hashes),
    Kind("metadata of a checkpoint", _metadata, _judge_metadata, _mutate_metadata),
    Kind("entries of Spark's log", _entry, _judge_entry),
    Kind("event log", _events, _judge_events, _mutate_events, close=_close),
]
