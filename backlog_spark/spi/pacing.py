"""Decides when a source gives its next batch, and how large it is (pure except `QueryBacklog`; callers give the time).

Spark cannot change the trigger of a running query, but a source can pace itself. In backlog it gives batch after
batch, each sized to take the interval during backlog. Afterwards it gives at most one per interval. So the switch
needs no restart and happens at the exact batch where the backlog ends.

One interval holds for a whole query (FLIP-309). While another source is in backlog, a live source waits for the
interval during backlog. A source has a process of its own, so it asks the query's runner.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from typing import TypeVar

from backlog_spark.common.loopback import LoopbackLine

__all__ = [
    "POLL_WAIT",
    "QUERY_TOKEN",
    "BacklogSizer",
    "GrowingLimit",
    "LongPoll",
    "Pacer",
    "QueryBacklog",
    "poll_every_ms",
]

_log = logging.getLogger(__name__)

QUERY_TOKEN = "queryToken"
"""The option with the address of the query's runner, for its sources. Spark hides the values of such names."""

POLL_WAIT = "pollWait"
"""The option that lets a query's only source wait for rows itself: this many milliseconds at a time."""

# While there is nothing new a source is asked, or looks, this often. A tenth of the interval keeps commits within 10 %
# of it, a second bounds the reaction. A look is a question to the server, 0.3 ms.
_POLL_SHARE = 10
_POLL_MIN_MS, _POLL_MAX_MS = 30, 1_000

_T = TypeVar("_T")

# Rows of the first batch, which only measures: large enough to outlast a micro-batch's fixed second or so, small
# enough not to overshoot a short interval on a slow source.
PROBE_ROWS = 50_000
# The first batches carry one-off costs (starting Python workers, compiling), so measured rates rise at first. A
# batch may therefore grow at most by this factor over the one before.
MAX_GROWTH = 8.0
# Nor does it shrink below this: such a batch is mostly a micro-batch's fixed cost, and making it smaller still would
# only make the backlog slower, without end where the fixed cost alone exceeds the interval.
FLOOR_ROWS = 5_000
# A live batch without a limit of the user's grows to so many times the usual one. A task streams the rows, and the
# source's process keeps an entry of half a kilobyte for each hundredth of a batch.
MOST_TIMES = 16
# Batches aim a little below the interval, since their duration varies.
HEADROOM = 0.9


class BacklogSizer:
    """Sizes backlog batches so that each takes about ``target_ms``.

    A batch's time is modelled as a fixed part plus a part that grows with its rows, from the last two batches if their
    sizes differ enough. Otherwise it is proportional to the rows.

    Parameters
    ----------
    target_ms : int
        The interval during backlog, milliseconds, > 0.
    most : int, optional
        Upper bound in rows.
    """

    def __init__(self, target_ms: int, most: int | None = None) -> None:
        self._target_ms = target_ms
        self._most = most
        self._planned: tuple[int, float] | None = None  # rows, time in ms of the batch under way
        self._measured: list[tuple[int, float]] = []  # rows, duration in ms, last two

    def next_rows(self, now_ms: float) -> int:
        """Rows for the batch that begins at ``now_ms``. Call when the batch before has committed."""
        if self._planned is not None:
            rows, since = self._planned
            self._measured = [*self._measured[-1:], (rows, max(1.0, now_ms - since))]
            self._planned = None
        wanted = self._estimate()
        return max(1, wanted if self._most is None else min(wanted, self._most))

    def started(self, rows: int, now_ms: float) -> None:
        """Report that a batch of ``rows`` was given at ``now_ms``."""
        self._planned = (max(1, rows), now_ms)

    def paused(self) -> None:
        """Report that the next batch is not backlog, so the time until then measures nothing."""
        self._planned = None

    def _estimate(self) -> int:
        if not self._measured:
            return PROBE_ROWS
        rows, took = self._measured[-1]
        target = self._target_ms * HEADROOM
        wanted = rows * target / took
        if len(self._measured) == 1:
            # The first batch pays for starting workers and compiling; that it was slow says nothing yet.
            wanted = max(wanted, rows)
        if len(self._measured) == 2:
            before, took_before = self._measured[0]
            if rows >= 1.5 * before and took > took_before:
                per_row = (took - took_before) / (rows - before)
                fixed = max(0.0, took - per_row * rows)
                if fixed < target:
                    wanted = (target - fixed) / per_row
        return max(FLOOR_ROWS, int(min(wanted, rows * MAX_GROWTH)))


class GrowingLimit:
    """The row limit of a live batch, if the user has set none.

    A batch that takes all available rows keeps the lag near the time of one commit. With a fixed limit the lag would
    grow if more rows come during a commit than fit into a batch. So a batch that leaves rows unread is followed by one
    that may be twice as large, up to a bound that memory must hold.

    Parameters
    ----------
    rows : int
        The least limit.
    """

    def __init__(self, rows: int) -> None:
        self._least = rows
        self.rows = rows

    def taken(self, rows: int, *, all_of_them: bool) -> None:
        """Report that a batch of ``rows`` was given, and whether none remain."""
        if all_of_them:
            self.rows = max(self._least, min(self.rows, 2 * rows))
        elif rows > self.rows // 2:  # else it ended for another reason, such as an ALTER TABLE
            self.rows = min(2 * self.rows, MOST_TIMES * self._least)


class QueryBacklog:
    """Asks the query's runner whether any source of the query is processing backlog, and what its rules say.

    The answers only decide when a batch is planned and which flag it ends with, and Spark logs the plan. So a replay is
    the same.

    Parameters
    ----------
    token : str
        The option `QUERY_TOKEN`; "" in a query without a runner.
    """

    def __init__(self, token: str = "") -> None:
        port, _, key = token.partition(":")
        key, _, self._name = key.partition(":")
        self._line = LoopbackLine(int(port), key) if port.isdecimal() else None
        self._is_warned = False

    def __call__(self) -> bool:
        """As of the end of the newest batch. False if the runner does not answer: rows come sooner, none is lost."""
        return self._ask({})

    def by_rules(self) -> bool:
        """Whether a rule of the query says that the rows that this source has not read are backlog.

        As of the newest batch that the listener has reported. For a source that reports backlog only while rows are
        unread. False if no rule applies to the source, or if the runner does not answer.
        """
        return bool(self._name) and self._ask({"rulesFor": self._name})

    def _ask(self, question: Mapping[str, str]) -> bool:
        if self._line is None:
            return False
        try:
            return self._line.ask(question).get("isProcessingBacklog") is True
        except (EOFError, OSError, AuthenticationError) as error:
            if not self._is_warned:
                self._is_warned = True
                _log.warning(
                    "The query's runner does not answer on port %d (%s). Live rows no longer wait for the backlog of "
                    "other sources, and rules no longer count.", self._line.port, error,
                )  # fmt: skip
            return False


class Pacer:
    """Allows a batch of live rows at most once per interval, at multiples of it, like Spark's own trigger.

    Ticks are multiples of the interval since 1970, so several sources of one query keep step. A source that was busy
    past a tick may go on at once. While other sources of the query are in backlog, the interval during backlog holds.
    If that is 0, nothing is allowed until all have left.

    A source asks only when it is not in backlog itself. A source that begins at the newest position still gives that
    position as its offset, so rows that come while it waits are not skipped.

    Parameters
    ----------
    interval_ms : int
        Milliseconds; 0 allows every batch.
    during_backlog_ms : int, optional
        Default None: the same interval always holds.
    in_backlog : callable, optional
        Whether any source of the query is in backlog, such as a `QueryBacklog`. Called only if a tick has passed.
    """

    def __init__(
        self, interval_ms: int, during_backlog_ms: int | None = None, in_backlog: Callable[[], bool] = lambda: False
    ) -> None:
        self._interval_ms = interval_ms
        self._during_backlog_ms = during_backlog_ms
        self._in_backlog = in_backlog
        self._released_ms: float | None = None

    def due_in(self, now_ms: float) -> float:
        """Milliseconds until the next tick of the interval; 0 if one has passed since the last batch."""
        return 0.0 if self._ticked(self._interval_ms, now_ms) else self._interval_ms - now_ms % self._interval_ms

    def due(self, now_ms: float) -> bool:
        """Whether a tick has passed since the last batch."""
        if not self._ticked(self._interval_ms, now_ms):
            return False
        during = self._during_backlog_ms
        if during is None or not self._in_backlog():
            return True
        return during > 0 and self._ticked(during, now_ms)

    def _ticked(self, interval_ms: int, now_ms: float) -> bool:
        if not interval_ms or self._released_ms is None:
            return True
        # The clock may have been set back.
        return int(now_ms // interval_ms) != int(self._released_ms // interval_ms)

    def released(self, now_ms: float) -> None:
        """Report that a batch was given."""
        self._released_ms = now_ms


def poll_every_ms(interval_ms: int) -> int:
    """How often to look for new rows while there are none, for an interval between batches."""
    return min(_POLL_MAX_MS, max(_POLL_MIN_MS, interval_ms // _POLL_SHARE))


class LongPoll:
    """Waits for rows inside Spark's call of ``latestOffset``.

    Each such call costs Spark 5 ms of processor time; a source's look at its server costs 0.3 ms. A source also knows
    when the next tick is, while Spark would call some time after it. Only where no other source may have rows
    meanwhile: its call would be delayed.

    Parameters
    ----------
    wait_ms : int
        Longest wait; 0 looks once.
    every_ms : int
        Time between two looks, if there is no tick to wait for.
    clock, stopwatch, sleep : callable
        Seconds: since 1970, since any time, and to wait.
    """

    def __init__(
        self,
        wait_ms: int,
        every_ms: int,
        clock: Callable[[], float] = time.time,
        stopwatch: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._wait_ms = wait_ms
        self._every_ms = every_ms
        self._clock = clock
        self._stopwatch = stopwatch
        self._sleep = sleep

    def __call__(self, look: Callable[[], _T | None], due_in: Callable[[float], float]) -> _T | None:
        """The result of ``look``; None if it found nothing in the whole time.

        Parameters
        ----------
        due_in : callable
            Like `Pacer.due_in`: the time in which nothing will be found.
        """
        end = self._stopwatch() * 1000 + self._wait_ms
        while (found := look()) is None:
            left = end - self._stopwatch() * 1000
            if left <= 0:
                break
            self._sleep(min(due_in(self._clock() * 1000) or self._every_ms, left) / 1000)
        return found
