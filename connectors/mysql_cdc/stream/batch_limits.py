"""How many rows a batch has, when it is due, and where an ``availableNow`` run ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from backlog_spark.spi.pacing import BacklogSizer, GrowingLimit, LongPoll, Pacer, QueryBacklog, poll_every_ms
from backlog_spark.spi.read_limits import ReadLimit, ReadMaxRows

from ..binlog.positions import BinlogPosition
from ..offsets import Offset
from ..options import MySqlOptions

__all__ = ["BatchLimits"]

_T = TypeVar("_T")


class BatchLimits:
    """The batches of one query, in both phases: how large they may be, and when the next is due.

    Attributes
    ----------
    available_now : bool
        Whether the query runs with ``availableNow``.
    target : BinlogPosition or None
        Where such a run ends.
    by_rules : callable
        Whether a rule of the query says that what has not been read of the log is backlog.
    """

    def __init__(self, options: MySqlOptions) -> None:
        self._options = options
        during = options.during_backlog_ms
        self._sizer = BacklogSizer(during, options.max_rows if options.max_rows_given else None) if during else None
        query = QueryBacklog(options.query_token)
        self.by_rules = query.by_rules
        self._pacer = Pacer(options.interval_ms or 0, during, query)
        self._live_limit = GrowingLimit(options.max_rows)
        self._long_poll = LongPoll(options.poll_wait_ms, poll_every_ms(options.interval_ms or 0))
        self.available_now = False
        self.target: BinlogPosition | None = None

    def wait_for(self, look: Callable[[], _T | None]) -> _T | None:
        """The result of ``look``, which may take a while; None if it found nothing."""
        return self._long_poll(look, self._pacer.due_in)

    def due(self, start: Offset, now_ms: float) -> bool:
        """Whether a batch of the log may begin."""
        return self.available_now or start.is_processing_backlog or self._pacer.due(now_ms)

    def released(self, now_ms: float) -> None:
        """Report that a batch of the log was planned."""
        self._pacer.released(now_ms)

    @property
    def is_strict(self) -> bool:
        """Whether the limit on rows is strict. One that follows from times may be exceeded somewhat."""
        return self._sizer is None or self._options.max_rows_given

    def snapshot_rows(self, limit: ReadLimit) -> int | None:
        """Rows of the next snapshot batch; None for all."""
        if self._options.during_backlog_ms == 0:
            return None
        if self._sizer is not None:
            return self._sizer.next_rows(time.time() * 1000)
        return limit.max_rows if isinstance(limit, ReadMaxRows) else None

    def joining_rows(self, start: Offset) -> int | None:
        """Rows of the next snapshot batch of tables that join later; None for all."""
        return None if start.rejoining and self._options.during_backlog_ms == 0 else self._options.max_rows

    def binlog_rows(self, start: Offset, limit: ReadLimit) -> int | None:
        """Rows of the next batch of the log; None for all."""
        given = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if not start.is_lagging:
            if self._sizer is not None:
                self._sizer.paused()
            grows = given == self._options.max_rows and not self._options.max_rows_given and not self.available_now
            return self._live_limit.rows if grows else given
        if self._options.during_backlog_ms == 0:
            return given if self._options.max_rows_given else None
        return given if self._sizer is None else self._sizer.next_rows(time.time() * 1000)

    def backlog_started(self, rows: int, now_ms: float) -> None:
        """Report that a backlog batch of ``rows`` was planned."""
        if self._sizer is not None:
            self._sizer.started(rows, now_ms)

    def live_taken(self, rows: int, *, all_of_them: bool) -> None:
        """Report that a batch of the log was planned, and whether it leaves no rows behind."""
        self._live_limit.taken(rows, all_of_them=all_of_them)
