"""The facts that the coordinator decides from, and its answers (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from backlog_spark.decide.ledger import Run, Vehicle

__all__ = ["AVAILABLE_NOW", "Boundary", "Decision", "Facts", "Mode", "Seen", "Step", "Then"]

AVAILABLE_NOW = None
"""`Step.trigger_ms` of a run that reads the available rows and ends by itself."""

_LONGER_THAN_A_TICK = 1.25
"""Beside sources that do not pace themselves the trigger must be the interval. A batch that ends before the next tick
then seems to last until that tick. With a smaller target each batch would become smaller than the one before."""


class Mode(StrEnum):
    """What the query should run as: ``BACKLOG`` if the feature is on and a running source reports backlog."""

    BACKLOG = "backlog"
    STREAM = "stream"


@dataclass(frozen=True)
class Decision:
    """The decision from all reports so far.

    Parameters
    ----------
    is_processing_backlog : bool
        True if any running source's last report said so, even if the feature is off.
    mode : Mode
        ``Mode.BACKLOG`` or ``Mode.STREAM``.
    commit_interval_ms : int or None
        Milliseconds between commits from now on; 0: the next batch starts as soon as the last is done. None:
        no commit until the backlog ends (interval during backlog 0).
    switched : bool
        True if the call that returned this decision changed `mode`. Never true twice for one switch.
    """

    is_processing_backlog: bool
    mode: Mode
    commit_interval_ms: int | None
    switched: bool


@dataclass(frozen=True)
class Facts:
    """The facts of a query that are fixed from its start on.

    Parameters
    ----------
    interval_ms : int
        The normal commit interval; 0: the next batch starts as soon as the last is done.
    during_backlog_ms : int or None
        The interval during backlog; 0: no commit until every source has left backlog. None: feature off.
    is_keyed : bool
        Whether there is a keyed operator.
    sorts_each_batch : bool
        ``spark.backlog.sortedBatch.enabled``.
    available_now : bool
        Whether the query reads what is there and ends.
    ours : tuple of bool
        For each declared source, whether it is a connector's and so can pace itself.
    has_frames : bool
        Whether it reads streaming DataFrames. They do not pace themselves and have no flag.
    waits_for_rows : bool
        Whether its first source can wait for rows itself.
    is_timed : bool
        Whether a keyed operator has timers or watermarks, and so a control source beside the query's own.
    joins_results : bool
        Whether an operator joins the results of others. Then no later stay in backlog runs sorted: the first operator
        would not see the rows that enter after it.
    """

    interval_ms: int
    during_backlog_ms: int | None
    is_keyed: bool = False
    sorts_each_batch: bool = False
    available_now: bool = False
    ours: tuple[bool, ...] = (True,)
    has_frames: bool = False
    waits_for_rows: bool = False
    is_timed: bool = False
    joins_results: bool = False

    @property
    def sorts_backlog(self) -> bool:
        """Mixed mode: keyed operators take sorted input in backlog. FLIP-327: when the interval during backlog is 0."""
        during = self.during_backlog_ms
        return self.is_keyed and (during == 0 or (self.sorts_each_batch and during is not None))

    @property
    def collects_backlog(self) -> bool:
        """Whether results wait until every source has left backlog."""
        return self.during_backlog_ms == 0

    @property
    def sources_pace(self) -> bool:
        """Whether the sources keep the intervals themselves. Others need a tick, or they commit without a pause."""
        return self.during_backlog_ms is not None and bool(self.ours) and all(self.ours) and not self.has_frames

    @property
    def ticks(self) -> bool:
        """Whether Spark's trigger spaces the batches of a run that does not end by itself."""
        return not self.sources_pace and bool(self.interval_ms)

    @property
    def source_waits(self) -> bool:
        """Whether the source waits for rows itself: no other source has rows at any time, and Spark waits for no tick.

        The seed source of a keyed operator may stand beside it: it has rows only at the start of a run.
        """
        alone = len(self.ours) == 1 and not self.has_frames and not self.is_timed
        return alone and not self.ticks and self.waits_for_rows

    def batch_target_ms(self, *, ends_by_itself: bool) -> int | None:
        """How long a backlog batch of a declared source is to take; 0: all in one batch; None: not sized."""
        during = self.during_backlog_ms
        if not during or ends_by_itself or self.sources_pace:
            return during
        return max(during, int(self.interval_ms * _LONGER_THAN_A_TICK))


@dataclass(frozen=True)
class Seen:
    """The state of the query before a run. No run is active.

    Parameters
    ----------
    planned, committed : int or None
        Newest batch in Spark's offset log and in its commit log.
    in_backlog, finished : sequence of bool
        For each declared source, whether it is in backlog and whether it has finished (FLIP-147), by its offset at the
        end of the newest planned batch.
    has_unread_seeds : bool
        Whether there is handed-over state that no stream run may have read yet.
    no_rows_yet : bool
        Whether no declared source has given a row, up to the end of the newest planned batch.
    """

    planned: int | None = None
    committed: int | None = None
    in_backlog: Sequence[bool] = ()
    finished: Sequence[bool] = ()
    has_unread_seeds: bool = False
    no_rows_yet: bool = False

    @property
    def is_replay(self) -> bool:
        """Whether the newest planned batch has not committed."""
        return self.planned is not None and self.planned != self.committed


@dataclass(frozen=True)
class Step:
    """The next run.

    Parameters
    ----------
    run : Run or None
        Vehicle, first batch and epoch of the keyed operators; None without keyed operators.
    trigger_ms : int or None
        Spark's trigger; `AVAILABLE_NOW` for a run that ends by itself.
    target : str or None
        The option ``availableNowTarget`` of the declared sources: where the run ends. None: nowhere.
    finishes : bool
        All sources have finished: this run does the remaining work and ends the query.
    replays_only : bool
        There is backlog, but a batch of a stream run comes first: a logged one, or one that takes state in.
    takes_state_first : bool
        A sorted run was due, but handed-over state is still unread: this stream run takes it in.
    why : str
        For the log.
    """

    run: Run | None
    trigger_ms: int | None
    target: str | None = None
    finishes: bool = False
    replays_only: bool = False
    takes_state_first: bool = False
    why: str = ""

    @property
    def is_sorted(self) -> bool:
        """Whether the keyed operators run in the sorted vehicle."""
        return self.run is not None and self.run.vehicle is Vehicle.SORTED

    @property
    def ends_by_itself(self) -> bool:
        """Whether the run ends without a stop, and another run follows."""
        return self.is_sorted or self.replays_only


@dataclass(frozen=True)
class Boundary:
    """The decision for the time after the batch has committed.

    Parameters
    ----------
    leaves : bool
        The run ends there. Otherwise the next batch would run under a plan from before the flag was known.
    wait_ms : int or None
        The wait of Spark's trigger before the next batch; None: no change, since Spark does not tick.
    """

    leaves: bool
    wait_ms: int | None = None


@dataclass(frozen=True)
class Then:
    """The decision after a run.

    Parameters
    ----------
    goes_on : bool
        Another run follows.
    wait_ms : int
        Wait before that.
    is_drained : bool
        The streaming DataFrames are drained, whatever the figures of the last batch were.
    is_last_run : bool
        The next run takes the state over and ends the query.
    """

    goes_on: bool
    wait_ms: int = 0
    is_drained: bool = False
    is_last_run: bool = False
