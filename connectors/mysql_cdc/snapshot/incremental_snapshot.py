"""Reads ranges of captured tables again while the stream follows the log: signals, and repairs.

To ask for ranges, add `RangeRequest`s to ``Offset.requests`` at the end of a batch (`Requests.added`); from a query,
``query.signal("execute-snapshot", {"data-collections": ["db.table"], "ranges": [[after, last, keys], …]})``.

In each batch at most one chunk is read, as of the batch's start offset: the SELECT's rows are taken back to there with
the changes that the log has since (`snapshot.rewind`). The offset is the low watermark, so a batch that is repeated has
the same rows. Their ``_commit_seq`` is that of the offset: after every change that was read before, and before every
change in this batch or later. So the newest ``_commit_seq`` of a key is always its newest state, and no change is held
back or dropped.

A chunk waits while the log is far behind, the table's own snapshot is being read, an ALTER TABLE is ahead in the log,
or the server does not yet show what the query has read of its log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pymysql
from pymysql.connections import Connection
from pyspark.sql.datasource import InputPartition

from backlog_spark.spi.read_limits import ReadLimit

from ..binlog.positions import BinlogPosition, sequence_at
from ..offsets import Offset, RangeAgain
from ..options import MySqlOptions
from ..schema.declared import DeclaredTables
from ..schema.keys import Key
from ..schema.table import TableSchema
from ..server.connection import server_time_ms
from ..server.gtid import GtidSet
from ..server.mysql import is_missing, load_schema, low_watermark
from ..server.retries import is_transient
from ..server.session import Session
from ..server.watermark import PositionWatermark, as_of, shows, watermark
from ..stream.batch_limits import BatchLimits
from .chunks import Splitter, count_rows
from .planner import SnapshotPartition
from .reading import chunk_where
from .requests import RangeRead, RangeRequest, Requests

__all__ = ["IncrementalSnapshot"]

_log = logging.getLogger(__name__)
# The log of a batch takes the limit on rows first. A chunk gets at least this share, so that it ends some day.
_LEAST_SHARE = 10
# A condition that takes longer for one chunk holds up the stream, and ends its signal.
_LONGEST_S = 30.0


class IncrementalSnapshot:
    """Plans what each batch reads of the requests, and the partitions for it.

    Parameters
    ----------
    options, tables, session, limits
        Those of the query.
    """

    def __init__(self, options: MySqlOptions, tables: DeclaredTables, session: Session, limits: BatchLimits) -> None:
        self._limits = limits
        self._options = options
        self._tables = tables
        self._session = session
        self._waits: set[tuple[str, str]] = set()  # what has been logged

    def step(
        self, connection: Connection[Any], start: Offset, end: Offset | None, taken: int, most: int, limit: ReadLimit
    ) -> Offset | None:
        """The end offset of a batch, with what it reads again.

        Parameters
        ----------
        start, end : Offset
            The batch from the log alone; ``end`` is None if the log has nothing new.
        taken, most : int
            Rows of that batch, and the limit on rows.
        limit : ReadLimit
            Spark's limit. What an ALTER TABLE has rewritten is backlog, and read in batches of a snapshot's size.
        """
        captured = {(t.database, t.table) for t in start.tables}
        found = start.requests.without_reads().kept(lambda request: request.table in captured)
        if not found.queue or found.is_paused or start.position is None or start.gtid_until or start.is_lagging:
            return end
        chunk = min(self._options.chunk_size, most)
        wanted: int | None = max(1, chunk // _LEAST_SHARE, min(chunk, most - taken))
        if found.is_backlog:
            wanted = self._limits.snapshot_rows(limit)
        after = self._planned(connection, start, found, wanted)
        if after is None:
            return end
        if found.is_backlog and not after.is_backlog:
            _log.info("The tables that were altered have been read again.")
        if end is not None:
            captured = {(t.database, t.table) for t in end.tables}
            return replace(end, requests=after.kept(lambda request: request.table in captured))
        return replace(start.quiet(), requests=after)

    def _planned(
        self, connection: Connection[Any], start: Offset, found: Requests, wanted: int | None
    ) -> Requests | None:
        """The requests after a batch of about ``wanted`` rows, or of all; None if nothing can be read now."""
        counted = 0
        queue, reads = list(found.queue), list[RangeRead]()
        at_ms = server_time_ms(connection)
        shown: bool | None = None
        for request in found.queue:
            schema = self._ready(connection, start, request)
            if schema is None:
                continue
            if shown is None:
                # Without GTIDs a look begins a new file of the log, so it comes last.
                shown = _shows(low_watermark(connection)[0], as_of(start))
            if not shown:
                break
            try:
                chunks = self._next_chunk(connection, schema, request, None if wanted is None else wanted - counted)
            except pymysql.err.MySQLError as error:
                if is_transient(error) or not request.condition:
                    raise
                _log.warning(
                    "The condition %r of the signal %s does not work for %s: %s. The signal is dropped.",
                    request.condition, request.id, schema.name, error.args[1],
                )  # fmt: skip
                queue.remove(request)
                continue
            last, rows = chunks
            reads.append(RangeRead(request.table, request.after, last, request.condition, request.in_target, at_ms))
            counted += rows
            if last == request.last:
                queue.remove(request)
            else:
                queue[queue.index(request)] = replace(request, after=last)
                break
            if wanted is not None and counted >= wanted:
                break
        if found.is_backlog and reads:
            self._limits.backlog_started(counted, time.time() * 1000)
        after = replace(found, queue=tuple(queue), reads=tuple(reads))
        return None if after == found else after

    def _next_chunk(
        self, connection: Connection[Any], schema: TableSchema, request: RangeRequest, wanted: int | None
    ) -> tuple[Key | None, int]:
        """The last key of a request's next part, and its rows."""
        last, rows = request.last, wanted or 0
        if schema.chunks_stay and not request.in_target:
            splitter = Splitter(connection, schema, self._options)
            is_strict = request.last is not None or (wanted is not None and self._limits.is_strict)
            found = splitter.next(request.after, wanted, at_most=is_strict, high=request.last)
            last, rows = found.ends[-1], found.rows
        if request.condition:
            where = chunk_where(schema, request.after, last, request.condition)
            rows = count_rows(connection, schema, where, _LONGEST_S)
        return last, rows

    def _ready(self, connection: Connection[Any], start: Offset, request: RangeRequest) -> TableSchema | None:
        """The table of a request; None if it cannot be read now."""
        table = next(i for i, t in enumerate(start.tables) if (t.database, t.table) == request.table)
        if table in start.joining or not all(_shows(as_of(start), r.low) for r in start.ranges_of(table)):
            return None
        schema = self._tables.of(start.tables[table])
        if self._tables.is_dropped(schema) or is_missing(connection, *request.table):
            return None
        now = load_schema(connection, self._options, *request.table)
        if now.fingerprint() != schema.fingerprint():
            if request.table not in self._waits:
                self._waits.add(request.table)
                _log.warning(
                    "%s was altered. What %s asks of it is read when the query has been started again.",
                    schema.name, request.id,
                )  # fmt: skip
            return None
        return schema

    def partitions(self, planned: Offset, here: Offset, last: Offset) -> Iterator[InputPartition]:
        """What the workers read again in the batch that ends at ``last``.

        Parameters
        ----------
        planned, here : Offset
            The batch's start, and the same place on the present server.
        """
        for read in last.requests.reads:
            table = next(i for i, t in enumerate(planned.tables) if (t.database, t.table) == read.table)
            schema = self._tables.of(planned.tables[table])
            assert planned.position is not None
            low, at = _low(here), _sequence(planned.position, planned)
            of = RangeAgain(
                read.last, low, read.at_ms, table,
                sequence=at, condition=read.condition, in_target=read.in_target,
            )  # fmt: skip
            for first, end in self._pieces(schema, read):
                yield SnapshotPartition(self._session.server, schema, here.tables[table], of, read.after, first, end)

    def _pieces(self, schema: TableSchema, read: RangeRead) -> list[tuple[Key | None, Key | None]]:
        """The parts of a range that tasks read."""
        if not schema.chunk_key or read.in_target:
            return [(read.after, read.last)]
        ends = self._session.run(lambda c: Splitter(c, schema, self._options).between(read.after, read.last)).ends
        return list(zip([read.after, *ends[:-1]], ends, strict=True))


def _shows(shown: str, wanted: str) -> bool:
    """Whether the first watermark includes the second. If one has GTIDs and the other not, nobody knows."""
    first, second = watermark(shown), watermark(wanted)
    return type(first) is type(second) and shows(first, second)


def _low(here: Offset) -> str:
    """The place that rows are as of: a position if possible, since by GTID the server scans its log file for it."""
    if here.position is None or here.gtid_until is not None or here.server.startswith("mariadb-"):
        return as_of(here)
    return str(PositionWatermark(here.position, GtidSet(here.gtid)))


def _sequence(position: BinlogPosition, start: Offset) -> int:
    """The ``_commit_seq`` of rows as of an offset."""
    return sequence_at(position.file_number + start.shift, position.pos) + start.excess
