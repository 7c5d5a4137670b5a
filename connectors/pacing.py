"""When a source hands out its next batch, and how large it is (pure; the caller brings the clock).

Spark cannot change the trigger of a running query. A source that paces itself can: in backlog it hands out
batch after batch, each sized to take the interval during backlog; afterwards at most one in an interval. So the
switch needs no restart and happens at the exact batch where the backlog ends.
"""

from __future__ import annotations

__all__ = ["BacklogSizer", "Pacer"]

# Rows of the first batch, which only measures: large enough to outlast a micro-batch's fixed second or so, small
# enough not to overshoot a short interval on a slow source.
PROBE_ROWS = 50_000
# The first batches carry one-off costs (starting Python workers, compiling), so measured rates rise at first. A
# batch may therefore grow at most by this factor over the one before.
MAX_GROWTH = 8.0
# Nor does it shrink below this: such a batch is mostly a micro-batch's fixed cost, and making it smaller still would
# only make the backlog slower, without end where the fixed cost alone exceeds the interval.
FLOOR_ROWS = 5_000
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


class Pacer:
    """Lets a batch through at most once in an interval, at multiples of it, as Spark's own trigger does.

    Ticks are multiples of the interval since 1970, so that several sources of one query keep step. A source that
    was busy past a tick is let through at once.

    Parameters
    ----------
    interval_ms : int
        Milliseconds; 0 lets everything through.
    """

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._last_tick = -1

    def due(self, now_ms: float) -> bool:
        """Whether a tick has passed since the last batch."""
        return not self._interval_ms or int(now_ms // self._interval_ms) > self._last_tick

    def released(self, now_ms: float) -> None:
        """Tell that a batch was handed out."""
        if self._interval_ms:
            self._last_tick = int(now_ms // self._interval_ms)
