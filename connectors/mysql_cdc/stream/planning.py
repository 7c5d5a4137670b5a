"""Plans the batches of a stream beside the driver: first the snapshot, then the binary log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pymysql.connections import Connection
from pyspark.sql.datasource import InputPartition

from backlog_spark.errors import BacklogError
from backlog_spark.spi.read_limits import ReadLimit, ReadMaxRows

from ..binlog.phase import BinlogPhase
from ..binlog.startup import decided
from ..offsets import Offset
from ..options import MySqlOptions
from ..schema.ddl.evolution import StartAgain
from ..schema.declared import DeclaredTables
from ..schema.table import TableSchema
from ..server.continuity import check_history
from ..server.log_gone import LogGone
from ..server.mysql import end_position, is_missing, load_schema, server_identity
from ..server.session import Session
from ..snapshot.incremental_snapshot import IncrementalSnapshot
from ..snapshot.new_tables import Joining
from ..snapshot.planner import SnapshotPlanner
from ..snapshot.resnapshot import begun_again, check_same_keys, emptied_partition
from ..snapshot.signal_inbox import SignalInbox
from ..staging.staging import Staging
from .batch_limits import BatchLimits

__all__ = ["BatchPlanner"]

_log = logging.getLogger(__name__)


class BatchPlanner:
    """Plans one batch after the other. Lives in the process of Spark's that plans, and never in a worker.

    Parameters
    ----------
    options, tables
        What the stream was declared with.
    """

    def __init__(self, options: MySqlOptions, tables: Sequence[TableSchema]) -> None:
        self._options = options
        self.tables = DeclaredTables(options, tables)
        self.session = Session(options)
        self._limits = BatchLimits(options)
        self._snapshots = SnapshotPlanner(options, self.tables, self.session, self._limits)
        self._binlog = BinlogPhase(options, self.tables, self.session, self._limits)
        self._joining = Joining(options, self.tables, self._snapshots)
        self._incremental = IncrementalSnapshot(options, self.tables, self.session, self._limits)
        self._inbox = SignalInbox(options, self.tables)
        self.staging = Staging(options, self.tables, self.session)
        self._checked_start = False

    def initial(self) -> Offset:
        """The offset before the first batch."""
        columns = self._options.columns
        if not self._options.adds_tables:
            columns.check_used(self.tables.every())
        server = self.session.run(server_identity)
        self.session.run(self.tables.check_all)
        return Offset(
            server=server,
            tables=self.tables.every(),
            complete=not self._options.has_snapshot,
            salt_check=columns.salt_check,
        )

    def end_now(self) -> None:
        """End the run at the log's present end: ``availableNow``."""
        self._limits.available_now = True
        self._limits.target = self.session.run(lambda c: end_position(c, self._options))

    def next(self, start: Offset, limit: ReadLimit) -> Offset | None:
        """The end of the batch after ``start``; None if there is nothing to read yet.

        Raises
        ------
        BacklogError
            The stream cannot continue.
        """

        def look() -> Offset | None:
            return self.session.run(lambda c: self._next(c, start, limit))

        # A finished stream, or one that has to end, gets no more rows to wait for.
        waits = start.complete and not start.is_finished and not self._limits.available_now
        end = self._limits.wait_for(look) if waits else look()
        return None if end is None else replace(end, salt_check=self._options.columns.salt_check)

    def _next(self, connection: Connection[Any], start: Offset, limit: ReadLimit) -> Offset | None:
        try:
            end = self._step(connection, start, limit)
            self.staging.follow(connection, self.session.here(connection, start), end or start)
            return end
        except LogGone as gone:
            if not self._options.renews or start.is_undecided or start.is_finished or start.to_empty:
                raise
            if self._limits.available_now and self._options.target == "none":
                return None
            return self._again(connection, start, gone)

    def _again(self, connection: Connection[Any], start: Offset, gone: LogGone) -> Offset:
        """The end of a batch without rows, after which the snapshot is read again."""
        self.staging.clear(server_identity(connection))
        self.tables.forget_dropped()
        self._binlog.read_again()
        check_same_keys(start, self.tables)
        self.tables.check_checkpoint(start)
        _log.warning("%s The query reads the tables again (snapshot.mode=when_needed).", gone.problem)
        return begun_again(start, server_identity(connection), self.tables.captured(start))

    def _step(self, connection: Connection[Any], start: Offset, limit: ReadLimit) -> Offset | None:
        start = self.session.here(connection, start)
        self.session.check_history(connection, start)
        self._check_start(connection, start)
        available_now = self._limits.available_now
        if available_now and self._options.target == "none":
            return None
        if start.is_undecided:
            return decided(connection, self.session.same_server, self.tables, start)
        if start.is_finished:
            return None
        if removed := self.tables.removed(start):
            return start.without(removed, come_back=False)
        if (
            start.complete
            and available_now
            and self._options.target == "backlogEnd"
            and not start.is_processing_backlog
        ):
            return None
        step = self._next_live if start.complete else self._snapshots.next
        try:
            return step(connection, start, limit)
        except StartAgain:
            if self._options.format == "row":
                raise
        # The columns are inside the envelopes, so the stream need not be declared again.
        self.tables.find_dropped(connection, start)
        for known in start.tables:
            if not self.tables.is_dropped(known) and not is_missing(connection, known.database, known.table):
                self.tables.add(load_schema(connection, self._options, known.database, known.table))
        self._binlog.read_again()
        return step(connection, start, limit)

    def _check_start(self, connection: Connection[Any], start: Offset) -> None:
        if not self._checked_start:
            self.tables.find_dropped(connection, start)
            self.tables.check_checkpoint(start)
            self._checked_start = True

    def _next_live(self, connection: Connection[Any], start: Offset, limit: ReadLimit) -> Offset | None:
        """A batch of the binary log phase: the log, and tables that were found later."""
        now, limits = time.time() * 1000, self._limits
        if not limits.due(start, now):
            return None
        signals, passes = self._inbox.table(connection), self._joining.waits(start)
        given = end = self._binlog.next(connection, start, limit, now, signals, passes)
        if start.joining or start.gone or (self._options.adds_tables and not limits.available_now):
            joined = self._joining.step(connection, start, end, limits.joining_rows(start), now)
            if start.joining and joined and not joined.joining and limits.available_now:
                limits.target = joined.filter_until
            end = joined
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows
        end = self._incremental.step(connection, start, end, self._binlog.taken, most, limit)
        end = self._inbox.step(connection, start, end, self._binlog.signals)
        if end is not None and given is None:
            self._binlog.note_layouts(start)
            limits.released(now)
        return end

    def partitions(self, first: Offset, last: Offset) -> list[InputPartition]:
        """What the workers read for the batch from ``first`` to ``last``."""
        if first.is_undecided or last.to_empty:
            return []
        try:
            here = self.session.run(lambda c: self._here(c, first, last))
        except LogGone as gone:
            if not self._options.renews:
                raise
            lost = gone
            self.session.run(lambda c: self._check_passed(c, last, lost))
            _log.warning("%s A batch that was planned before stays empty.", gone.problem)
            return []
        self.session.run(lambda c: self.staging.follow(c, here[0], here[1], is_new=False))
        planned = first
        # Watermarks are those of this server. `BinlogPhase.partition` translates the rest.
        first, last = (replace(o, ranges=h.ranges) for o, h in zip((first, last), here, strict=True))
        if not first.complete:
            # When Spark repeats the first batch, it asks for the initial offset again.
            first = replace(first, tables=last.tables)
        self.session.run(lambda c: self._check_start(c, last if not first.complete else first))
        found = self._snapshots.partitions(first, last)
        if first.to_empty:
            found.append(emptied_partition(first, last, self.tables))
        # Positions of two servers may have the same name.
        if (
            first.complete
            and last.position
            and (first.position is None or (first.server, first.position) != (last.server, last.position))
        ):
            found.append(self.session.run(lambda c: self._binlog.partition(c, first, last)))
        if first.complete and last.complete:
            found += self._incremental.partitions(planned, here[0], last)
        return found

    def _here(self, connection: Connection[Any], first: Offset, last: Offset) -> tuple[Offset, Offset]:
        """Both offsets on the server that the connection reaches.

        A repeated batch is read before anything is planned. So this may be the first check of the server's log.
        """
        here = self.session.here(connection, first), self.session.here(connection, last)
        self.session.check_history(connection, here[0] if first.complete or first.ranges else here[1])
        return here

    def _check_passed(self, connection: Connection[Any], last: Offset, gone: LogGone) -> None:
        """Refuse to leave out the rows of a batch unless the log after its end is gone for good as well.

        Otherwise the query would go on from there, and nobody would know that these rows are missing.

        Raises
        ------
        BacklogError
            Says how the query can go on.
        """
        if server_identity(connection) != last.server:
            raise BacklogError(
                f"{gone.problem} A batch was planned on the server {last.server}, and the target may lack its rows.",
                "Let the query write this batch from that server, or start with a new checkpoint and a new target.",
            )
        try:
            check_history(connection, self.session.same_server, last)
        except LogGone:
            return
        raise BacklogError(
            f"{gone.problem} A batch was planned whose rows are gone, but the log after its end is there.",
            "Commit any change, FLUSH BINARY LOGS, then PURGE BINARY LOGS TO the newest file. Start the query again "
            "after that: it reads the tables again.",
        )
