"""Plans what a snapshot batch reads: ranges of keys, table by table, and the watermark at which they are read."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pymysql.connections import Connection
from pyspark.sql.datasource import InputPartition

from backlog_spark.spi.read_limits import ReadLimit

from ..offsets import NO_TABLE, Offset, SnapshotRange
from ..options import MySqlOptions
from ..schema.ddl.timeline import TableName
from ..schema.declared import DeclaredTables
from ..schema.keys import Key
from ..schema.table import TableSchema
from ..server.mysql import end_position, is_missing, low_watermark
from ..server.retention import Retention
from ..server.session import Session
from ..server.unlogged import without_prepared
from ..stream.batch_limits import BatchLimits
from .chunks import Chunks, Splitter
from .remaining import Remaining
from .resnapshot import row_sequence

__all__ = ["SnapshotPartition", "SnapshotPlan", "SnapshotPlanner", "TableMissing", "kept_watermark"]

_log = logging.getLogger(__name__)
# A batch keeps the last low watermark while fewer than 1/512 of the rows so far were read at it. So an offset has at
# most 512 * (1 + ln(batches / 512)) ranges: 1,700 after 5,000 batches. The log that a task reads again grows to that of
# 10 batches then.
_SHARE = 512


@dataclass
class SnapshotPartition(InputPartition):
    """One chunk: a table's keys after ``first`` up to ``last``, of a range that starts after ``after``.

    ``known`` is the table's definition at the range's low watermark, ``sequence`` the rows' ``_commit_seq``.
    """

    server: str
    schema: TableSchema
    known: TableSchema
    of: SnapshotRange
    after: Key | None
    first: Key | None
    last: Key | None
    sequence: int = 0


@dataclass(frozen=True)
class SnapshotPlan:
    """The ranges of a batch.

    Parameters
    ----------
    ranges : tuple of SnapshotRange
    forms : tuple of TableSchema
        `Offset.forms` after the batch.
    is_last : bool
        Whether the batch completes every table.
    """

    ranges: tuple[SnapshotRange, ...]
    forms: tuple[TableSchema, ...]
    is_last: bool

    @property
    def rows(self) -> int:
        return sum(r.rows for r in self.ranges)


class TableMissing(Exception):
    """A table was dropped before anything of it was read."""

    def __init__(self, name: TableName) -> None:
        self.name = name


class SnapshotPlanner:
    """Plans one snapshot batch after the other, and cuts them into chunks.

    Parameters
    ----------
    options, tables, session, limits
        Those of the query.
    """

    def __init__(self, options: MySqlOptions, tables: DeclaredTables, session: Session, limits: BatchLimits) -> None:
        self._options = options
        self._tables = tables
        self._session = session
        self._limits = limits
        self._retention = Retention(options)
        self._remaining = Remaining(options)
        self._chunks: dict[tuple[int, Key | None, Key | None], Chunks] = {}

    def next(self, connection: Connection[Any], start: Offset, limit: ReadLimit) -> Offset:
        """The end of the snapshot batch after ``start``.

        Raises
        ------
        BacklogError
            The server has purged the log since the first low watermark.
        SchemaChanged
            A table does not have its declared columns.
        """
        self._retention.look(connection, start, time.time() * 1000)
        if not start.ranges:
            # There is no low watermark yet, and tables may have been altered after the checkpoint was made.
            start = replace(start, tables=self._tables.captured(start))
        if not start.unread():
            return self._without_rest(connection, start)
        try:
            plan = self.plan(connection, start, self._limits.snapshot_rows(limit), limited=self._limits.is_strict)
        except TableMissing as missing:
            _log.warning("The table %s was dropped before its snapshot was read.", ".".join(missing.name))
            end = start.without([missing.name], come_back=True)
            return replace(end, is_backlog=start.is_processing_backlog, table_events=frozenset())
        # This position is read after the low watermark, so all its transactions lie at or before it.
        until = end_position(connection, self._options) if plan.is_last else None
        if until is not None and self._limits.available_now:
            # The copied tables are consistent only once the log has been read up to the last watermark.
            self._limits.target = until
        self._limits.backlog_started(plan.rows, time.time() * 1000)
        captured = self._tables.captured(start)
        plan = replace(plan, ranges=self._remaining.count(connection, captured, start, plan.ranges))
        planned = start.with_snapshot(plan.ranges, 0, until)
        total = planned.rows
        if until is None:
            total += self._remaining.rows(connection, captured, planned)
        threshold = self._options.backlog_lag_ms
        # Reading the log starts at the first watermark.
        behind = plan.ranges[0].at_ms - (start.ranges or plan.ranges)[0].at_ms
        lags = until is not None and threshold is not None and behind > threshold
        return replace(start.with_snapshot(plan.ranges, total, until, is_lagging=lags), forms=plan.forms)

    def _without_rest(self, connection: Connection[Any], start: Offset) -> Offset:
        """The end of the snapshot phase when the tables that it would read are no longer captured."""
        low = start.ranges[0].low if start.ranges else low_watermark(connection)[0]
        until = end_position(connection, self._options)
        if self._limits.available_now:
            self._limits.target = until
        return replace(start.with_snapshot((), start.total, until), start=low)

    def plan(self, connection: Connection[Any], start: Offset, wanted: int | None, *, limited: bool) -> SnapshotPlan:
        """The next batch.

        Parameters
        ----------
        wanted : int or None
            Rows that it should have; None for all that are left.
        limited : bool
            Whether ``wanted`` is a strict limit. Otherwise a batch may be somewhat larger.

        Raises
        ------
        SchemaChanged
            A table does not have its declared columns.
        TableMissing
            The server has no such table, and nothing of it was read.
        """
        pieces = self._cut(connection, start, wanted, limited)
        after = dict(start.unread())
        begins = any(after[table] is None for table, _ in pieces)
        take = functools.partial(low_watermark, connection)
        kept = None if begins else kept_watermark(start, [self._tables.of(t) for t in start.tables])
        low, at_ms = kept or (without_prepared(connection, take) if begins else take())
        if not start.ranges and not start.complete:
            self._check_unread(connection, start, {table for table, _ in pieces})
        self._chunks = {(t, after[t], chunks.ends[-1]): chunks for t, chunks in pieces if chunks}
        forms = list(start.forms)
        ranges = []
        for table, chunks in pieces:
            schema = self._tables.of(start.tables[table])
            if chunks is None:
                ranges.append(SnapshotRange(None, low, at_ms, table, form=NO_TABLE))
                continue
            self._tables.check_unaltered(connection, schema)
            found = SnapshotRange(chunks.ends[-1], low, at_ms, table, chunks.rows)
            if schema.fingerprint() != start.tables[table].fingerprint():
                if schema not in forms:
                    forms.append(schema)
                found = replace(found, form=forms.index(schema) + 1)
            ranges.append(found)
        is_last = len(ranges) == len(after) and ranges[-1].end is None
        return SnapshotPlan(tuple(ranges), tuple(forms), is_last)

    def _check_unread(self, connection: Connection[Any], start: Offset, planned: set[int]) -> None:
        """The log begins at the first low watermark. So tables that later batches read must have their columns now."""
        for table, known in enumerate(start.tables):
            if table not in planned and not is_missing(connection, known.database, known.table):
                self._tables.check_unaltered(connection, self._tables.of(known))

    def _cut(
        self, connection: Connection[Any], start: Offset, wanted: int | None, limited: bool
    ) -> list[tuple[int, Chunks | None]]:
        """Chunks that hold about ``wanted`` rows, by table. None for the rest of a table that was dropped meanwhile."""
        pieces: list[tuple[int, Chunks | None]] = []
        counted = 0
        for table, key in start.unread():
            schema = self._tables.of(start.tables[table])
            rows = wanted if wanted is None else wanted - counted
            if rows is not None and rows <= 0:
                break
            if self._tables.is_dropped(schema) or is_missing(connection, schema.database, schema.table):
                if not start.ranges_of(table):
                    raise TableMissing((schema.database, schema.table))
                pieces.append((table, None))  # the log, from the first watermark on, has the DROP TABLE
                continue
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

    def partitions(self, first: Offset, last: Offset) -> list[InputPartition]:
        """One partition for each chunk of the ranges that are in ``last`` but not in ``first``."""
        found: list[InputPartition] = []
        server = self._session.server
        sequence = row_sequence(first, last)
        after = {**dict.fromkeys(range(len(last.tables))), **dict(first.unread())}
        for of in last.added_since(first):
            if of.form == NO_TABLE:
                continue
            low, schema = after[of.table], self._tables.of(last.tables[of.table])
            ends = self._chunks_of(of, schema, low).ends
            for a, b in zip([low, *ends[:-1]], ends, strict=True):
                found.append(SnapshotPartition(server, schema, last.form_of(of), of, low, a, b, sequence))
        return found

    def _chunks_of(self, of: SnapshotRange, schema: TableSchema, low: Key | None) -> Chunks:
        """The chunks of a range after key ``low``. The server is asked if another process planned the range."""
        return self._chunks.get((of.table, low, of.end)) or self._session.run(
            lambda connection: Splitter(connection, schema, self._options).between(low, of.end)
        )


def kept_watermark(start: Offset, declared: Sequence[TableSchema]) -> tuple[str, int] | None:
    """The last low watermark, and its time, if the batch after ``start`` goes on at it; None if it needs a new one.

    A task takes rows back to a low watermark however old it is. So an old one costs only that it reads more of the log.

    Parameters
    ----------
    declared : sequence of TableSchema
        The definitions that the tables have now.
    """
    if start.complete or not start.ranges:
        return None
    last = start.ranges[-1]
    at_it = sum(r.rows for r in start.ranges if (r.low, r.at_ms) == (last.low, last.at_ms))
    if at_it * _SHARE >= start.rows or start.form_of(last).fingerprint() != declared[last.table].fingerprint():
        return None
    return last.low, last.at_ms
