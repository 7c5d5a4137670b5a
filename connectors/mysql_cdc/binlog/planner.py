"""Chooses where a binary log batch ends: at a transaction's end, within the limit on rows.

The planner runs beside the query's driver, reads the log ahead of the tasks and counts the tables' rows. It decodes
only rows of small batches, which travel with their partition. So a batch is never larger than asked unless a single
transaction is; changes of other tables make no empty batches; and the position still advances when only other tables
change.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from backlog_spark.spi.signals import Signal

from ..options import MySqlOptions
from ..schema.ddl.evolution import Followed
from ..schema.ddl.history import Layout
from ..schema.ddl.rewriting import NOTHING
from ..schema.ddl.statements import TRUNCATE
from ..schema.ddl.timeline import TableName, Timeline
from ..schema.table import SchemaChanged, TableSchema
from ..server.gtid import GtidSet, MariaDbGtids
from ..server.log_gone import LogGone
from .positions import BinlogPosition
from .prefetched_rows import KEPT_BYTES, ReadAhead
from .reading import UPDATE, RowsChange, TableAltered, TableEmptied, TransactionEnd, read_changes
from .truncated_tables import Effect

__all__ = ["BinlogPlanner", "Rewritten"]

_log = logging.getLogger(__name__)

# If the tables are quiet, the position advances after this much of the log. So a restart does not read it again, and
# the server may purge it. 64 MiB of other tables' changes are scanned within seconds.
QUIET_BYTES = 64 << 20
QUIET_MS = 60_000
# Waiting transactions are grouped into at most this many entries. So memory is bounded, and a batch is at most a
# hundredth smaller than allowed.
_ENTRIES = 100


_FOLLOWS = {
    "empty": "The table leaves the stream: its rows are removed from targets, and it is read from its beginning.",
    "fill": "Targets get the default in old rows.",
    "read": "The table is read again while the stream goes on.",
}
_Kept = list[RowsChange | TableEmptied]


class Rewritten(NamedTuple):
    """What a statement that changed a table's old rows asks for.

    Parameters
    ----------
    table : (str, str)
    does : str
        ``"empty"``: its rows go and come back with a new snapshot; ``"read"``: it is read again; ``"fill"``: sinks fill
        new columns.
    values : str
        Those of ``"fill"``: `Rewriting.values`.
    """

    table: TableName
    does: str
    values: str = ""


class _Transaction(NamedTuple):
    """A transaction with rows of a table, several small ones, or one that altered or removed a table."""

    end: BinlogPosition
    rows: int
    gtids: str  # after it
    began_at: int  # seconds since 1970
    tables: tuple[TableSchema, ...] = ()  # if one was altered: all tables after it
    layouts: Mapping[TableName, Layout] = MappingProxyType({})
    changes: _Kept | None = None  # if they are kept
    events: frozenset[str] = frozenset()  # kinds of statements that have a row
    leaving: frozenset[TableName] = frozenset()  # tables that leave the stream with it
    excess: int = 0  # as `Offset.excess`, after it
    signals: tuple[Signal, ...] = ()
    rewritten: tuple[Rewritten, ...] = ()
    committed: tuple[int, int] = (0, 0)  # the first and the last commit, milliseconds since 1970

    @property
    def ends_batch(self) -> bool:
        return bool(self.tables or self.leaving)


def _no_effect(found: TableEmptied) -> Effect:
    return Effect(is_told=False, leaves=False)


def _not_held(found: TableAltered) -> bool | None:
    return False


class BinlogPlanner:
    """Holds transactions after a position that are counted but not in a batch yet.

    Parameters
    ----------
    options, tables
        Where to read and which tables.
    start : BinlogPosition or str
        The end of the last batch, or the GTID set after which the first one starts.
    gtids : GtidSet or MariaDbGtids, optional
        The GTIDs before ``start``, if known. Then `gtid_at` continues them.
    excess : int
        `Offset.excess` at ``start``.
    timeline : Timeline, optional
        Follows the tables through ALTER TABLE. By default they are not followed.
    effect : callable, optional
        What a TRUNCATE or DROP of a table does; by default nothing.
    signal_table : TableSchema, optional
        The table whose new rows are signals.
    is_held : callable, optional
        Whether the rows of a table's snapshot were read after an ALTER TABLE: `emptied.is_held`. By default not.

    Attributes
    ----------
    tables : tuple of TableSchema
    layouts : mapping
        Layouts at ``start`` of the tables that have other columns than declared.
    read_ahead : ReadAhead or None
        The changes of the last batch, if they are few and no table was altered among them.
    """

    def __init__(
        self,
        options: MySqlOptions,
        tables: Sequence[TableSchema],
        start: BinlogPosition | str,
        now_ms: float,
        gtids: GtidSet | MariaDbGtids | None = None,
        timeline: Timeline | None = None,
        excess: int = 0,
        effect: Callable[[TableEmptied], Effect] = _no_effect,
        signal_table: TableSchema | None = None,
        is_held: Callable[[TableAltered], bool | None] = _not_held,
    ) -> None:
        self._options = options
        self._effect = effect
        self._is_held = is_held
        self._signal_table = signal_table
        self.tables = tuple(tables)
        self._scanned: BinlogPosition | str = start
        self.start = start
        self._pending: deque[_Transaction] = deque()
        self._entry_rows: int | None = None  # most rows in one entry of several transactions; None for no limit
        self._kept = 0  # bytes of the kept changes of all entries
        self.read_ahead: ReadAhead | None = None
        self._gtids = gtids
        self._excess = excess
        self._moved_ms = now_ms
        self._timeline = timeline or Timeline()
        self.layouts = self._timeline.layouts if isinstance(self._timeline, Followed) else {}
        self._stop: SchemaChanged | None = None

    @property
    def server(self) -> str:
        """The server that is read; "" for any."""
        return self._options.server

    def plan(self, until: BinlogPosition, max_rows: int | None, now_ms: float) -> BinlogPosition | None:
        """The end of the next batch, at most ``until``; None when there is nothing for a batch.

        Parameters
        ----------
        until : BinlogPosition
            The log's end, or the target of ``availableNow``.
        max_rows : int or None
            Most output rows; an update counts as two. A single transaction may exceed it. A batch ends at an ALTER
            TABLE that changes the tables' columns, and where a table leaves the stream.

        Raises
        ------
        SchemaChanged
            A table was changed so that the stream cannot continue, and everything before is in earlier batches.
        """
        rows = sum(t.rows for t in self._pending)
        self._entry_rows = None if max_rows is None else max_rows // _ENTRIES
        leaves = bool(self._pending) and bool(self._pending[-1].leaving)  # a later planner reads on, without the table
        if self._stop is None and not leaves and (max_rows is None or rows < max_rows):
            self._scan(until, None if max_rows is None else max_rows - rows)
        end: BinlogPosition | None = None
        taken = 0
        for transaction in self._pending:
            beyond = transaction.end.sort_key() > until.sort_key()
            if beyond or (end is not None and max_rows is not None and taken + transaction.rows > max_rows):
                break
            end, taken = transaction.end, taken + transaction.rows
            if transaction.ends_batch:
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
            # Raised later: the changes before it come first.
            self._stop = stop

    def _count(self, until: BinlogPosition, rows: int | None) -> None:
        counted = seen = size = 0
        altered = False
        events: set[str] = set()
        leaving: set[TableName] = set()
        changes: _Kept = []
        signals: list[Signal] = []
        rewritten: list[Rewritten] = []

        def counts(more: int) -> bool:
            # Values are decoded only of rows that are kept, to travel with their partition.
            return self._kept + size + more > KEPT_BYTES

        scanned = self._scanned
        if isinstance(scanned, BinlogPosition):
            scanned = replace(scanned, gtids=str(self._gtids or ""))
        for change in read_changes(
            self._options, self.tables, scanned, until, timeline=self._timeline, counts=counts,
            signals=self._signal_table,
        ):  # fmt: skip
            if isinstance(change, TableAltered):
                altered = True
                if follows := self._rewritten(change):
                    rewritten.append(follows)
                    if follows.does == "empty":
                        counted += 1
                        events.add(TRUNCATE)
                        leaving.add(change.name)
            elif isinstance(change, TransactionEnd):
                self._scanned = change.position
                self._excess += change.excess
                if self._gtids is not None and change.uuid:
                    self._pass(self._gtids, change)
                if counted or altered or leaving or signals:
                    found = _Transaction(
                        change.position, counted, str(self._gtids or ""), change.timestamp,
                        events=frozenset(events), leaving=frozenset(leaving), excess=self._excess,
                        signals=tuple(signals), rewritten=tuple(rewritten),
                        committed=(change.committed_ms, change.committed_ms),
                    )  # fmt: skip
                    if self._kept + size <= KEPT_BYTES and not change.excess:
                        self._kept += size
                        found = found._replace(changes=changes)
                    if altered and isinstance(self._timeline, Followed):
                        found = found._replace(tables=self._timeline.tables(), layouts=self._timeline.layouts)
                    elif not leaving and self._pending and self._has_room(self._pending[-1], counted):
                        before = self._pending.pop()
                        if before.changes is None or found.changes is None:
                            self._kept -= _size_of(before.changes) + _size_of(found.changes)
                        kept = _together(before.changes, found.changes)
                        found = found._replace(
                            rows=counted + before.rows, changes=kept, events=before.events | events,
                            signals=(*before.signals, *found.signals),
                            committed=_span(before.committed, found.committed),
                        )  # fmt: skip
                    self._pending.append(found)
                    if leaving:
                        return
                    seen, counted, altered = seen + counted, 0, False
                    size, changes, events, signals, rewritten = 0, [], set(), [], []
                    if rows is not None and seen >= rows:
                        return
            elif isinstance(change, RowsChange) and change.schema is self._signal_table:
                signals += [_signal(row) for _, before_row, row in change.rows if before_row is None and row]
            elif isinstance(change, TableEmptied):
                does = self._effect(change)
                if does.leaves:
                    leaving.add((change.schema.database, change.schema.table))
                if does.is_told:
                    counted += 1
                    events.add(change.kind)
                size += change.size
                changes.append(change)
            elif (
                change.kind not in self._options.skipped
                and (change.schema.database, change.schema.table) not in leaving
            ):
                counted += len(change.rows) * (2 if change.kind == UPDATE else 1)
                size += change.size
                if self._kept + size <= KEPT_BYTES:
                    changes.append(change)
        if not isinstance(self._scanned, BinlogPosition) or self._scanned.sort_key() < until.sort_key():
            self._scanned = until  # the log is read up to there: the next call need not look again

    def _rewritten(self, found: TableAltered) -> Rewritten | None:
        """What follows from an ALTER TABLE for old rows; None for nothing."""
        rewriting = self._timeline.rewriting(found) if isinstance(self._timeline, Followed) else NOTHING
        if rewriting is NOTHING or (is_held := self._is_held(found)) is True:
            return None  # or the snapshot was read after it
        does = "empty" if rewriting.empties else "fill" if rewriting.fills and is_held is False else "read"
        told = rewriting.told or f"it has new columns: {', '.join(c.name for c in rewriting.fills)}"
        _log.warning("%s: %s, since %r. %s", found.schema.name, told, found.statement[:200], _FOLLOWS[does])
        return Rewritten(found.name, does, rewriting.values if does == "fill" else "")

    def _has_room(self, entry: _Transaction, rows: int) -> bool:
        return not entry.ends_batch and (self._entry_rows is None or entry.rows + rows <= self._entry_rows)

    def _pass(self, gtids: GtidSet | MariaDbGtids, end: TransactionEnd) -> None:
        if isinstance(gtids, GtidSet) and gtids.contains(end.uuid, end.number):
            raise LogGone(
                f"The server's binary log has transaction {end.uuid}:{end.number} again, before {end.position}, though "
                "it was read already: the log was reset or is another one.",
                "Start with a new checkpoint and a new target.",
            )
        gtids.passed(end.uuid, end.number)

    def gtid_at(self, position: BinlogPosition) -> str:
        """The GTIDs at the end of a batch that `plan` returned; "" if they are not known."""
        return next((t.gtids for t in self._pending if t.end == position), str(self._gtids or ""))

    def excess_at(self, position: BinlogPosition) -> int:
        """`Offset.excess` at the end of a batch that `plan` returned."""
        return next((t.excess for t in self._pending if t.end == position), self._excess)

    def tables_at(self, position: BinlogPosition) -> tuple[TableSchema, ...]:
        """The tables after a batch that `plan` returned; empty if they did not change in it."""
        return next((t.tables for t in self._pending if t.end == position), ())

    def rewritten_at(self, position: BinlogPosition) -> tuple[Rewritten, ...]:
        """What statements at the end of a batch that `plan` returned have done to old rows."""
        return next((t.rewritten for t in self._pending if t.end == position), ())

    def leaving_at(self, position: BinlogPosition) -> frozenset[TableName]:
        """The tables that leave the stream at the end of a batch that `plan` returned."""
        return next((t.leaving for t in self._pending if t.end == position), frozenset())

    def events_until(self, position: BinlogPosition) -> frozenset[str]:
        """Kinds of statements, such as TRUNCATE, that a batch that `plan` returned has rows for."""
        return frozenset().union(*(t.events for t in self._pending if t.end.sort_key() <= position.sort_key()))

    def time_at(self, position: BinlogPosition) -> int | None:
        """When the last transaction of a batch from `plan` began, seconds since 1970; None if it has no rows."""
        return next((t.began_at for t in self._pending if t.end == position), None)

    def committed_until(self, position: BinlogPosition) -> tuple[int, int] | None:
        """When the first and the last transaction of a batch from `plan` were committed, milliseconds since 1970."""
        passed = [t.committed for t in self._pending if t.end.sort_key() <= position.sort_key()]
        return _span(*passed) if passed else None

    def rows_until(self, position: BinlogPosition) -> int:
        """Rows of a batch that `plan` returned."""
        return sum(t.rows for t in self._pending if t.end.sort_key() <= position.sort_key())

    def signals_until(self, position: BinlogPosition) -> list[Signal]:
        """The signals of a batch that `plan` returned."""
        return [s for t in self._pending if t.end.sort_key() <= position.sort_key() for s in t.signals]

    def leaves_rows(self, position: BinlogPosition, until: BinlogPosition) -> bool:
        """Whether there may be more rows after a batch that `plan` returned."""
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
        """Move ``start`` to ``position``, the end of a batch that was planned."""
        start = self.start
        changes: _Kept | None = None if self.layouts else []
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


def _signal(row: Sequence[Any]) -> Signal:
    """A row of the signal table. Its columns are known by their order, as in Debezium."""
    signal_id, kind, data = ("" if value is None else str(value) for value in row[:3])
    return Signal(signal_id, kind, data)


def _span(*spans: tuple[int, int]) -> tuple[int, int]:
    return min(first for first, _ in spans), max(last for _, last in spans)


def _size_of(changes: _Kept | None) -> int:
    return sum(change.size for change in changes or ())


def _together(before: _Kept | None, more: _Kept | None) -> _Kept | None:
    """Both in one list; None if either was not kept."""
    if before is None or more is None:
        return None
    before.extend(more)
    return before
