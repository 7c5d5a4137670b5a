"""Adds tables that are found while a stream follows the log: ``scanNewlyAddedTables``.

Their snapshots are read in ranges, each at its own low watermark, while the log of all tables is followed. A change in
a range that was read is emitted unless the range's watermark includes it, as always. A change in a range that is not
read yet is dropped, so the range's later watermark must include it. Therefore a range is planned only at a watermark
that includes everything the log has been read up to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pymysql.connections import Connection

from ..binlog.reading import read_changes
from ..offsets import BinlogPosition, Offset
from ..options import MySqlOptions
from ..output.rows import output_of
from ..schema.ddl.timeline import Statements
from ..schema.declared import DeclaredTables
from ..schema.table import SchemaChanged, TableSchema
from ..server.gtid import GtidSet
from ..server.mysql import check_tables, end_position, find_tables, load_schema, server_identity
from ..server.watermark import GtidWatermark, watermark
from .planner import SnapshotPlan, SnapshotPlanner

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

    def step(
        self, connection: Connection[Any], start: Offset, end: Offset | None, wanted: int, now_ms: float
    ) -> Offset | None:
        """The end offset of a batch, including the snapshots of joining tables.

        Parameters
        ----------
        start, end : Offset
            The batch from the log alone; ``end`` is None if the log has nothing new.
        wanted : int
            Most rows of a snapshot.

        Raises
        ------
        BacklogError
            A new table cannot be captured.
        """
        if start.position is None:
            return end
        if start.joining:
            plan = self._snapshots.plan(connection, start, wanted, limited=True)
            if _includes(plan, start):
                until = end_position(connection, self._options) if plan.is_last else None
                end = _with_ranges(end or start, plan, until)
        after = end or start
        for schema in self._found(connection, after, now_ms):
            self._tables.add(schema)
            joining = (*after.joining, len(after.tables))
            end = after = replace(after, tables=(*after.tables, schema), joining=joining)
        return end

    def _found(self, connection: Connection[Any], offset: Offset, now_ms: float) -> list[TableSchema]:
        """New tables whose columns are the same from the offset's position up to now."""
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return []
        self._looked_ms = now_ms
        known = {(t.database, t.table) for t in offset.tables}
        names = [name for name in find_tables(connection, self._options, known) if name not in known]
        if not names:
            return []
        tables = [load_schema(connection, self._options, *name) for name in names]
        check_tables(connection, self._options, tables)
        output_of(self._options.format, self._options.metadata).check((*self._tables.captured(offset), *tables))
        assert offset.position is not None
        later = Statements()
        try:
            end = end_position(connection, self._options)
            here = replace(self._options, server=server_identity(connection))
            for _ in read_changes(here, tables, offset.position, end, timeline=later):
                pass
        except SchemaChanged:
            return []  # for example dropped and made again: look again later
        altered = {(found.schema.database, found.schema.table) for found in later.found}
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
        filter_until=max(marks, key=BinlogPosition.sort_key) if marks else None,
        rows=offset.rows + plan.rows,
        total=max(offset.total, offset.rows + plan.rows),
    )
