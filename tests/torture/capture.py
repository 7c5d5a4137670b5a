"""A stream read as Spark reads it, without Spark: planned, read by workers, at times again, killed and begun anew.

What survives a kill is what Spark keeps: the offsets, as JSON, up to the batch that was planned.
"""

from __future__ import annotations

import base64
import json
import pickle
import random
import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pymysql
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.offsets import RangeAgain
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.stream.reader import MySqlCdcStreamReader, SnapshotPartition
from backlog_spark.connectors.mysql_cdc.stream.tables_at import tables_at
from backlog_spark.errors import BacklogError, SettingError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options, reader

from .tables import PATTERN, READER, SIGNALS, TABLES, Shape, family, fate, plain
from .writers import is_lost

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_IN_MICROS = 10**14
_LONGEST_S = 120
EMPTIED = ("truncate", "drop")
"""Kinds of rows that tell of a statement, and have no key and no values."""
AGAIN = "again"
AGAIN_IF = "again, with a condition"
"""Once such a row has changed, only the change comes: the same batch, read later, may be without the row."""
"""The kind of rows that a signal asked for."""


@dataclass(frozen=True)
class Row:
    """A row of the stream. ``kind`` is "snapshot" or a change type; ``values`` are by the columns' families.

    Rows of the kinds `EMPTIED` have neither key nor values; those of `AGAIN` are rows of a table that is read again.
    """

    table: str
    kind: str
    key: tuple[Any, ...]
    values: dict[str, Any]
    sequence: int


class Capture:
    """One stream of both tables.

    Parameters
    ----------
    server, shape, seed
    form : str
        ``"row"`` or ``"debezium"``.
    """

    def __init__(self, server: MySQLServer, shape: Shape, seed: int, form: str) -> None:
        self.form = form
        self.rows: list[Row] = []
        self.done: Counter[str] = Counter()
        self.in_peace = False
        """Set when nothing disturbs the server any more: an error is then one."""
        self._shape = shape
        self._chance = random.Random(seed)
        wanted = "_change_type,_commit_seq,_database,_table"
        given = options(server, "", tablePattern=PATTERN, format=form, metadataColumns=wanted, user=READER)
        given["signal.table"] = SIGNALS
        given["ssl.mode"] = "disabled"  # a handshake takes longer than most batches
        given["connect.backoff"] = "50 ms"  # the server is soon back
        given["chunkSize"] = str(self._chance.choice([20, 60, 1000]))
        self._given = {name: value for name, value in given.items() if value}
        self.last_error: BacklogError | None = None
        self._stream: MySqlCdcStreamReader | None = None
        self._offset: dict[str, Any] | None = None
        self._planned: dict[str, Any] | None = None
        self._again: list[tuple[MySqlCdcStreamReader, Any, list[Row]]] = []
        self._last_progress = time.monotonic()
        self._mirror: dict[str, dict[tuple[Any, ...], Row]] = {table: {} for table in TABLES}
        self._ranges: list[SnapshotPartition] = []  # what the last batch has read again
        self._not_read: dict[str, set[tuple[Any, ...]]] = {}

    @property
    def position(self) -> BinlogPosition | None:
        """Up to where the log is read; None in the snapshot."""
        found = self._offset.get("position") if self._offset else None
        return BinlogPosition(*found) if found else None

    @property
    def in_snapshot(self) -> bool:
        return self._offset is None or self._offset["isProcessingBacklog"]

    @property
    def is_calm(self) -> bool:
        """Whether only the log of both tables is read, and no snapshot of any."""
        return self._offset is not None and not (
            self._offset["isProcessingBacklog"] or self._offset.get("gone") or self._offset.get("joining")
        )

    @property
    def place(self) -> dict[str, Any] | None:
        """The end of the last batch, as Spark keeps it."""
        return self._offset

    def step(self) -> bool:
        """Plan, read and commit a batch, or die in between; False when there is nothing to read."""
        try:
            found = self._step()
        except (SchemaChanged, SettingError) as error:
            hint = error.hint or ""
            # A table that came back has columns already that the stream's first table gets next.
            is_other = isinstance(error, SettingError) and "has other columns than" in str(error)
            if not is_other and ("Start the query again" not in hint or hint.startswith("Start the query again with")):
                raise
            self.last_error = error
            self._die("declared anew")
        except (OSError, pymysql.err.Error, BacklogError) as error:
            lost = is_lost(error) or (error.args and error.args[0] == 1317)
            if isinstance(error, BacklogError):
                lost = any(
                    text in error.problem for text in ("cannot be reached", "could not be read", "was lost while")
                )
            if not lost or self.in_peace or time.monotonic() - self._last_progress > _LONGEST_S:
                raise
            self._die("failed")
            time.sleep(0.05)
        else:
            self._last_progress = time.monotonic()
            return found
        return True

    def _die(self, why: str) -> None:
        self.done[why] += 1
        self._stream = None
        discard_rewind_log()

    def _step(self) -> bool:
        chance = self._chance
        if self._stream is None:
            # A table is altered after the other, and a stream cannot have both meanwhile.
            with self._shape.lock:
                self._stream = reader(self._given)
        stream = self._stream
        start = self._start(stream)
        if self._planned is None:
            end = stream.latestOffset(start, ReadMaxRows(self._limit()))
            if end is start:
                return False
            self._planned = _logged(end)
            if chance.random() < 0.06:
                self._die("killed")
                return True
        rows = self._read(stream, start, self._planned)
        if chance.random() < 0.06:
            self._die("killed")
            with self._shape.lock:
                self._stream = reader(self._given)
            self._same(rows, self._read(self._stream, self._start(self._stream), self._planned))
        self._check_again([row for row in rows if row.kind in (AGAIN, AGAIN_IF)])
        rows = [row for row in rows if row.kind not in (AGAIN, AGAIN_IF)]
        self.rows += rows
        self.done["batches"] += 1
        self._offset, self._planned = self._planned, None
        for row in rows:
            _apply(row, self._mirror[row.table])
            if row.kind in EMPTIED:
                self._not_read.pop(row.table, None)
        if self.form == "row" and self.is_calm and chance.random() < 0.1:
            self._compare_now()
        return True

    def _check_again(self, rows: list[Row]) -> None:
        """Rows that a signal asked for are as of the batch's start, so a target has the same, and none is missing."""
        for row in rows:
            there = self._mirror[row.table].get(row.key)
            assert there is not None, f"{self.form}: read again at {self.position}, and the target has no {row}"
            assert (there.values["n"], there.values["v"]) == (row.values["n"], row.values["v"]), (there, row)
        read = {(row.table, row.key) for row in rows}
        for of in self._ranges:
            table = of.schema.table
            missing = {key for key in self._mirror[table] if _is_within(key, of) and (table, key) not in read}
            if missing:
                self._not_read.setdefault(table, set()).update(missing)
            self.done["ranges read again"] += 1
        self.done["rows read again"] += len(rows)

    def check_ranges(self) -> None:
        """At the log's end: rows that were not read again were removed by a statement since."""
        assert not self._not_read, f"{self.form}: not read again: {self._not_read}"

    def _compare_now(self) -> None:
        """Compare what a target would have with the tables as of the stream's place, as ``bs.verify`` reads them."""
        assert self._offset is not None
        try:
            found = tables_at(self._given, self._offset, rows_per_chunk=100)
            rows = [row for chunk in range(found.chunks) for batch in found.read(chunk) for row in batch.to_pylist()]
        except (OSError, pymysql.err.Error, BacklogError) as error:
            # Altered or emptied since then, or the server is killed.
            is_emptied = isinstance(error, BacklogError) and "after the compared position" in error.problem
            if self.in_peace and not is_emptied:
                raise
            self.done["not compared"] += 1
            return
        finally:
            discard_rewind_log()
        names = [*self._shape.key_columns, "n", "v"]
        there = Counter((row["_table"], *(row[name] for name in names)) for row in rows)
        here = Counter(
            (table, *(row.values[name] for name in names))
            for table, rows in self._mirror.items()
            for row in rows.values()
        )
        assert here == there, f"at {self.position} the target has {here - there}, and the tables had {there - here}"
        self.done["compared"] += 1

    def _start(self, stream: MySqlCdcStreamReader) -> dict[str, Any]:
        """Where the next batch starts: as long as none is committed, Spark asks for it at every start."""
        return self._offset or _logged(stream.initialOffset())

    def _limit(self) -> int:
        return 5_000 if self.in_peace else self._chance.choice([1, 20, 100, 400, 3000])

    def _read(self, stream: MySqlCdcStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        """A batch, each partition of it in a worker of its own."""
        found: list[Row] = []
        self._ranges = []
        for partition in stream.partitions(start, end):
            worker, sent = pickle.loads(pickle.dumps((stream, partition)))
            rows = self._rows(worker, sent)
            if self._chance.random() < 0.1:
                discard_rewind_log()
                self._same(rows, self._rows(worker, sent))
                self.done["read twice"] += 1
            if self._chance.random() < 0.05 and not isinstance(sent, SnapshotPartition):
                self._again.append((worker, sent, rows))
            if isinstance(partition, SnapshotPartition) and isinstance(partition.of, RangeAgain):
                self._ranges += [] if partition.of.condition else [partition]
            found += rows
        return found

    def read_again(self) -> None:
        """Read some of the earliest batches again: their rows are the same still."""
        for worker, partition, rows in self._again:
            self._same(rows, self._rows(worker, partition))
            self.done["read again"] += 1

    def _same(self, rows: list[Row], again: list[Row]) -> None:
        """The same rows, of a stream that was perhaps declared with other columns."""
        rows, again = ([row for row in some if row.kind != AGAIN_IF] for some in (rows, again))
        one, other = (next((row.values.keys() for row in some if row.values), {}.keys()) for some in (rows, again))
        if one and other:
            common = one & other
            if one != other:
                common = {name for name in common if name not in self._shape.gone}
            rows, again = ([_of(row, common) for row in some] for some in (rows, again))
        rows, again = (sorted(some, key=_order) for some in (rows, again))
        assert rows == again, f"{self.form}: read again, a batch is another: {_first_difference(rows, again)}"

    def _rows(self, worker: MySqlCdcStreamReader, partition: Any) -> list[Row]:
        make = self._of_rows if self.form == "row" else self._of_envelopes
        kind = ""
        if isinstance(partition, SnapshotPartition):
            kind = "snapshot"
            if isinstance(partition.of, RangeAgain):
                kind = AGAIN_IF if partition.of.condition else AGAIN
        found: list[Row] = []
        for batch in worker.read(partition):
            for values in batch.to_pylist():
                found += make(values)
        return [replace(row, kind=kind) for row in found] if kind else found

    def _of_rows(self, values: dict[str, Any]) -> list[Row]:
        told = {name: values.pop(name) for name in ("_change_type", "_commit_seq", "_database", "_table")}
        if told["_change_type"] in EMPTIED:
            assert set(values.values()) == {None}, values
            return [_emptied(told)]
        return [self._row(told, told["_change_type"], {name: plain(value) for name, value in values.items()})]

    def _of_envelopes(self, values: dict[str, Any]) -> list[Row]:
        told, envelope = values, json.loads(values["value"])
        if told["_change_type"] in EMPTIED:
            return [_emptied(told)]
        before, after = (
            None if envelope[of] is None else {name: _decoded(name, value) for name, value in envelope[of].items()}
            for of in ("before", "after")
        )
        key = {name: plain(value) for name, value in json.loads(values["key"]).items()}
        kinds = {"r": ("", "snapshot"), "c": ("", "insert"), "d": ("delete", "")}
        kinds["u"] = ("update_preimage", "update_postimage")
        rows = [
            self._row({**told, "_commit_seq": told["_commit_seq"] - (kind == "update_preimage")}, kind, image)
            for kind, image in zip(kinds[envelope["op"]], (before, after), strict=True)
            if kind and image is not None
        ]
        assert len(rows) == sum(bool(kind) for kind in kinds[envelope["op"]]), envelope
        assert all(row.key == tuple(key[name] for name in self._shape.key_columns) for row in rows), values
        return rows

    def _row(self, told: dict[str, Any], kind: str, values: dict[str, Any]) -> Row:
        key = tuple(values[name] for name in self._shape.key_columns)
        image = {family(name): value for name, value in values.items()}
        return Row(told["_table"], kind, key, image, told["_commit_seq"])


def _apply(row: Row, table: dict[tuple[Any, ...], Row]) -> None:
    """Do to a target's rows what a row of the stream says."""
    if row.kind in EMPTIED:
        table.clear()
    elif row.kind in ("delete", "update_preimage"):
        table.pop(row.key, None)
    else:
        table[row.key] = row


def _order(row: Row) -> str:
    """Rows of a table, which come in any order, after those of the log."""
    return repr(row) if row.kind in ("snapshot", AGAIN) else ""


def _is_within(key: tuple[Any, ...], of: SnapshotPartition) -> bool:
    """Whether a range is known to have a key: only the server can order texts."""
    if any(isinstance(part, str) for part in key):
        return of.first is None and of.last is None
    return (of.first is None or key > of.first) and (of.last is None or key <= of.last)


def _emptied(told: dict[str, Any]) -> Row:
    return Row(told["_table"], told["_change_type"], (), {}, told["_commit_seq"])


def _logged(offset: dict[str, Any]) -> dict[str, Any]:
    """An offset as it comes out of Spark's log."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def _of(row: Row, families: set[str]) -> Row:
    return replace(row, values={name: value for name, value in row.values.items() if name in families})


def _first_difference(one: list[Row], other: list[Row]) -> str:
    if len(one) != len(other):
        return f"{len(one)} rows and {len(other)}"
    a, b = next((a, b) for a, b in zip(one, other, strict=True) if a != b)
    both = {name: (a.values.get(name, ...), b.values.get(name, ...)) for name in a.values | b.values}
    of = ((a.table, a.kind, a.key, a.sequence), (b.table, b.kind, b.key, b.sequence))
    return f"{of}: { ({name: pair for name, pair in both.items() if pair[0] != pair[1]}) }"


def _decoded(name: str, value: Any) -> Any:
    """A value of an envelope."""
    kind = name[0] if fate(name) else ""
    if value is None or kind in ("", "w", "t"):
        return value
    if kind == "d":
        return Decimal(value)
    if kind == "b":
        return base64.b64decode(value).decode()
    micros = value * 1000 if abs(value) < _SECONDS_IN_MICROS else value
    return plain(_EPOCH + timedelta(microseconds=micros))
