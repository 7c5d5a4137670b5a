"""The stream reader of ``mysql_cdc``: plans batches beside the driver, reads their partitions in the workers.

Spark runs the planning methods in one Python process beside the driver, and `read` in the executors' workers. Both get
only the options, the offsets and the pickled reader.
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

from backlog_spark.common.gc_tuning import keep_imports
from backlog_spark.errors import BacklogError
from backlog_spark.spi.pacing import BacklogSizer, GrowingLimit, LongPoll, Pacer, QueryBacklog, poll_every_ms

from .binlog.ahead import ReadAhead, carried, packed
from .binlog.batches import read_batch, rows_of
from .binlog.planner import BinlogPlanner
from .binlog.reading import read_changes
from .binlog.startup import decide
from .offsets import BinlogPosition, Offset, SnapshotRange
from .options import MySqlOptions
from .schema.ddl.evolution import Followed, StartAgain, as_declared
from .schema.ddl.history import Layout
from .schema.ddl.timeline import Statements, TableName
from .schema.declared import DeclaredTables
from .schema.keys import Key
from .schema.table import SchemaChanged, TableSchema
from .server.connection import server_time_ms
from .server.continuity import check_history
from .server.failover import PositionsByGtid, moved
from .server.mysql import end_position, load_schema, open_connection, server_identity
from .server.retention import Retention
from .server.watermark import gtids_at
from .server.watermark import origin as origin_of
from .snapshot.new_tables import Joining
from .snapshot.planner import SnapshotPlanner
from .snapshot.reading import read_chunk
from .snapshot.remaining import Remaining

__all__ = ["BinlogPartition", "MySqlCdcStreamReader", "SnapshotPartition"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_TRANSIENT = {2003, 2006, 2013, 2014, 2055, 1053, 1927}
_ATTEMPTS = 6
_FIRST_WAIT_S = 0.5


@dataclass
class SnapshotPartition(InputPartition):
    """One chunk: a table's keys after ``first`` up to ``last``, of a range that starts after ``after``.

    ``known`` is the table's definition at the range's low watermark.
    """

    server: str
    schema: TableSchema
    known: TableSchema
    of: SnapshotRange
    after: Key | None
    first: Key | None
    last: Key | None


@dataclass
class BinlogPartition(InputPartition):
    """The binary log after ``start`` up to ``until``. One partition keeps the order of the log.

    ``layouts``: of tables whose rows in the log have other columns than declared. ``only``: the GTID set of the
    transactions to read; "" for all. ``rows``: the rows themselves, if the planner has read them already.
    """

    server: str
    tables: tuple[TableSchema, ...]
    layouts: Mapping[TableName, Layout]
    start: Offset
    until: BinlogPosition
    only: str = ""
    rows: bytes | None = None


class MySqlCdcStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches beside the driver; reads partitions in the workers."""

    def __init__(self, options: MySqlOptions, tables: Sequence[TableSchema]) -> None:
        self._options = options
        self._tables = DeclaredTables(options, tables)
        self._snapshots = SnapshotPlanner(options, self._tables)
        self._joining = Joining(options, self._tables, self._snapshots)
        self._connection: Connection[Any] | None = None
        self._planner: BinlogPlanner | None = None
        self._layouts: tuple[Offset | None, Mapping[TableName, Layout]] = (None, {})
        self._carried: tuple[ReadAhead, bytes | None] | None = None
        self._available_now = False
        self._target: BinlogPosition | None = None
        during = options.during_backlog_ms
        self._sizer = BacklogSizer(during, options.max_rows if options.max_rows_given else None) if during else None
        self._pacer = Pacer(options.interval_ms or 0, during, QueryBacklog(options.query_token))
        self._live_limit = GrowingLimit(options.max_rows)
        self._long_poll = LongPoll(options.poll_wait_ms, poll_every_ms(options.interval_ms or 0))
        self._checked_start = self._checked_history = False
        self._server = self._moved_from = ""
        self._positions: PositionsByGtid = {}
        self._retention = Retention()
        self._remaining = Remaining(options)

    # -- planning, beside the driver ------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        first = Offset(server="", tables=self._tables.every(), complete=not self._options.has_snapshot)
        return self._retrying(lambda c: replace(first, server=server_identity(c)).to_json())

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True
        self._target = self._retrying(lambda c: end_position(c, self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = Offset.from_json(start)

        def look() -> Offset | None:
            return self._retrying(lambda c: self._next(c, offset, limit))

        # A finished stream, or one that has to end, gets no more rows to wait for.
        waits = offset.complete and not offset.is_finished and not self._available_now
        end = self._long_poll(look, self._pacer.due_in) if waits else look()
        return start if end is None else end.to_json()

    def _next(self, connection: Connection[Any], start: Offset, limit: ReadLimit) -> Offset | None:
        start = self._here(connection, start)
        self._check_history(connection, start)
        if not self._checked_start:
            self._check_start(start)
            self._checked_start = True
        if self._available_now and self._options.target == "none":
            return None
        if start.is_undecided:
            return self._decided(connection, start)
        if start.is_finished:
            return None
        if start.complete and self._available_now and self._options.target == "backlogEnd" and not start.is_lagging:
            return None
        step = self._next_live if start.complete else self._next_snapshot
        try:
            return step(connection, start, limit)
        except StartAgain:
            if self._options.format == "row":
                raise
        # The columns are inside the envelopes, so the stream need not be declared again.
        for known in start.tables:
            self._tables.add(load_schema(connection, self._options, known.database, known.table))
        self._planner = None
        return step(connection, start, limit)

    def _here(self, connection: Connection[Any], start: Offset) -> Offset:
        """The offset, translated to the server that the connection reaches."""
        self._server = self._server or server_identity(connection)
        if start.server == self._server:
            return start
        found = moved(connection, self._options, start, self._server, self._positions)
        if self._moved_from != start.server:
            self._moved_from = start.server
            _log.warning("The query continues on server %s; its checkpoint is of %s.", self._server, start.server)
        return found

    def _check_history(self, connection: Connection[Any], start: Offset) -> None:
        """Refuse a log that is not the checkpoint's."""
        if not self._checked_history and not start.is_finished:
            check_history(connection, self._checked(), start)
        self._checked_history = True

    def _check_start(self, start: Offset) -> None:
        """Refuse a table whose columns are not the checkpoint's, unless ``schemaChange=evolve``."""
        for known in start.tables:
            if self._tables.of(known).fingerprint() != known.fingerprint() and not self._options.evolves:
                raise SchemaChanged(
                    f"The columns of {known.name} were altered since the checkpoint was made.",
                    "Set schemaChange=evolve to continue with it, or start the query again with a new checkpoint.",
                )
        others = [t.name for t in self._tables.others(start)]
        if others and not self._options.adds_tables:
            _log.warning(
                "The checkpoint has %d tables; not among them: %s. They are not captured. To capture them, set "
                "scanNewlyAddedTables=true.",
                len(start.tables),
                ", ".join(others),
            )

    def _decided(self, connection: Connection[Any], start: Offset) -> Offset:
        """Where in the log a stream without a snapshot starts. Refused if its tables were altered after that."""
        found = decide(connection, self._options, start)
        tables = self._tables.captured(start)
        later = Statements()
        origin = origin_of(found)
        for _ in read_changes(self._options, tables, origin, end_position(connection, self._options), timeline=later):
            pass
        for altered in later.found:
            raise SchemaChanged(
                f"{altered.schema.name} was altered after the position where the stream would start, by "
                f"{altered.statement[:200]!r}: the binary log does not say which columns it had before.",
                f"Start after it: startup.mode=specific, startup.file={altered.end.file}, "
                f"startup.position={altered.end.pos}.",
            )
        for schema in tables:
            self._tables.check_unaltered(connection, schema)
        return replace(found, tables=tables)

    def _checked(self) -> MySqlOptions:
        """The options for further connections, which must reach the same server."""
        return replace(self._options, server=self._server)

    def _next_snapshot(self, connection: Connection[Any], start: Offset, limit: ReadLimit) -> Offset:
        self._retention.look(connection, start, time.time() * 1000)
        if not start.ranges:
            # There is no low watermark yet, and tables may have been altered after the checkpoint was made.
            start = replace(start, tables=self._tables.captured(start))
        wanted = self._snapshot_rows(limit)
        plan = self._snapshots.plan(connection, start, wanted, limited=self._is_limited)
        # This position is read after the low watermark, so all its transactions lie at or before it.
        until = end_position(connection, self._options) if plan.is_last else None
        if until is not None and self._available_now:
            # The copied tables are consistent only once the log has been read up to the last watermark.
            self._target = until
        planned = start.with_snapshot(plan.ranges, 0, until)
        total = planned.rows
        if until is None:
            total += self._remaining.rows(connection, self._tables.captured(start), planned)
        if self._sizer is not None:
            self._sizer.started(plan.rows, time.time() * 1000)
        threshold = self._options.backlog_lag_ms
        # Reading the log starts at the first watermark.
        behind = plan.ranges[0].at_ms - (start.ranges or plan.ranges)[0].at_ms
        lags = until is not None and threshold is not None and behind > threshold
        return replace(start.with_snapshot(plan.ranges, total, until, is_lagging=lags), forms=plan.forms)

    @property
    def _is_limited(self) -> bool:
        """Whether the limit on rows is strict. One that follows from times may be exceeded somewhat."""
        return self._sizer is None or self._options.max_rows_given

    def _snapshot_rows(self, limit: ReadLimit) -> int | None:
        """Rows of the next snapshot batch; None for all."""
        if self._options.during_backlog_ms == 0:
            return None
        if self._sizer is not None:
            return self._sizer.next_rows(time.time() * 1000)
        return limit.max_rows if isinstance(limit, ReadMaxRows) else None

    def _next_live(self, connection: Connection[Any], start: Offset, limit: ReadLimit) -> Offset | None:
        """A batch of the binary log phase: the log, and tables that were found later."""
        now = time.time() * 1000
        if not self._available_now and not start.is_lagging and not self._pacer.due(now):
            return None
        end = self._next_binlog(connection, start, limit, now)
        if self._options.adds_tables and (start.joining or not self._available_now):
            joined = self._joining.step(connection, start, end, self._options.max_rows, now)
            if joined is not None and end is None:
                self._layouts = (start, self._planner.layouts if self._planner else {})
                self._pacer.released(now)
            if start.joining and joined and not joined.joining and self._available_now:
                self._target = joined.filter_until
            end = joined
        return end

    def _next_binlog(self, connection: Connection[Any], start: Offset, limit: ReadLimit, now: float) -> Offset | None:
        origin = origin_of(start)
        if self._planner is None or self._planner.start != origin or len(self._planner.tables) != len(start.tables):
            gtids = gtids_at(start)
            timeline = self._followed(start) if self._options.evolves else None
            self._planner = BinlogPlanner(self._checked(), self._tables.captured(start), origin, now, gtids, timeline)
        until = self._target if self._available_now and self._target else end_position(connection, self._options)
        last = start.filter_until if self._options.startup_mode == "snapshot" else None
        if last is not None:
            # All snapshot batches are made consistent up to here, and the user asked for nothing more.
            until = last
        if isinstance(origin, BinlogPosition) and until.sort_key() < origin.sort_key():
            raise BacklogError(
                f"The server's binary log ends at {until}, before {origin}, up to which the query has read it.",
                "It was reset or restored: start with a new checkpoint and a new target.",
            )
        position = self._planner.plan(until, self._binlog_rows(start, limit), now)
        if last is not None and (position is None or position.sort_key() >= last.sort_key()):
            self._layouts = (start, self._planner.layouts)
            return replace(start.at(last, self._planner.gtid_at(last)), is_finished=True)
        if position is None and start.is_lagging:
            position = until  # the rest of the log has no rows of the tables: the backlog ends here
        if position is None:
            return None
        gtid, lags = self._planner.gtid_at(position), self._lags(connection, self._planner, position, until)
        tables = self._planner.tables_at(position)
        self._layouts = (start, self._planner.layouts)
        rows = self._planner.rows_until(position)
        self._live_limit.taken(rows, all_of_them=not self._planner.leaves_rows(position, until))
        if self._sizer is not None and start.is_lagging:
            self._sizer.started(rows, now)
        self._planner.advance(position, now)
        self._pacer.released(now)
        return start.at(position, gtid, tables=tables, is_lagging=lags)

    def _followed(self, start: Offset) -> Followed:
        return Followed(self._checked(), self._tables.captured(start), start.tables, origin_of(start), as_declared)

    def _layouts_at(self, start: Offset) -> Mapping[TableName, Layout]:
        """The layout of rows after an offset, for tables whose columns are not as declared."""
        if self._layouts[0] != start:
            same = self._tables.same(start)
            self._layouts = (start, {} if same else self._followed(start).layouts)
        return self._layouts[1]

    def _binlog_rows(self, start: Offset, limit: ReadLimit) -> int | None:
        """Rows of the next batch of the log; None for all."""
        given = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if not start.is_lagging:
            if self._sizer is not None:
                self._sizer.paused()
            grows = given == self._options.max_rows and not self._options.max_rows_given and not self._available_now
            return self._live_limit.rows if grows else given
        if self._options.during_backlog_ms == 0:
            return given if self._options.max_rows_given else None
        return given if self._sizer is None else self._sizer.next_rows(time.time() * 1000)

    def _lags(
        self, connection: Connection[Any], planner: BinlogPlanner, position: BinlogPosition, until: BinlogPosition
    ) -> bool:
        """Whether the log after this batch is so far behind that it is backlog."""
        threshold, began_at = self._options.backlog_lag_ms, planner.time_at(position)
        if threshold is None or began_at is None or position.sort_key() >= until.sort_key():
            return False
        return server_time_ms(connection) - began_at * 1000 > threshold

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = Offset.from_json(start), Offset.from_json(end)
        if first.is_undecided:
            return []
        here = [self._retrying(lambda c, o=o: self._here(c, o)) for o in (first, last)]  # type: ignore[misc]
        # A repeated batch is read before anything is planned, so this may be the first check.
        self._retrying(lambda c: self._check_history(c, here[0]))
        # Watermarks are those of this server. What else belongs to another server is handled below.
        first, last = (replace(o, ranges=h.ranges) for o, h in zip((first, last), here, strict=True))
        if not first.complete:
            # When Spark repeats the first batch, it asks for the initial offset again.
            first = replace(first, tables=last.tables)
        if first.complete:
            found = self._snapshot_partitions(first, last)
            # Positions of two servers may have the same name.
            if first.position is None or (first.server, first.position) != (last.server, last.position):
                found.append(self._retrying(lambda c: self._binlog_partition(c, first, last)))
            return found
        return self._snapshot_partitions(first, last)

    def _snapshot_partitions(self, first: Offset, last: Offset) -> list[InputPartition]:
        """One partition for each chunk of the ranges that are in ``last`` but not in ``first``."""
        found: list[InputPartition] = []
        after = {**dict.fromkeys(range(len(last.tables))), **dict(first.unread())}
        for of in last.ranges[len(first.ranges) :]:
            low, schema = after[of.table], self._tables.of(last.tables[of.table])
            for a, b in self._snapshots.chunks(of, schema, low, self._retrying):
                found.append(SnapshotPartition(self._server, schema, last.form_of(of), of, low, a, b))
        return found

    def _binlog_partition(self, connection: Connection[Any], first: Offset, last: Offset) -> BinlogPartition:
        assert last.position is not None
        start = self._here(connection, first)
        until, only = last.position, ""
        if last.server != self._server:
            # Planned on another server: read the same transactions, wherever they are in this server's log.
            there = self._here(connection, last)
            until, only = (there.gtid_until or until, last.gtid) if there.position is None else (there.position, "")
        # A table that joins in this very batch is filtered by its own watermark.
        read = replace(start, ranges=(*first.ranges, *last.ranges[len(first.ranges) :]))
        tables, layouts = self._tables.captured(first), self._layouts_at(start)
        rows = None if only or layouts else self._read_ahead(tables, read, until)
        return BinlogPartition(self._server, tables, layouts, read, until, only, rows)

    def _read_ahead(self, tables: tuple[TableSchema, ...], start: Offset, until: BinlogPosition) -> bytes | None:
        """The rows after an offset, if the planner has read exactly these. Spark may ask for them several times."""
        ahead = None if self._planner is None else self._planner.read_ahead
        if ahead is None or self._planner is None or self._planner.tables != tables or start.ranges or start.joining:
            return None
        if (ahead.start, ahead.end) != (origin_of(start), until):
            return None
        if self._carried is None or self._carried[0] is not ahead:
            self._carried = ahead, packed(rows_of(self._options, self._planner.tables, start, ahead.changes))
            ahead.changes.clear()  # they take far more memory than the packed rows
        return self._carried[1]

    def _retrying(self, action: Callable[[Connection[Any]], _T]) -> _T:
        """Run on the planner's connection. A lost connection is opened again, a few times with growing waits."""
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
            # The address may belong to another server now.
            self._checked_start, self._checked_history, self._server = False, False, ""

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        self._disconnect()

    # -- reading, in the workers ----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SnapshotPartition | BinlogPartition)
        keep_imports()
        options = replace(self._options, server=partition.server)
        if isinstance(partition, SnapshotPartition):
            return read_chunk(
                options,
                partition.schema,
                partition.known,
                partition.of,
                partition.after,
                partition.first,
                partition.last,
            )
        if partition.rows is not None:
            return carried(partition.rows)
        return read_batch(
            options, partition.tables, partition.start, partition.until, partition.layouts, partition.only
        )

    def __getstate__(self) -> dict[str, Any]:
        # Connections and state of the planner stay with the planner.
        return {
            **self.__dict__,
            "_connection": None,
            "_planner": None,
            "_snapshots": None,
            "_joining": None,
            "_layouts": (None, {}),
            "_carried": None,
        }
