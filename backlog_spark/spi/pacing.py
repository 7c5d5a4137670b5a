"""When a source hands out its next batch, and how large it is (pure, but for `QueryBacklog`; the caller has the clock).

Spark cannot change the trigger of a running query. A source that paces itself can: in backlog it hands out
batch after batch, each sized to take the interval during backlog; afterwards at most one in an interval. So the
switch needs no restart and happens at the exact batch where the backlog ends.

One interval holds for a whole query (FLIP-309): while another source of it is in backlog, a source that is not waits
for the interval during backlog. It asks the query's runner, as it has a process of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
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
"""The option by which a query tells its sources where its runner can be asked. Spark shows no value of such a name."""

POLL_WAIT = "pollWait"
"""The option by which a query allows its only source to wait for rows itself: for so many milliseconds at a time."""

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

    A batch's time is taken as a fixed part plus a part that grows with its rows, from the last two batches where
    they differ enough in size, else as proportional.

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
        """Tell that a batch of ``rows`` was handed out at ``now_ms``."""
        self._planned = (max(1, rows), now_ms)

    def paused(self) -> None:
        """Tell that what comes next is no batch of backlog: the time until then measures nothing."""
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
    """The most rows of a live batch, where the user has set no limit.

    A batch that takes all that there is keeps the lag at about the time of one commit, however long that takes. A fixed
    limit would not where commits take so long that more rows come meanwhile: each would leave more behind. So a batch
    that left rows behind is followed by one that may be twice as large, up to a bound, for which memory must do.

    Parameters
    ----------
    rows : int
        The least limit.
    """

    def __init__(self, rows: int) -> None:
        self._least = rows
        self.rows = rows

    def taken(self, rows: int, *, all_of_them: bool) -> None:
        """Tell that a batch of ``rows`` was handed out, and whether it left none behind."""
        if all_of_them:
            self.rows = max(self._least, min(self.rows, 2 * rows))
        elif rows > self.rows // 2:  # else it ended for another reason, such as an ALTER TABLE
            self.rows = min(2 * self.rows, MOST_TIMES * self._least)


class QueryBacklog:
    """Whether any source of the query is processing backlog, asked of the query's runner.

    What it answers only decides when a batch is planned, and Spark logs what was planned. So a replay is the same.

    Parameters
    ----------
    token : str
        The option `QUERY_TOKEN`; "" in a query without a runner, of which nothing is known.
    """

    def __init__(self, token: str = "") -> None:
        port, _, key = token.partition(":")
        self._line = LoopbackLine(int(port), key) if port.isdecimal() else None
        self._is_warned = False

    def __call__(self) -> bool:
        """As of the end of the newest batch. False if the runner does not answer: rows come sooner, none is lost."""
        if self._line is None:
            return False
        try:
            return self._line.ask({}).get("isProcessingBacklog") is True
        except (EOFError, OSError, AuthenticationError) as error:
            if not self._is_warned:
                self._is_warned = True
                _log.warning(
                    "The query's runner does not answer on port %d (%s). Live rows no longer wait for the backlog of "
                    "other sources.", self._line.port, error,
                )  # fmt: skip
            return False


class Pacer:
    """Lets a batch of live rows through at most once in an interval, at multiples of it, as Spark's own trigger does.

    Ticks are multiples of the interval since 1970, so that several sources of one query keep step. A source that
    was busy past a tick is let through at once. While other sources of the query are in backlog the interval during
    backlog holds; where that is 0 nothing is let through until all have left.

    A source asks it only when it is not in backlog itself. One that begins at the newest place gives that as its offset
    all the same, so that what comes while it waits is not skipped.

    Parameters
    ----------
    interval_ms : int
        Milliseconds; 0 lets everything through.
    during_backlog_ms : int, optional
        Default None: the same interval always holds.
    in_backlog : callable, optional
        Whether any source of the query is in backlog, as `QueryBacklog` tells. Called once for a tick or more.
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
        """Tell that a batch was handed out."""
        self._released_ms = now_ms


def poll_every_ms(interval_ms: int) -> int:
    """How often to look for new rows while there are none, for an interval between batches."""
    return min(_POLL_MAX_MS, max(_POLL_MIN_MS, interval_ms // _POLL_SHARE))


class LongPoll:
    """Waits for a batch within Spark's question for one.

    Spark spends 5 ms of processor time on each such question, a source 0.3 ms on a look at its server. And a source
    knows when the next tick is, where Spark would ask some time after it. For the only source of a query: others would
    be asked later meanwhile.

    Parameters
    ----------
    wait_ms : int
        At most; 0 asks once.
    every_ms : int
        Between two looks, where no tick is waited for.
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
        """What ``look`` finds, None if that is nothing for the whole time.

        Parameters
        ----------
        due_in : callable
            As `Pacer.due_in`: for how long nothing will be found.
        """
        end = self._stopwatch() * 1000 + self._wait_ms
        while (found := look()) is None:
            left = end - self._stopwatch() * 1000
            if left <= 0:
                break
            self._sleep(min(due_in(self._clock() * 1000) or self._every_ms, left) / 1000)
        return found
