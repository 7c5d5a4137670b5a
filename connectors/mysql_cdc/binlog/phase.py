"""Plans the batches of the binary log phase, and their partition."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pymysql.connections import Connection
from pyspark.sql.datasource import InputPartition

from backlog_spark.spi.read_limits import ReadLimit
from backlog_spark.spi.signals import Signal

from ..offsets import Offset
from ..options import MySqlOptions
from ..schema.ddl.evolution import Followed, as_declared
from ..schema.ddl.history import Layout
from ..schema.ddl.statements import DROP
from ..schema.ddl.timeline import TableName
from ..schema.declared import DeclaredTables
from ..schema.table import TableSchema
from ..server.connection import server_time_ms
from ..server.log_gone import LogGone
from ..server.mysql import end_position
from ..server.session import Session
from ..server.watermark import gtids_at
from ..server.watermark import origin as origin_of
from ..stream.batch_limits import BatchLimits
from .batches import rows_of
from .planner import BinlogPlanner, Rewritten
from .positions import BinlogPosition
from .prefetched_rows import ReadAhead, packed
from .records import TableEmptied
from .truncated_tables import Effect, effect, is_held

__all__ = ["BinlogPartition", "BinlogPhase"]

_log = logging.getLogger(__name__)


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


class BinlogPhase:
    """Plans one batch of the log after the other.

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
        self._planner: BinlogPlanner | None = None
        self._start = Offset("")
        self._layouts: tuple[Offset | None, Mapping[TableName, Layout]] = (None, {})
        self._carried: tuple[ReadAhead, bytes | None] | None = None
        self.taken = 0
        """Rows of the batch that `next` planned last."""
        self.signals: list[Signal] = []
        """Signals in its log."""

    def read_again(self) -> None:
        """Forget what was read ahead: the tables were declared anew."""
        self._planner = None

    def next(
        self,
        connection: Connection[Any],
        start: Offset,
        limit: ReadLimit,
        now: float,
        signal_table: TableSchema | None = None,
        passes: bool = False,
    ) -> Offset | None:
        """The end of the batch after ``start``; None if the log has nothing for one.

        ``signal_table``: the table whose new rows are `signals`. ``passes``: a batch without rows is wanted as well.

        Raises
        ------
        LogGone
            The log does not reach to the offset.
        BacklogError
            The log cannot be read on, or a table was altered in it.
        """
        origin, planner = origin_of(start), self._planner
        self._start, self.taken, self.signals = start, 0, []
        known = planner is not None and planner.server == self._session.server and planner.start == origin
        if planner is None or not known or _names(planner.tables) != _names(start.tables):
            gtids = gtids_at(start)
            timeline = self._followed(start) if self._options.evolves else None
            captured = self._tables.captured(start)
            planner = BinlogPlanner(
                self._session.same_server, captured, origin, now, gtids, timeline, start.excess, self._effect,
                signal_table, lambda found: is_held(found, self._start),
            )  # fmt: skip
            self._planner = planner
        limits = self._limits
        until = limits.target if limits.available_now and limits.target else end_position(connection, self._options)
        is_bounded = self._options.startup_mode == "snapshot"
        last = start.filter_until if is_bounded and not start.joining and not start.gone else None
        if last is not None:
            if isinstance(origin, BinlogPosition):
                last = max(last, origin, key=BinlogPosition.sort_key)
            # All snapshot batches are made consistent up to here, and the user asked for nothing more.
            until = last
        if isinstance(origin, BinlogPosition) and until.sort_key() < origin.sort_key():
            raise LogGone(
                f"The server's binary log ends at {until}, before {origin}, up to which the query has read it.",
                "It was reset or restored: start with a new checkpoint and a new target.",
            )
        position = planner.plan(until, limits.binlog_rows(start, limit), now)
        if last is not None and (position is None or position.sort_key() >= last.sort_key()):
            self.note_layouts(start)
            end = start.at(last, planner.gtid_at(last), excess=planner.excess_at(last))
            return replace(end, no_rows_yet=False, table_events=planner.events_until(last), is_finished=True)
        needs_place = (start.gone and start.position is None) or (start.requests.queue and _has_no_place(start))
        if position is None and (start.is_lagging or needs_place or (passes and until != origin)):
            # The rest of the log has no rows of the tables: the backlog ends here, tables may join from here on, and
            # ranges may be read again as of here.
            position = until
        if position is None:
            return None
        gtid, lags = planner.gtid_at(position), self._lags(connection, planner, position, until)
        tables, leaving = planner.tables_at(position), planner.leaving_at(position)
        events, excess = planner.events_until(position), planner.excess_at(position)
        rewritten = planner.rewritten_at(position)
        self.note_layouts(start)
        rows = self.taken = planner.rows_until(position)
        self.signals = planner.signals_until(position)
        committed = planner.committed_until(position)
        limits.live_taken(rows, all_of_them=not planner.leaves_rows(position, until))
        if start.is_lagging:
            limits.backlog_started(rows, now)
        planner.advance(position, now)
        limits.released(now)
        end = start.at(position, gtid, tables=tables, is_lagging=lags, excess=excess)
        end = replace(
            _after(end, rewritten),
            table_events=events,
            committed_ms=committed,
            no_rows_yet=start.no_rows_yet and not rows and not events,
        )
        if is_bounded and (leaving or start.gone):
            end = replace(end, filter_until=start.filter_until)  # it is not finished before the table has joined again
        return end.without(leaving, come_back=True) if leaving else end

    def _effect(self, found: TableEmptied) -> Effect:
        policy = self._options.event_policy(found.kind)
        if found.kind == DROP:
            does = "sinks remove its rows" if policy == "emit" else "targets keep its rows"
            _log.warning(
                "The table %s was dropped or renamed: %s (tableEvents=%s). If a table of its name is created, the "
                "query reads it from its beginning.", found.schema.name, does, policy,
            )  # fmt: skip
        return effect(found, self._start, policy)

    def note_layouts(self, start: Offset) -> None:
        """Remember the tables' layouts at ``start`` for `partition`."""
        self._layouts = (start, self._planner.layouts if self._planner else {})

    def _followed(self, start: Offset) -> Followed:
        captured = self._tables.captured(start)
        return Followed(self._session.same_server, captured, start.tables, origin_of(start), as_declared)

    def _layouts_at(self, start: Offset) -> Mapping[TableName, Layout]:
        """The layout of rows after an offset, for tables whose columns are not as declared."""
        if self._layouts[0] != start:
            same = self._tables.same(start)
            self._layouts = (start, {} if same else self._followed(start).layouts)
        return self._layouts[1]

    def _lags(
        self, connection: Connection[Any], planner: BinlogPlanner, position: BinlogPosition, until: BinlogPosition
    ) -> bool:
        """Whether the log after this batch is so far behind that it is backlog."""
        if position.sort_key() >= until.sort_key():
            return False
        # The rest of the log may have no rows of these tables, which is no backlog by a rule.
        if planner.leaves_rows(position, until) and self._limits.by_rules():
            return True
        threshold, began_at = self._options.backlog_lag_ms, planner.time_at(position)
        if threshold is None or began_at is None:
            return False
        return server_time_ms(connection) - began_at * 1000 > threshold

    def partition(self, connection: Connection[Any], first: Offset, last: Offset) -> BinlogPartition:
        """The log of the batch from ``first`` to ``last``."""
        assert last.position is not None
        start = self._session.here(connection, first)
        until, only, server = last.position, "", self._session.server
        if last.server != server:
            # Planned on another server: read the same transactions, wherever they are in this server's log.
            there = self._session.here(connection, last)
            until, only = (there.gtid_until or until, last.gtid) if there.position is None else (there.position, "")
        # A table that joins in this very batch is filtered by its own watermark.
        ranges = (*first.ranges, *last.added_since(first))
        read = replace(start, ranges=ranges, table_events=last.table_events, emptied=last.emptied)
        tables, layouts = self._tables.captured(first), self._layouts_at(start)
        rows = None if only or layouts else self._read_ahead(tables, read, until)
        return BinlogPartition(server, tables, layouts, read, until, only, rows)

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


def _after(end: Offset, rewritten: Sequence[Rewritten]) -> Offset:
    """The end of a batch, with what its last statements have done to old rows."""
    if not rewritten:
        return end
    emptied = tuple(each.table for each in rewritten if each.does == "empty")
    return replace(
        end,
        requests=end.requests.altered([each.table for each in rewritten if each.does == "read"]),
        emptied=emptied,
        rejoining=tuple(dict.fromkeys((*end.rejoining, *emptied))),
        fills=tuple((*each.table, each.values) for each in rewritten if each.does == "fill"),
    )


def _has_no_place(start: Offset) -> bool:
    return start.position is None or start.gtid_until is not None


def _names(tables: Sequence[TableSchema]) -> list[TableName]:
    return [(t.database, t.table) for t in tables]
