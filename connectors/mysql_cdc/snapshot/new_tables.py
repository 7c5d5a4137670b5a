"""Adds tables that are found while a stream follows the log: ``scanNewlyAddedTables``, and tables that come back.

Their snapshots are read in ranges, each at its own low watermark, while the log of all tables is followed. A change in
a range that was read is emitted unless the range's watermark includes it, as always. A change in a range that is not
read yet is dropped, so the range's later watermark must include it. Therefore a range is planned only at a watermark
that includes everything the log has been read up to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pymysql.connections import Connection

from ..binlog.positions import BinlogPosition
from ..binlog.reading import TableEmptied, read_changes
from ..offsets import Offset
from ..options import MySqlOptions
from ..schema.ddl.statements import DROP
from ..schema.ddl.timeline import Statements, TableName
from ..schema.declared import DeclaredTables
from ..schema.table import SchemaChanged, TableSchema
from ..server.gtid import GtidSet
from ..server.mysql import check_tables, end_position, find_tables, is_missing, load_schema, server_identity
from ..server.watermark import GtidWatermark, watermark
from .planner import SnapshotPlan, SnapshotPlanner, TableMissing

__all__ = ["Joining"]

LOOK_MS = 10_000
"""How often to look for new tables."""


class Joining:
    """Finds new tables and plans their snapshots.

    Parameters
    ----------
    options, tables, snapshots
        Those of the stream. A table that is found is added to ``tables``.
    """

    def __init__(self, options: MySqlOptions, tables: DeclaredTables, snapshots: SnapshotPlanner) -> None:
        self._options = options
        self._tables = tables
        self._snapshots = snapshots
        self._looked_ms: float | None = None
        self._looked_for: tuple[TableName, ...] = ()
        self._statements_until: BinlogPosition | None = None

    def waits(self, start: Offset) -> bool:
        """Whether a table was found that joins as soon as the log has been read beyond statements about it."""
        until = self._statements_until
        return until is not None and start.position is not None and start.position.sort_key() < until.sort_key()

    def step(
        self, connection: Connection[Any], start: Offset, end: Offset | None, wanted: int | None, now_ms: float
    ) -> Offset | None:
        """The end offset of a batch, including the snapshots of joining tables.

        Parameters
        ----------
        start, end : Offset
            The batch from the log alone; ``end`` is None if the log has nothing new.
        wanted : int or None
            Most rows of a snapshot; None: all.

        Raises
        ------
        BacklogError
            A new table cannot be captured.
        """
        if start.position is None or (end is not None and len(end.tables) != len(start.tables)):
            return end  # in the batch in which a table leaves, no other one joins
        quiet = start.quiet()
        if start.joining:
            plan = self._plan(connection, start, wanted)
            if plan is not None and _includes(plan, start):
                until = end_position(connection, self._options) if plan.is_last else None
                end = _with_ranges(end or quiet, plan, until)
        after = end or quiet
        for schema in self._found(connection, after, now_ms):
            self._tables.add(schema)
            joining = (*after.joining, len(after.tables))
            gone = tuple(name for name in after.gone if name != (schema.database, schema.table))
            end = after = replace(after, tables=(*after.tables, schema), joining=joining, gone=gone)
        if lost := [name for name in after.rejoining if name in after.gone and is_missing(connection, *name)]:
            end = after = replace(after, rejoining=tuple(name for name in after.rejoining if name not in lost))
        if after.gone and self._options.startup_mode == "snapshot":
            # Such a stream ends, and does not wait for tables.
            gone = tuple(name for name in after.gone if not is_missing(connection, *name))
            end = end if gone == after.gone else replace(after, gone=gone)
        return end

    def _plan(self, connection: Connection[Any], start: Offset, wanted: int | None) -> SnapshotPlan | None:
        try:
            return self._snapshots.plan(connection, start, wanted, limited=True)
        except TableMissing:
            return None  # the log has its DROP TABLE

    def _found(self, connection: Connection[Any], offset: Offset, now_ms: float) -> list[TableSchema]:
        """New tables whose columns are the same from the offset's position up to now."""
        is_passed = self._statements_until is not None and not self.waits(offset)
        is_new = is_passed or offset.gone != self._looked_for
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS and not is_new:
            return []
        self._looked_ms, self._looked_for, self._statements_until = now_ms, offset.gone, None
        names = [name for name in offset.gone if not is_missing(connection, *name)]
        if self._options.adds_tables:
            captured = {*offset.gone, *((t.database, t.table) for t in offset.tables)}
            named = find_tables(connection, self._options, captured, every=False)
            names += [name for name in named if name not in captured]
        if not names:
            return []
        tables = [load_schema(connection, self._options, *name) for name in names]
        check_tables(connection, self._options, tables)
        self._tables.check_like(tables)
        assert offset.position is not None
        later = Statements()
        end = end_position(connection, self._options)
        try:
            here = replace(self._options, server=server_identity(connection))
            begin = replace(offset.position, gtids=offset.gtid)
            changes = read_changes(here, tables, begin, end, timeline=later)
            # Dropped and made again: joins once the log was read up to there.
            dropped = [c.schema for c in changes if isinstance(c, TableEmptied) and c.kind == DROP]
        except SchemaChanged:
            self._statements_until = end
            return []
        altered = {(t.database, t.table) for t in (*dropped, *(found.schema for found in later.found))}
        self._statements_until = end if altered else None
        return [
            table
            for table in tables
            if (table.database, table.table) not in altered
            and load_schema(connection, self._options, table.database, table.table) == table
        ]


def _includes(plan: SnapshotPlan, start: Offset) -> bool:
    """Whether the watermark of a batch includes everything the log has been read up to."""
    low = watermark(plan.ranges[0].low)
    assert start.position is not None
    if isinstance(low, GtidWatermark):
        return low.gtids.issuperset(GtidSet(start.gtid))
    return low.position.sort_key() >= start.position.sort_key()


def _with_ranges(offset: Offset, plan: SnapshotPlan, until: BinlogPosition | None) -> Offset:
    """An offset of the binary log phase with ranges of joining tables. ``until``: at or after the last watermark."""
    marks = [mark for mark in (until, offset.filter_until) if mark is not None]
    return replace(
        offset,
        ranges=(*offset.ranges, *plan.ranges),
        forms=plan.forms,
        joining=() if plan.is_last else offset.joining,
        rejoining=tuple(name for name in offset.rejoining if not plan.is_last or name in offset.gone),
        filter_until=max(marks, key=BinlogPosition.sort_key) if marks else None,
        rows=offset.rows + plan.rows,
        total=max(offset.total, offset.rows + plan.rows),
    )
