"""The stream reader of ``mysql_cdc``: plans batches beside the driver, reads their partitions in the workers.

Spark runs the planning methods in one Python process beside the driver and `read` in the executors' workers. Neither
sees anything but the options, the offsets and the pickled reader.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pymysql
from pymysql.connections import Connection
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from backlog_spark.errors import BacklogError

from ..pacing import BacklogSizer, Pacer
from .binlog import read_changes
from .changes import read_batch
from .chunks import Chunks, Splitter, estimated_rows
from .connection import server_time_ms
from .evolution import Followed, as_declared, start_again
from .history import Layout
from .keys import Key
from .offsets import BinlogPosition, Offset, SnapshotRange
from .options import MySqlOptions
from .planner import BinlogPlanner
from .retention import Retention
from .schema import SchemaChanged, TableSchema
from .server import (
    check_log,
    end_position,
    load_schema,
    low_watermark,
    open_connection,
    server_identity,
)
from .snapshot import read_chunk
from .startup import decide
from .timeline import Statements, TableName
from .watermark import gtids_at, resume_after

__all__ = ["BinlogPartition", "MySqlCdcStreamReader", "SnapshotPartition"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_TRANSIENT = {2003, 2006, 2013, 2014, 2055, 1053, 1927}
_ATTEMPTS = 6
_FIRST_WAIT_S = 0.5


@dataclass
class SnapshotPartition(InputPartition):
    """One chunk: a table's keys after ``first`` up to ``last``, of a range that starts after ``after``.

    ``known`` is the table at the range's low watermark.
    """

    schema: TableSchema
    known: TableSchema
    of: SnapshotRange
    after: Key | None
    first: Key | None
    last: Key | None


@dataclass
class BinlogPartition(InputPartition):
    """The binary log after ``start`` up to ``until``. One partition: the log's order is the tables' history.

    ``layouts`` are those of tables that were not yet, or are no longer, as declared.
    """

    tables: tuple[TableSchema, ...]
    layouts: Mapping[TableName, Layout]
    start: Offset
    until: BinlogPosition


class MySqlCdcStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches beside the driver; reads partitions in the workers."""

    def __init__(self, options: MySqlOptions, tables: Sequence[TableSchema]) -> None:
        self._options = options
        self._tables = {(t.database, t.table): t for t in tables}
        self._connection: Connection[Any] | None = None
        self._planner: BinlogPlanner | None = None
        self._layouts: tuple[Offset | None, Mapping[TableName, Layout]] = (None, {})
        self._chunks: dict[tuple[int, Key | None, Key | None], Chunks] = {}
        self._available_now = False
        self._target: BinlogPosition | None = None
        during = options.during_backlog_ms
        self._sizer = BacklogSizer(during, options.max_rows if options.max_rows_given else None) if during else None
        self._pacer = Pacer(options.interval_ms or 0)
        self._checked_start = False
        self._retention = Retention()

    # -- planning, beside the driver ------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        first = Offset(server="", tables=tuple(self._tables.values()), complete=not self._options.has_snapshot)
        return self._retrying(lambda c: replace(first, server=server_identity(c)).to_json())

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True
        self._target = self._retrying(lambda c: end_position(c, self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = Offset.from_json(start)
        end = self._retrying(lambda c: self._next(c, offset, limit))
        return start if end is None else end.to_json()

    def _next(self, connection: Connection[Any], start: Offset, limit: ReadLimit) -> Offset | None:
        if not self._checked_start:
            self._check_start(connection, start)
            self._checked_start = True
        if self._available_now and self._options.target == "none":
            return None
        if start.is_undecided:
            return self._decided(connection, start)
        if not start.complete:
            return self._next_snapshot(connection, start, limit)
        if start.is_finished:
            return None
        if self._available_now and self._options.target == "backlogEnd" and not start.is_lagging:
            return None
        return self._next_binlog(connection, start, limit)

    def _check_start(self, connection: Connection[Any], start: Offset) -> None:
        """Refuse to go on where the server or the table is not the one that the checkpoint is about."""
        server = server_identity(connection)
        if server != start.server:
            raise BacklogError(
                f"The checkpoint is about the server {start.server}, but {self._options.host}:{self._options.port} "
                f"is {server}: its binary log has other positions.",
                "Connect to the first server, or start with a new checkpoint.",
            )
        for known in start.tables:
            if self._schema(known).fingerprint() != known.fingerprint() and not self._options.evolves:
                raise SchemaChanged(
                    f"The columns of {known.name} were altered since the checkpoint was made.",
                    "Set schemaChange=evolve to go on with it, or start the query again with a new checkpoint.",
                )
        others = [
            t.name for name, t in self._tables.items() if name not in {(k.database, k.table) for k in start.tables}
        ]
        if others:
            _log.warning(
                "The checkpoint is about %d tables, and these are not among them: %s. They are not captured.",
                len(start.tables),
                ", ".join(others),
            )
        if not start.is_finished:
            check_log(connection, start)

    def _decided(self, connection: Connection[Any], start: Offset) -> Offset:
        """Where in the log a stream without a snapshot starts, if its tables were there as they are now."""
        found = decide(connection, self._options, start)
        tables = self._captured(start)
        later = Statements()
        origin = found.position or resume_after(found.start)
        for _ in read_changes(self._options, tables, origin, end_position(connection, self._options), timeline=later):
            pass
        for altered in later.found:
            raise SchemaChanged(
                f"{altered.schema.name} was altered after the place where the stream would start, by "
                f"{altered.statement[:200]!r}: what its columns were before, the binary log does not tell.",
                f"Start after it: startup.mode=specific, startup.file={altered.end.file}, "
                f"startup.position={altered.end.pos}.",
            )
        for schema in tables:
            self._check_unaltered(connection, schema)
        return found

    def _check_unaltered(self, connection: Connection[Any], schema: TableSchema) -> None:
        """Refuse a table that is not as it was declared."""
        now = load_schema(connection, self._options, schema.database, schema.table)
        if now.fingerprint() != schema.fingerprint():
            if self._options.evolves:
                raise start_again(schema, "its columns are not those that the stream was declared with")
            raise SchemaChanged(f"{schema.name} was altered.", "Start the query again with a new checkpoint.")

    def _schema(self, known: TableSchema) -> TableSchema:
        """A captured table as the query was started with it."""
        found = self._tables.get((known.database, known.table))
        if found is None:
            raise SchemaChanged(
                f"{known.database}.{known.table}, which the checkpoint is about, is not among the tables that the "
                "options ask for, or is gone.",
                "Ask for the same tables as before, or start with a new checkpoint.",
            )
        return found

    def _captured(self, offset: Offset) -> tuple[TableSchema, ...]:
        return tuple(self._schema(known) for known in offset.tables)

    def _next_snapshot(self, connection: Connection[Any], start: Offset, limit: ReadLimit) -> Offset:
        self._retention.look(connection, start, time.time() * 1000)
        wanted = self._snapshot_rows(limit)
        pieces = self._cut(connection, start, wanted)
        low, at_ms = low_watermark(connection)
        ranges = [SnapshotRange(chunks.ends[-1], low, at_ms, table, chunks.rows) for table, chunks in pieces]
        after = dict(start.unread())
        self._chunks = {(t, after[t], chunks.ends[-1]): chunks for t, chunks in pieces}
        is_last = len(ranges) == len(after) and ranges[-1].end is None
        # Everything in the low watermark lies at or before this position, which is read after it.
        until = end_position(connection, self._options) if is_last else None
        if until is not None and self._available_now:
            # A fresh copy of the tables is consistent only once the log has been read to the last watermark.
            self._target = until
        forms = list(start.forms)
        for i, (table, _) in enumerate(pieces):
            schema = self._schema(start.tables[table])
            self._check_unaltered(connection, schema)
            if schema.fingerprint() != start.tables[table].fingerprint():
                if schema not in forms:
                    forms.append(schema)
                ranges[i] = replace(ranges[i], form=forms.index(schema) + 1)
        counted = sum(r.rows for r in ranges)
        total = start.rows + counted if is_last else self._estimate(connection, start, counted)
        if self._sizer is not None:
            self._sizer.started(counted, time.time() * 1000)
        threshold = self._options.backlog_lag_ms
        # The log has to be read from the first watermark on.
        behind = at_ms - (start.ranges or ranges)[0].at_ms
        lags = until is not None and threshold is not None and behind > threshold
        return replace(start.with_snapshot(ranges, total, until, is_lagging=lags), forms=tuple(forms))

    def _cut(self, connection: Connection[Any], start: Offset, wanted: int | None) -> list[tuple[int, Chunks]]:
        """Chunks of the next batch, table by table, which hold about ``wanted`` rows, or all."""
        # Sized by time, a batch may well be somewhat larger than planned; a limit that was given, it keeps to.
        limited = self._sizer is None or self._options.max_rows_given
        pieces: list[tuple[int, Chunks]] = []
        counted = 0
        for table, key in start.unread():
            schema = self._schema(start.tables[table])
            rows = wanted if wanted is None else wanted - counted
            if rows is not None and rows <= 0:
                break
            if not schema.chunks_stay:
                rows = None
            before = sum(r.rows for r in start.ranges_of(table))
            splitter = Splitter(connection, schema, self._options)
            chunks = splitter.next(key, rows, at_most=rows is not None and limited, before=before)
            pieces.append((table, chunks))
            counted += chunks.rows
            if chunks.ends[-1] is not None:
                break
        return pieces

    def _snapshot_rows(self, limit: ReadLimit) -> int | None:
        """Rows of the next snapshot batch; None is all."""
        if self._options.during_backlog_ms == 0:
            return None
        if self._sizer is not None:
            return self._sizer.next_rows(time.time() * 1000)
        return limit.max_rows if isinstance(limit, ReadMaxRows) else None

    def _estimate(self, connection: Connection[Any], start: Offset, counted: int) -> int:
        """Rows of the whole snapshot by InnoDB's own statistics: good enough for a progress line, and free."""
        total = start.total or sum(estimated_rows(connection, t) for t in self._captured(start))
        return max(total, start.rows + counted)

    def _next_binlog(self, connection: Connection[Any], start: Offset, limit: ReadLimit) -> Offset | None:
        now = time.time() * 1000
        if not self._available_now and not start.is_lagging and not self._pacer.due(now):
            return None
        origin = start.position or resume_after(start.start)
        if self._planner is None or self._planner.start != origin:
            gtids = gtids_at(start)
            timeline = self._followed(start) if self._options.evolves else None
            self._planner = BinlogPlanner(self._options, self._captured(start), origin, now, gtids, timeline)
        until = self._target if self._available_now and self._target else end_position(connection, self._options)
        last = start.filter_until if self._options.startup_mode == "snapshot" else None
        if last is not None:
            # As of there all snapshot batches are, and no further is asked for.
            until = last
        if isinstance(origin, BinlogPosition) and until.sort_key() < origin.sort_key():
            raise BacklogError(
                f"The server's binary log ends at {until}, before {origin}, up to which it was read.",
                "It was reset or restored: start with a new checkpoint and a new target.",
            )
        position = self._planner.plan(until, self._binlog_rows(start, limit), now)
        if last is not None and (position is None or position.sort_key() >= last.sort_key()):
            self._layouts = (start, self._planner.layouts)
            return replace(start.at(last, self._planner.gtid_at(last)), is_finished=True)
        if position is None and start.is_lagging:
            position = until  # the rest of the log has no rows of the tables: this is where the backlog ends
        if position is None:
            return None
        gtid, lags = self._planner.gtid_at(position), self._lags(connection, self._planner, position, until)
        tables = self._planner.tables_at(position)
        self._layouts = (start, self._planner.layouts)
        if self._sizer is not None and start.is_lagging:
            self._sizer.started(self._planner.rows_until(position), now)
        self._planner.advance(position, now)
        self._pacer.released(now)
        return start.at(position, gtid, tables=tables, is_lagging=lags)

    def _followed(self, start: Offset) -> Followed:
        origin = start.position or resume_after(start.start)
        return Followed(self._options, self._captured(start), start.tables, origin, as_declared)

    def _layouts_at(self, start: Offset) -> Mapping[TableName, Layout]:
        """How rows are laid out after an offset, of the tables that are not as declared."""
        if self._layouts[0] != start:
            same = all(
                s.fingerprint() == k.fingerprint() for s, k in zip(self._captured(start), start.tables, strict=True)
            )
            self._layouts = (start, {} if same else self._followed(start).layouts)
        return self._layouts[1]

    def _binlog_rows(self, start: Offset, limit: ReadLimit) -> int | None:
        """Rows of the next batch of the log; None is all."""
        given = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if not start.is_lagging:
            if self._sizer is not None:
                self._sizer.paused()
            return given
        if self._options.during_backlog_ms == 0:
            return given if self._options.max_rows_given else None
        return given if self._sizer is None else self._sizer.next_rows(time.time() * 1000)

    def _lags(
        self, connection: Connection[Any], planner: BinlogPlanner, position: BinlogPosition, until: BinlogPosition
    ) -> bool:
        """Whether a batch that ends here leaves so much that this is backlog."""
        threshold, began_at = self._options.backlog_lag_ms, planner.time_at(position)
        if threshold is None or began_at is None or position.sort_key() >= until.sort_key():
            return False
        return server_time_ms(connection) - began_at * 1000 > threshold

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = Offset.from_json(start), Offset.from_json(end)
        if first.is_undecided:
            return []
        if not first.complete:
            # Of the first batch Spark asks for the initial offset anew when it repeats it.
            first = replace(first, tables=last.tables)
        if first.complete:
            assert last.position is not None
            return [BinlogPartition(self._captured(first), self._layouts_at(first), first, last.position)]
        found: list[InputPartition] = []
        after = dict(first.unread())
        for of in last.ranges[len(first.ranges) :]:
            low, schema = after[of.table], self._schema(first.tables[of.table])
            chunks = self._range_chunks(schema, of, low)
            lows = [low, *chunks.ends[:-1]]
            known = last.form_of(of)
            found += [SnapshotPartition(schema, known, of, low, a, b) for a, b in zip(lows, chunks.ends, strict=True)]
        return found

    def _range_chunks(self, schema: TableSchema, of: SnapshotRange, low: Key | None) -> Chunks:
        planned = self._chunks.get((of.table, low, of.end))
        if planned is not None:
            return planned
        return self._retrying(lambda c: Splitter(c, schema, self._options).between(low, of.end))

    def _retrying(self, action: Callable[[Connection[Any]], _T]) -> _T:
        """Run on the planner's connection; a lost one is opened again, a few times with growing waits."""
        for attempt in range(_ATTEMPTS):
            try:
                if self._connection is None:
                    self._connection = open_connection(self._options)
                return action(self._connection)
            except (pymysql.err.OperationalError, pymysql.err.InterfaceError, BacklogError) as error:
                cause = error.args[0] if error.args else 0
                lost = isinstance(error, pymysql.err.InterfaceError) or cause in _TRANSIENT
                if isinstance(error, BacklogError):
                    lost = "cannot be reached" in error.problem
                if not lost or attempt == _ATTEMPTS - 1:
                    raise
                self._disconnect()
                time.sleep(_FIRST_WAIT_S * 2**attempt)
        raise AssertionError("the loop returns or raises")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection._force_close()
            self._connection = None

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        self._disconnect()

    # -- reading, in the workers ----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SnapshotPartition):
            return read_chunk(
                self._options,
                partition.schema,
                partition.known,
                partition.of,
                partition.after,
                partition.first,
                partition.last,
            )
        assert isinstance(partition, BinlogPartition)
        return read_batch(self._options, partition.tables, partition.start, partition.until, partition.layouts)

    def __getstate__(self) -> dict[str, Any]:
        # What the planner holds open stays with the planner.
        return {**self.__dict__, "_connection": None, "_planner": None, "_chunks": {}, "_layouts": (None, {})}
