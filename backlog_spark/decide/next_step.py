"""Decides what a query does next (pure). No other module does.

The runner reports what it sees and carries out the answer. There are four questions:

=================  ==============================================  =========================================
function           asked                                           answer
=================  ==============================================  =========================================
`next_step`        before each run                                 `Step`: vehicle, trigger, where the run ends
`at_batch_end`     inside each batch, before it commits            `Boundary`: whether the run ends with it
`after_report`     when a committed batch is reported              whether the run ends at the next boundary
`after_run`        when a run has ended without an error           `Then`: whether another run follows
=================  ==============================================  =========================================

Source: FLIP-309 (the commit interval while any running source reports ``isProcessingBacklog``), FLIP-327 (sorted input
while the interval during backlog is 0, then stream mode in the same job), FLIP-147 (a finished source does not count).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backlog_spark.decide.ledger import Ledger, Run, Vehicle

__all__ = [
    "AVAILABLE_NOW",
    "BatchEnd",
    "Boundary",
    "Facts",
    "Seen",
    "Step",
    "Then",
    "after_report",
    "after_run",
    "at_batch_end",
    "ends_stay",
    "next_step",
]

AVAILABLE_NOW = None
"""`Step.trigger_ms` of a run that reads the available rows and ends by itself."""

_IDLE_RUN_MS = 1_000
"""The least wait after a run that ended by itself and found nothing."""

_LONGER_THAN_A_TICK = 1.25
"""Beside sources that do not pace themselves the trigger must be the interval. A batch that ends before the next tick
then seems to last until that tick. With a smaller target each batch would become smaller than the one before."""


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
    has_rules : bool
        Whether a rule decides when those are in backlog.
    waits_for_rows : bool
        Whether its first source can wait for rows itself.
    is_timed : bool
        Whether a keyed operator has timers or watermarks, and so a control source beside the query's own.
    """

    interval_ms: int
    during_backlog_ms: int | None
    is_keyed: bool
    sorts_each_batch: bool = False
    available_now: bool = False
    ours: tuple[bool, ...] = (True,)
    has_frames: bool = False
    has_rules: bool = False
    waits_for_rows: bool = False
    is_timed: bool = False

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
    in_backlog : bool
        Whether any running declared source is in backlog, by its offset at the end of the newest planned batch.
    rule_holds : bool
        Whether a rule says that the streaming DataFrames are in backlog.
    finished : tuple of bool
        For each declared source, whether it has finished (FLIP-147).
    merges : bool
        Whether the first keyed operator's state can be merged, so that a later stay in backlog may run sorted.
    has_unread_seeds : bool
        Whether there is handed-over state that no stream run may have read yet.
    is_last_run : bool
        Whether everything available now has been read; `Then.is_last_run` of the run before.
    """

    planned: int | None = None
    committed: int | None = None
    in_backlog: bool = False
    rule_holds: bool = False
    finished: tuple[bool, ...] = ()
    merges: bool = True
    has_unread_seeds: bool = False
    is_last_run: bool = False


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


def next_step(facts: Facts, seen: Seen, ledger: Ledger | None) -> Step:
    """Decide the run to start now.

    Parameters
    ----------
    facts : Facts
    seen : Seen
    ledger : Ledger or None
        Earlier runs of a keyed query, from the checkpoint; None before the first one.
    """
    run, replays_only, takes_first, why = None, False, False, "no keyed operator"
    if facts.is_keyed:
        book = ledger or Ledger(0, 0, ())
        sorts = (seen.in_backlog or seen.rule_holds) and facts.sorts_backlog and not seen.is_last_run
        run = book.next_run(seen.planned, seen.committed, in_backlog=sorts, mergeable=seen.merges)
        is_replay = seen.planned is not None and seen.planned != seen.committed
        is_sorted = run.vehicle is Vehicle.SORTED
        why = "backlog" if is_sorted else "no backlog" if not sorts else "state cannot be merged"
        if is_replay:
            why = f"batch {seen.planned} is replayed as it was planned"
        elif is_sorted and (book.is_half_published or seen.has_unread_seeds):
            # A stay in backlog starts on a state that has all earlier ones, and they have been emitted.
            run, takes_first, why = Run(run.first_batch, Vehicle.STREAM), True, "state of the last backlog comes first"
        replays_only = sorts and seen.merges and run.vehicle is Vehicle.STREAM
    ends = run is not None and (run.vehicle is Vehicle.SORTED or replays_only)
    finishes = _all_finished(facts, seen.finished) and not ends
    if facts.available_now or ends or finishes:
        trigger: int | None = AVAILABLE_NOW
    else:
        trigger = facts.interval_ms if facts.ticks else 0
    target = None
    if ends:
        target = "none" if replays_only else "backlogEnd"
    return Step(
        run, trigger, target, finishes, replays_only, takes_first, "all sources have ended" if finishes else why
    )


@dataclass(frozen=True)
class BatchEnd:
    """The facts inside a batch, after its rows have reached their sinks and before it commits.

    Parameters
    ----------
    in_backlog : bool
        Whether any declared source is in backlog at the batch's end offset.
    ends_stay : bool
        Whether it is the last batch of a stay in backlog (`ends_stay`).
    is_firing : bool
        Whether timers that were due in it are left (FLIP-443).
    merges : bool
        As in `Seen`.
    """

    in_backlog: bool
    ends_stay: bool = False
    is_firing: bool = False
    merges: bool = True


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


def at_batch_end(facts: Facts, step: Step, end: BatchEnd) -> Boundary:
    """Decide whether the run ends with a batch; if not, how soon the next one begins."""
    # Streaming DataFrames do not end with the backlog: what is left of them is live.
    leaves = (end.ends_stay and facts.has_frames) or _turns_to_sorted(facts, step, end.in_backlog, end.merges)
    wait = None
    if step.trigger_ms and facts.is_keyed:
        wait = 0 if end.is_firing else step.trigger_ms
    return Boundary(leaves, wait)


def ends_stay(facts: Facts, *, in_backlog: bool, is_known: bool) -> bool:
    """Whether a batch of the sorted vehicle is the last one of its stay in backlog.

    Parameters
    ----------
    in_backlog : bool
        Whether any declared source is in backlog at the batch's end.
    is_known : bool
        Whether the checkpoint already says so: the batch is replayed.
    """
    # A rule's answer is known only afterwards. Then the stream vehicle emits the results.
    return is_known or not (in_backlog or facts.has_rules)


def after_report(
    facts: Facts, step: Step, *, in_backlog: bool, merges: bool, has_running_sources: bool, finished: Sequence[bool]
) -> bool:
    """Decide whether a run ends at the next boundary, after a committed batch was reported.

    Parameters
    ----------
    in_backlog : bool
        Whether any running source reports backlog; for rules this is the only information.
    merges : bool
        As in `Seen`.
    has_running_sources : bool
        Whether any source may still have rows, by the reports so far.
    finished : sequence of bool
        For each declared source, whether it had finished at the newest committed batch.
    """
    if step.ends_by_itself or facts.available_now or step.finishes:
        return False
    if not has_running_sources and _all_finished(facts, finished):
        return True  # no row will come: what is left is one run that ends by itself
    return _turns_to_sorted(facts, step, in_backlog, merges)


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


def after_run(facts: Facts, step: Step, *, idle: bool, left: bool, timers_done: bool = True) -> Then:
    """Decide what follows a run that ended without an error and was not stopped.

    Parameters
    ----------
    idle : bool
        It committed nothing.
    left : bool
        `at_batch_end` or `after_report` ended it.
    timers_done : bool
        Whether everything that the end of all sources makes due has been committed.
    """
    if step.finishes and (idle or not facts.is_keyed or timers_done):
        return Then(False)
    if not (step.ends_by_itself or left or step.finishes):
        return Then(False)
    if not idle:
        return Then(True)
    # A source may report backlog and have nothing to read: do not restart without a wait.
    return Then(True, max(facts.interval_ms, _IDLE_RUN_MS), is_drained=True, is_last_run=facts.available_now)


def _turns_to_sorted(facts: Facts, step: Step, in_backlog: bool, merges: bool) -> bool:
    """Whether a stream run must end because the sorted vehicle can read new backlog."""
    if step.ends_by_itself or facts.available_now or step.finishes:
        return False
    return in_backlog and facts.sorts_backlog and merges


def _all_finished(facts: Facts, finished: Sequence[bool]) -> bool:
    return bool(finished) and all(finished) and not facts.has_frames
