"""Choosing where a binary log batch ends: at a transaction's end, within the limit on rows.

The planner runs beside the query's driver and reads the log ahead of the tasks, counting the tables' rows. So a
batch is never larger than asked unless one transaction is, other tables' traffic makes no empty batches, and the
position still moves on when only others write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from backlog_spark.errors import BacklogError

from ..offsets import BinlogPosition
from ..options import MySqlOptions
from ..schema.ddl.evolution import Followed
from ..schema.ddl.history import Layout
from ..schema.ddl.timeline import TableName, Timeline
from ..schema.table import SchemaChanged, TableSchema
from ..server.gtid import GtidSet, MariaDbGtids
from .ahead import KEPT_BYTES, ReadAhead
from .reading import UPDATE, RowsChange, TableAltered, TransactionEnd, read_changes

__all__ = ["BinlogPlanner"]

# Move a quiet table's position on after this much of the log, so that a restart does not read it again and the
# server may purge it. 64 MiB of other tables' changes are scanned within seconds.
QUIET_BYTES = 64 << 20
QUIET_MS = 60_000
# Transactions wait in so many entries: a batch is up to a hundredth smaller than it may be, and memory is bounded.
_ENTRIES = 100


class _Transaction(NamedTuple):
    """One with rows of a table or several small ones, or one that altered a table."""

    end: BinlogPosition
    rows: int
    gtids: str  # those after it
    began_at: int  # seconds since 1970
    tables: tuple[TableSchema, ...] = ()  # if altered: all of them after it
    layouts: Mapping[TableName, Layout] = MappingProxyType({})
    changes: list[RowsChange] | None = None  # if they are kept


class BinlogPlanner:
    """Transactions after a position, counted but not handed out yet.

    Parameters
    ----------
    options, tables
        Where to read and which tables.
    start : BinlogPosition or str
        The end of the last batch, or the GTID set that the first one starts after.
    gtids : GtidSet or MariaDbGtids, optional
        Those before ``start``, where they are known. `gtid_at` then follows them.
    timeline : Timeline, optional
        How the tables are followed through ALTER TABLE; by default they are not.

    Attributes
    ----------
    tables : tuple of TableSchema
    layouts : mapping
        At ``start``, of the tables that are not as they were declared.
    read_ahead : ReadAhead or None
        The changes of the batch that was handed out last, if they are few and no table was altered among them.
    """

    def __init__(
        self,
        options: MySqlOptions,
        tables: Sequence[TableSchema],
        start: BinlogPosition | str,
        now_ms: float,
        gtids: GtidSet | MariaDbGtids | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self._options = options
        self.tables = tuple(tables)
        self._scanned: BinlogPosition | str = start
        self.start = start
        self._pending: deque[_Transaction] = deque()
        self._entry_rows: int | None = None  # most of them in one entry of several transactions; None is all
        self._kept = 0  # bytes, of all that are pending
        self.read_ahead: ReadAhead | None = None
        self._gtids = gtids
        self._moved_ms = now_ms
        self._timeline = timeline or Timeline()
        self.layouts = self._timeline.layouts if isinstance(self._timeline, Followed) else {}
        self._stop: SchemaChanged | None = None

    def plan(self, until: BinlogPosition, max_rows: int | None, now_ms: float) -> BinlogPosition | None:
        """The end of the next batch, at most ``until``, or None when there is nothing to hand out.

        Parameters
        ----------
        until : BinlogPosition
            The log's end, or the target of ``availableNow``.
        max_rows : int or None
            Most output rows; an update counts two. One transaction is handed out whatever its size. A batch ends with
            an ALTER TABLE that changes the tables' columns.

        Raises
        ------
        SchemaChanged
            A table was changed so that the stream cannot go on, and all before is handed out.
        """
        rows = sum(t.rows for t in self._pending)
        self._entry_rows = None if max_rows is None else max_rows // _ENTRIES
        if self._stop is None and (max_rows is None or rows < max_rows):
            self._scan(until, None if max_rows is None else max_rows - rows)
        end: BinlogPosition | None = None
        taken = 0
        for transaction in self._pending:
            beyond = transaction.end.sort_key() > until.sort_key()
            if beyond or (end is not None and max_rows is not None and taken + transaction.rows > max_rows):
                break
            end, taken = transaction.end, taken + transaction.rows
            if transaction.tables:
                break
        if end is None and self._stop is not None and not self._pending:
            raise self._stop
        if end is None and self._quiet_for_long(now_ms):
            end = self._scanned if isinstance(self._scanned, BinlogPosition) else None
        return None if end == self.start else end

    def _scan(self, until: BinlogPosition, rows: int | None) -> None:
        try:
            self._count(until, rows)
        except SchemaChanged as stop:
            # What comes before it is still to be read.
            self._stop = stop

    def _count(self, until: BinlogPosition, rows: int | None) -> None:
        counted = seen = size = 0
        altered = False
        changes: list[RowsChange] = []
        for change in read_changes(self._options, self.tables, self._scanned, until, timeline=self._timeline):
            if isinstance(change, TableAltered):
                altered = True
            elif isinstance(change, TransactionEnd):
                self._scanned = change.position
                if self._gtids is not None and change.uuid:
                    self._pass(self._gtids, change)
                if counted or altered:
                    found = _Transaction(change.position, counted, str(self._gtids or ""), change.timestamp)
                    if self._kept + size <= KEPT_BYTES:
                        self._kept += size
                        found = found._replace(changes=changes)
                    if altered and isinstance(self._timeline, Followed):
                        found = found._replace(tables=self._timeline.tables(), layouts=self._timeline.layouts)
                    elif self._pending and self._has_room(self._pending[-1], counted):
                        before = self._pending.pop()
                        if before.changes is None or found.changes is None:
                            self._kept -= _size_of(before.changes) + _size_of(found.changes)
                        kept = _together(before.changes, found.changes)
                        found = found._replace(rows=counted + before.rows, changes=kept)
                    self._pending.append(found)
                    seen, counted, altered = seen + counted, 0, False
                    size, changes = 0, []
                    if rows is not None and seen >= rows:
                        return
            else:
                counted += len(change.rows) * (2 if change.kind == UPDATE else 1)
                size += change.size
                if self._kept + size <= KEPT_BYTES:
                    changes.append(change)
        if not isinstance(self._scanned, BinlogPosition) or self._scanned.sort_key() < until.sort_key():
            self._scanned = until  # it is read up to there: the next call need not look again

    def _has_room(self, entry: _Transaction, rows: int) -> bool:
        return not entry.tables and (self._entry_rows is None or entry.rows + rows <= self._entry_rows)

    def _pass(self, gtids: GtidSet | MariaDbGtids, end: TransactionEnd) -> None:
        if isinstance(gtids, GtidSet) and gtids.contains(end.uuid, end.number):
            raise BacklogError(
                f"The server's binary log has transaction {end.uuid}:{end.number}, which was read already, before "
                f"{end.position} again: it was reset or is another one.",
                "Start with a new checkpoint and a new target.",
            )
        gtids.passed(end.uuid, end.number)

    def gtid_at(self, position: BinlogPosition) -> str:
        """The GTIDs at a batch's end that `plan` returned; "" where they are not known."""
        return next((t.gtids for t in self._pending if t.end == position), str(self._gtids or ""))

    def tables_at(self, position: BinlogPosition) -> tuple[TableSchema, ...]:
        """The tables after a batch that `plan` returned; empty where they are as at its start."""
        return next((t.tables for t in self._pending if t.end == position), ())

    def time_at(self, position: BinlogPosition) -> int | None:
        """When the transaction began that a batch from `plan` ends with, seconds since 1970; None if it has no rows."""
        return next((t.began_at for t in self._pending if t.end == position), None)

    def rows_until(self, position: BinlogPosition) -> int:
        """Rows of a batch that `plan` returned."""
        return sum(t.rows for t in self._pending if t.end.sort_key() <= position.sort_key())

    def leaves_rows(self, position: BinlogPosition, until: BinlogPosition) -> bool:
        """Whether a batch that `plan` returned leaves something behind that may be rows."""
        behind = bool(self._pending) and self._pending[-1].end.sort_key() > position.sort_key()
        return behind or (isinstance(self._scanned, BinlogPosition) and self._scanned.sort_key() < until.sort_key())

    def _quiet_for_long(self, now_ms: float) -> bool:
        if not isinstance(self._scanned, BinlogPosition) or self._pending or self._stop:
            return False
        start = self.start if isinstance(self.start, BinlogPosition) else None
        same_file = start is not None and start.file == self._scanned.file
        far = start is not None and (not same_file or self._scanned.pos - start.pos > QUIET_BYTES)
        return far or now_ms - self._moved_ms > QUIET_MS

    def advance(self, position: BinlogPosition, now_ms: float) -> None:
        """A batch that ends at ``position`` was handed out."""
        start = self.start
        changes: list[RowsChange] | None = None if self.layouts else []
        while self._pending and self._pending[0].end.sort_key() <= position.sort_key():
            passed = self._pending.popleft()
            self.layouts = passed.layouts if passed.tables else self.layouts
            self._kept -= _size_of(passed.changes)
            changes = None if passed.tables else _together(changes, passed.changes)
        self.read_ahead = None
        if isinstance(start, BinlogPosition) and changes is not None:
            self.read_ahead = ReadAhead(start, position, changes)
        self.start = position
        self._moved_ms = now_ms


def _size_of(changes: list[RowsChange] | None) -> int:
    return sum(change.size for change in changes or ())


def _together(before: list[RowsChange] | None, more: list[RowsChange] | None) -> list[RowsChange] | None:
    """Both in one list; None unless all are kept."""
    if before is None or more is None:
        return None
    before.extend(more)
    return before
