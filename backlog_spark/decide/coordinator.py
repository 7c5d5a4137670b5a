"""Decides how a query runs (pure: no Spark, no clock, no thread). No other module does.

Sources report ``isProcessingBacklog``. While any running source does, the interval during backlog applies (FLIP-309).
If that is 0, keyed operators take sorted input and nothing is committed; afterwards the same query goes on as stream
(FLIP-327). A finished source no longer counts (FLIP-147). The listener's reports go in. Four questions are answered:

=================  =====================================================  =========================================
method             asked                                                  answer
=================  =====================================================  =========================================
`next_run`         before each run                                        `Step`: vehicle, trigger, where the run ends
`at_batch_end`     inside each batch, before it commits                   `Boundary`: whether the run ends with it
`after_report`     when a committed batch was reported (`take`)           whether the run ends at the next boundary
`after_run`        when a run has ended without an error                  `Then`: whether another run follows
=================  =====================================================  =========================================

The query's own thread makes all calls, but for `at_batch_end` and `ends_stay`: ``foreachBatch`` makes these, and they
change no flag. Any thread may read.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace

from backlog_spark.common.durations import format_duration
from backlog_spark.common.intervals import check_intervals
from backlog_spark.decide.ledger import Ledger, Run, Vehicle
from backlog_spark.decide.reports import ProgressReport
from backlog_spark.decide.rules import Figures, Judge, flagged
from backlog_spark.decide.source_rules import SourceRules
from backlog_spark.decide.steps import AVAILABLE_NOW, Boundary, Decision, Facts, Mode, Seen, Step, Then
from backlog_spark.errors import SettingError

__all__ = ["Change", "Coordinator"]

Change = tuple[int, Decision, str]
"""A switch: the first batch of the new mode, the decision, and why."""

# The least wait after a run that ended by itself and found nothing.
_IDLE_RUN_MS = 1_000


class Coordinator:
    """Holds a query's facts, its sources' flags, its rules and its ledger, and decides.

    Parameters
    ----------
    facts : Facts
    rules : Judge, optional
        Speaks for the sources that carry no flag. Default: none of them is ever in backlog.
    source_rules : SourceRules, optional
        Asked by the sources that carry one. Default: their own thresholds alone decide.

    Raises
    ------
    SettingError
        If an interval is negative, or the interval during backlog is neither 0 nor at least the normal one.

    Examples
    --------
    >>> coordinator = Coordinator(Facts(interval_ms=30_000, during_backlog_ms=1_800_000))
    >>> coordinator.report("orders", True).commit_interval_ms
    1800000
    >>> decision = coordinator.report("orders", False)
    >>> decision.switched, decision.commit_interval_ms
    (True, 30000)
    """

    def __init__(self, facts: Facts, rules: Judge | None = None, source_rules: SourceRules | None = None) -> None:
        _check(facts.interval_ms, facts.during_backlog_ms)
        self.facts = facts
        self.rules = rules or Judge(())
        self.source_rules = source_rules or SourceRules()
        self.ledger: Ledger | None = None
        """Earlier runs of a keyed query, as the checkpoint has them. The runner sets it."""
        self.step = Step(None, 0)
        """The present run: the last answer of `next_run`."""
        self.then = Then(True)
        """The last answer of `after_run`."""
        self.in_backlog = False
        """Whether a source with a flag is in backlog at the newest batch's end: known before the batch is reported."""
        self.names: Mapping[int, str] = {}
        """Names of the declared sources, by Spark's number."""
        self._no_rows_yet = False
        self._flags: dict[Hashable, bool] = {}  # replaced, never changed: other threads read it
        self._finished: frozenset[Hashable] = frozenset()
        self._last_batch = -1

    # -- reports: which sources are in backlog ------------------------------------------------------------------

    def register(self, source: Hashable) -> Decision:
        """Register a source: not in backlog, unless it is known already. The answer never says that it switched."""
        if source not in self._finished:
            self._flags = {source: False} | self._flags
        return self.decision

    def report(self, source: Hashable, is_processing_backlog: bool) -> Decision:
        """Take a source's flag; the last one wins. Reports come late: those of a finished source do not count."""
        before = self.mode
        if source not in self._finished:
            self._flags = {**self._flags, source: is_processing_backlog}
        return replace(self.decision, switched=self.mode is not before)

    def finish(self, source: Hashable) -> Decision:
        """Remove a source for good. It will emit nothing more."""
        before = self.mode
        self._finished |= {source}
        self._flags = {name: flag for name, flag in self._flags.items() if name != source}
        return replace(self.decision, switched=self.mode is not before)

    def begin(self, flags: Mapping[int, bool], names: Mapping[int, str] | None = None) -> Decision:
        """Take flags and names of the declared sources, by Spark's number, before the first report."""
        self.names = dict(names or {})
        for source, flag in flags.items():
            self.report(source, flag)
        return self.decision

    def judge(self, report: ProgressReport, sources: Collection[int], found: Figures, now_ms: float) -> ProgressReport:
        """The report, with the rules' answer as the flag of the sources that carry none."""
        before, after = self.rules.is_backlog, self.rules.take(found, now_ms, report)
        return flagged(report, dict.fromkeys(sources, after), dict.fromkeys(sources, before))

    def take(self, report: ProgressReport) -> list[Change]:
        """Take the listener's report of a committed batch. Returns the switches that follow from it."""
        self._last_batch = max(self._last_batch, report.batch_id)
        found: list[Change] = []
        for source in report.sources:
            number, name = source.index, self._name(source.index)
            words = {True: f"{name} reports backlog", False: f"{name} has left its backlog"}
            if source.start_offset != source.end_offset or source.num_input_rows:
                found.append((report.batch_id, self.report(number, source.is_backlog), words[source.is_backlog]))
            if source.finished:
                found.append((report.batch_id + 1, self.finish(number), f"{name} has finished"))
            else:
                flag = source.is_processing_backlog
                found.append((report.batch_id + 1, self.report(number, flag), words[flag]))
        return [change for change in found if change[1].switched]

    def drain(self, now_ms: float, sources: Collection[int] | None = None) -> list[Change]:
        """Take it that a run found nothing more to read: these sources, or all, have left backlog."""
        self.rules.end(now_ms)
        found: list[Change] = []
        for source in self._flags:
            if sources is None or source in sources:
                why = f"{self._name(source)} has no more rows that were there at the start"
                found.append((self._last_batch + 1, self.report(source, False), why))
        return [change for change in found if change[1].switched]

    def _name(self, source: Hashable) -> str:
        name = self.names.get(source) if isinstance(source, int) else None
        return f"source {name}" if name else "a streaming DataFrame"

    # -- what follows from them: mode and commit interval -------------------------------------------------------

    @property
    def flags(self) -> dict[Hashable, bool]:
        """The last flag of each running source, in the order of their first reports."""
        return dict(self._flags)

    @property
    def is_processing_backlog(self) -> bool:
        """Whether any running source is in backlog, by the reports so far."""
        return any(self._flags.values())

    @property
    def mode(self) -> Mode:
        """The present mode; always ``Mode.STREAM`` when the feature is off."""
        on = self.facts.during_backlog_ms is not None
        return Mode.BACKLOG if on and self.is_processing_backlog else Mode.STREAM

    @property
    def decision(self) -> Decision:
        """The present decision. Reading it switches nothing."""
        mode = self.mode
        # 0 during backlog means "no commit", whereas a normal interval of 0 means "at once": hence None.
        interval = (self.facts.during_backlog_ms or None) if mode is Mode.BACKLOG else self.facts.interval_ms
        return Decision(self.is_processing_backlog, mode, interval, switched=False)

    @property
    def merges(self) -> bool:
        """Whether a later stay in backlog may run sorted: what it collects can be merged into the state."""
        return not self.facts.joins_results and (self.ledger is None or self.ledger.is_mergeable)

    @property
    def _may_sort(self) -> bool:
        """Whether a stay in backlog may run sorted from here on."""
        return self.merges or self._is_first_stay

    @property
    def _is_first_stay(self) -> bool:
        """Whether a stay that begins now finds no state, although there were batches. Rows of frames are not known."""
        begun = self.ledger is not None and self.ledger.last_epoch >= 0
        return self._no_rows_yet and not begun and not self.facts.has_frames

    # -- the four questions -------------------------------------------------------------------------------------

    def next_run(self, seen: Seen) -> Step:
        """Decide the run to start now. No run is active."""
        facts, run, takes_first, why = self.facts, None, False, "no keyed operator"
        self.in_backlog, self._no_rows_yet = any(seen.in_backlog), seen.no_rows_yet
        sorts = (self.in_backlog or self.rules.is_backlog) and facts.sorts_backlog and not self.then.is_last_run
        if facts.is_keyed:
            run, takes_first, why = self._keyed_run(seen, sorts)
        is_sorted = run is not None and run.vehicle is Vehicle.SORTED
        replays_only = sorts and self._may_sort and not is_sorted
        finishes = self._all_finished(seen.finished) and not (is_sorted or replays_only)
        if facts.available_now or is_sorted or replays_only or finishes:
            trigger: int | None = AVAILABLE_NOW
        else:
            trigger = facts.interval_ms if facts.ticks else 0
        target = "backlogEnd" if is_sorted else "none" if replays_only else None
        why = "all sources have ended" if finishes else why
        self.step = Step(run, trigger, target, finishes, replays_only, takes_first, why)
        return self.step

    def _keyed_run(self, seen: Seen, sorts: bool) -> tuple[Run, bool, str]:
        """The run of the keyed operators, whether it takes state in before a sorted one, and why."""
        book = self.ledger or Ledger(0, 0, ())
        run = book.next_run(
            seen.planned, seen.committed, in_backlog=sorts, mergeable=self.merges, is_first_stay=self._is_first_stay
        )
        if seen.is_replay:
            return run, False, f"batch {seen.planned} is replayed as it was planned"
        if run.vehicle is Vehicle.STREAM:
            return run, False, "state cannot be merged" if sorts else "no backlog"
        if book.is_half_published or seen.has_unread_seeds:
            # A stay in backlog starts on a state that has all earlier ones, and they have been emitted.
            return Run(run.first_batch, Vehicle.STREAM), True, "state of the last backlog comes first"
        return run, False, "backlog"

    def at_batch_end(
        self,
        in_backlog: Sequence[bool],
        *,
        ends_stay: bool = False,
        is_firing: bool = False,
        no_rows_yet: bool = False,
    ) -> Boundary:
        """Decide whether the run ends with a batch; if not, how soon the next one begins.

        Parameters
        ----------
        in_backlog : sequence of bool
            Whether each declared source is in backlog at the batch's end offset.
        ends_stay : bool
            Whether it is the last batch of a stay in backlog.
        is_firing : bool
            Whether timers that were due in it are left (FLIP-443).
        no_rows_yet : bool
            Whether no declared source has given a row, up to the batch's end.
        """
        self.in_backlog, self._no_rows_yet = any(in_backlog), no_rows_yet
        # Streaming DataFrames do not end with the backlog: what is left of them is live.
        leaves = (ends_stay and self.facts.has_frames) or self._turns_to_sorted(self.in_backlog)
        ticks = self.step.trigger_ms and self.facts.is_keyed
        return Boundary(leaves, (0 if is_firing else self.step.trigger_ms) if ticks else None)

    def ends_stay(self, in_backlog: Sequence[bool], *, is_known: bool) -> bool:
        """Whether a batch of the sorted vehicle is the last one of its stay. ``is_known``: the checkpoint says so."""
        # A rule's answer is known only afterwards. Then the stream vehicle emits the results.
        return is_known or not (any(in_backlog) or self.rules.needs)

    def after_report(self, finished: Sequence[bool]) -> bool:
        """Decide whether the run ends at the next boundary, after `take`.

        Parameters
        ----------
        finished : sequence of bool
            For each declared source, whether it had finished at the newest committed batch.
        """
        if not self._flags and self._all_finished(finished) and not self._ends_soon:
            return True  # no row will come: what is left is one run that ends by itself
        return self._turns_to_sorted(self.is_processing_backlog)

    def after_run(self, *, idle: bool, left: bool, timers_done: bool = True) -> Then:
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
        facts, step = self.facts, self.step
        is_done = step.finishes and (idle or not facts.is_keyed or timers_done)
        if is_done or not (step.ends_by_itself or step.finishes or left):
            self.then = Then(False)
        elif not idle:
            self.then = Then(True)
        else:
            # A source may report backlog and have nothing to read: do not restart without a wait.
            wait = max(facts.interval_ms, _IDLE_RUN_MS)
            self.then = Then(True, wait, is_drained=True, is_last_run=facts.available_now)
        return self.then

    @property
    def _ends_soon(self) -> bool:
        """Whether the present run ends without being told to."""
        return self.step.ends_by_itself or self.step.finishes or self.facts.available_now

    def _turns_to_sorted(self, in_backlog: bool) -> bool:
        """Whether a stream run must end because the sorted vehicle can read new backlog."""
        ends_soon = self._ends_soon
        if self._is_first_stay and not self.then.is_last_run:
            ends_soon = self.step.ends_by_itself or self.step.finishes  # ``availableNow`` reads it in a run of its own
        return in_backlog and self.facts.sorts_backlog and self._may_sort and not ends_soon

    def _all_finished(self, finished: Sequence[bool]) -> bool:
        return bool(finished) and all(finished) and not self.facts.has_frames


def _check(interval_ms: int, during_backlog_ms: int | None) -> None:
    for name, value in (("interval", interval_ms), ("interval_during_backlog", during_backlog_ms)):
        if value is not None and value < 0:
            raise SettingError(name, f"{value} ms", "a duration cannot be negative.", "Set 0 or more.")
    if during_backlog_ms is not None:
        check_intervals(
            interval_ms,
            during_backlog_ms,
            interval_name="interval",
            interval_value=format_duration(interval_ms),
            during_backlog_name="interval_during_backlog",
            during_backlog_value=format_duration(during_backlog_ms),
        )
