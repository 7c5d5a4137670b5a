"""Decides when the log is staged: from a snapshot's first low watermark until the query has caught up with the log.

A snapshot batch is read as of a low watermark, and the log of all batches is read after the last one. So the server
would have to keep its log for as long as the whole snapshot takes. Tables that are read again by a signal, and those
that join later, need no staging: the stream follows the log beside their batches, and each batch has a low watermark of
its own.
"""

from __future__ import annotations

import contextlib
import logging
import re
from functools import partial
from typing import Any

from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from ..binlog.captured_tables import CapturedTables
from ..binlog.positions import BinlogPosition
from ..binlog.reading import first_position, folds_case
from ..offsets import Offset
from ..options import MySqlOptions
from ..schema.choice import matches
from ..schema.declared import DeclaredTables
from ..server.mysql import end_position
from ..server.purged import needed_from
from ..server.retries import is_transient
from ..server.session import Session
from .copying import Copying
from .kept_events import KeptEvents
from .segments import Segments

__all__ = ["Staging"]

_log = logging.getLogger(__name__)


class Staging:
    """Stages the log of one query. Lives beside its planner.

    Parameters
    ----------
    options, tables, session
        Those of the query.
    """

    def __init__(self, options: MySqlOptions, tables: DeclaredTables, session: Session) -> None:
        self._options = options
        self._tables = tables
        self._session = session
        self._copying: Copying | None = None
        # Whether there may be segments to remove. A restarted query looks once.
        self._has_segments = self._is_on = options.stages

    def follow(self, connection: Connection[Any], start: Offset, end: Offset, *, is_new: bool = True) -> None:
        """Called when the batch from ``start`` to ``end`` was planned; with the same offset if there is none.

        ``is_new``: not called for a batch that was planned before, and is repeated.
        """
        if not self._is_on:
            return
        try:
            if is_new and not start.complete and not start.ranges:
                self.clear(start.server)  # of an earlier stream or log
            at = start if start.complete else end
            if self._is_needed(at):
                self._go_on(connection, at)
            elif self._copying is not None:
                self._copying.stop()
                self._copying = None
        except Exception as error:
            if is_transient(error):
                raise
            # The stream works without it.
            self._is_on = False
            _log.warning(
                "The binary log is not staged: %s The server has to keep it until the snapshot is complete and the "
                "query has read it.", error.problem if isinstance(error, BacklogError) else error,
            )  # fmt: skip

    def _is_needed(self, offset: Offset) -> bool:
        """Whether the stream still has to read log that is staged, or that would be."""
        if offset.is_finished or offset.is_undecided:
            return False
        if not offset.complete or offset.position is None:
            return bool(offset.ranges or offset.start)
        if self._copying is not None:
            return offset.position.sort_key() < self._copying.at.sort_key()
        if not self._has_segments:
            return False
        every = Segments(self._options, offset.server).every()
        self._has_segments = bool(every)
        return any(offset.position.sort_key() < s.end.sort_key() for s in every)

    def _go_on(self, connection: Connection[Any], offset: Offset) -> None:
        """Stage from the end of what is staged on, unless that is being done."""
        before = self._copying
        if before is not None and before.server == offset.server:
            if before.is_alive() or before.is_over:
                return
        elif before is not None:
            before.stop()
        segments = Segments(self._options, offset.server)
        needed = needed_from(offset)
        assert needed is not None
        place = segments.place(needed)
        if place is None:
            place = self._begin(connection, needed)
            segments.mark(place)
        self._has_segments = True
        self._copying = Copying(self._session.same_server, segments, segments.end(place), self._kept(offset))
        self._copying.start()

    def _begin(self, connection: Connection[Any], needed: BinlogPosition | str) -> BinlogPosition:
        """The position after which the log has everything that a reader needs."""
        if isinstance(needed, BinlogPosition):
            return needed
        # Read before: the log up to there has nothing else if the dump finds nothing.
        end = end_position(connection, self._options)
        found = first_position(self._session.same_server, needed) or end
        return BinlogPosition(found.file, found.pos, gtids=needed)

    def _kept(self, offset: Offset) -> KeptEvents:
        options = self._options
        names = {(t.database, t.table) for t in offset.tables} | {*offset.gone, *options.tables}
        if options.signal_table:
            names.add(options.signal_table)

        def is_captured(database: str, table: str) -> bool:
            if (database, table) in names:
                return True
            name = f"{database}.{table}"
            return bool(
                options.table_pattern
                and re.fullmatch(options.table_pattern, name)
                and not matches(options.tables_exclude, name)
            )

        captured = CapturedTables(
            self._tables.captured(offset), options.statement_ignore, partial(folds_case, self._session.same_server),
            removals=frozenset(("truncate", "drop")), reads_swaps_again=options.reads_swaps_again,
        )  # fmt: skip
        return KeptEvents(captured, is_captured, options.most_inflated)

    def clear(self, server: str) -> None:
        """Remove everything that is staged: another snapshot begins."""
        if self._is_on:
            self.stop()
            Segments(self._options, server).remove(None)

    def passed(self, offset: Offset) -> None:
        """Called when a batch that ends at the offset has been committed: what is before is not read again."""
        if not self._is_on or not self._has_segments or not offset.complete:
            return
        if offset.position is None and not offset.is_finished:
            return
        with contextlib.suppress(BacklogError, OSError):  # a later commit removes them
            left = Segments(self._options, offset.server).remove(None if offset.is_finished else offset.position)
            self._has_segments = left or self._copying is not None

    def stop(self) -> None:
        """End the staging. It goes on where it was when it is called again."""
        if self._copying is not None:
            self._copying.stop()
            self._copying = None
