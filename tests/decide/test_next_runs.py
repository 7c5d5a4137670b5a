"""What a query does next: the proposals' rules as truth tables, then random runs that crash between any two steps.

Random runs use `Ledger` and a log of planned and committed batches like Spark's. Spark does not run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.decide.coordinator import Coordinator
from backlog_spark.decide.ledger import Ledger, Run, Vehicle
from backlog_spark.decide.rules import Figures, Judge, Rule
from backlog_spark.decide.steps import AVAILABLE_NOW, Boundary, Facts, Seen, Step, Then

SORTED, STREAM = Vehicle.SORTED, Vehicle.STREAM
MIXED = Facts(1_000, 0, is_keyed=True)
LIVE = Step(Run(1, STREAM), 0)
IN_ROUND = Step(Run(0, SORTED, 0), AVAILABLE_NOW, "backlogEnd")


def rules(*, hold: bool = False) -> Judge:
    """A rule, and whether it says that the streaming DataFrames are in backlog."""
    judge = Judge([Rule("filesOutstanding", 100, 50)])
    judge.take(Figures({"filesOutstanding": 200 if hold else 0}), 0)
    return judge


def made(
    facts: Facts = MIXED, ledger: Ledger | None = None, step: Step | None = None, judge: Judge | None = None
) -> Coordinator:
    """A coordinator in the middle of a life."""
    coordinator = Coordinator(facts, judge)
    coordinator.ledger = ledger
    coordinator.step = step or coordinator.step
    return coordinator


def unmergeable(ledger: Ledger) -> Ledger:
    return replace(ledger, operators=(("sum", {"mergeable": False}),))


# -- settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "sorts", "collects"),
    [
        (Facts(1_000, None, is_keyed=True), False, False),  # FLIP-309: off unless the interval is set
        (Facts(1_000, 0, is_keyed=True), True, True),  # FLIP-327: sorted, and nothing is put out before the end
        (Facts(1_000, 60_000, is_keyed=True), False, False),  # FLIP-327: above 0 it is stream mode
        (Facts(1_000, 60_000, is_keyed=True, sorts_each_batch=True), True, False),
        (Facts(1_000, None, is_keyed=True, sorts_each_batch=True), False, False),
        (Facts(1_000, 0, is_keyed=False), False, True),
    ],
)
def test_when_backlog_is_sorted(facts: Facts, sorts: bool, collects: bool) -> None:
    assert (facts.sorts_backlog, facts.collects_backlog) == (sorts, collects)


@pytest.mark.parametrize(
    ("facts", "paces", "ticks", "waits"),
    [
        (Facts(1_000, 0, False, waits_for_rows=True), True, False, True),
        (Facts(1_000, 0, False), True, False, False),
        (Facts(1_000, None, False, waits_for_rows=True), False, True, False),  # plain Spark
        (Facts(0, None, False, waits_for_rows=True), False, False, True),
        (Facts(1_000, 0, True, waits_for_rows=True), True, False, True),
        # a control source is beside it
        (Facts(1_000, 0, True, waits_for_rows=True, is_timed=True), True, False, False),
        (Facts(1_000, 0, False, has_frames=True, waits_for_rows=True), False, True, False),
        (Facts(1_000, 0, False, ours=(True, False), waits_for_rows=True), False, True, False),
        (Facts(1_000, 0, False, ours=(True, True), waits_for_rows=True), True, False, False),
        (Facts(1_000, 0, False, ours=(), has_frames=True), False, True, False),
    ],
)
def test_who_keeps_the_interval(facts: Facts, paces: bool, ticks: bool, waits: bool) -> None:
    assert (facts.sources_pace, facts.ticks, facts.source_waits) == (paces, ticks, waits)


def test_how_long_a_backlog_batch_takes() -> None:
    assert Facts(1_000, None, False).batch_target_ms(ends_by_itself=False) is None
    assert Facts(1_000, 0, False).batch_target_ms(ends_by_itself=False) == 0
    assert Facts(1_000, 60_000, False).batch_target_ms(ends_by_itself=False) == 60_000
    beside_frames = Facts(1_000, 1_000, False, has_frames=True)
    assert beside_frames.batch_target_ms(ends_by_itself=False) == 1_250  # longer than a tick, or batches would shrink
    assert beside_frames.batch_target_ms(ends_by_itself=True) == 1_000


# -- before a run --------------------------------------------------------------------------------------------


def test_without_keyed_operators_one_run_does_both() -> None:
    assert made(Facts(1_000, 0, False)).next_run(Seen(in_backlog=[True])).trigger_ms == 0
    assert made(Facts(1_000, None, False)).next_run(Seen(in_backlog=[True])).trigger_ms == 1_000
    assert made(Facts(1_000, None, False, available_now=True)).next_run(Seen()).trigger_ms is AVAILABLE_NOW


def test_a_first_start_in_backlog_is_sorted_to_its_end() -> None:
    step = made().next_run(Seen(in_backlog=[True]))
    assert (step.run, step.trigger_ms, step.target) == (Run(0, SORTED, 0), AVAILABLE_NOW, "backlogEnd")
    assert step.ends_by_itself
    assert made(judge=rules(hold=True)).next_run(Seen()).run == Run(0, SORTED, 0)


def test_a_first_start_without_backlog_is_stream() -> None:
    step = made().next_run(Seen())
    assert (step.run, step.trigger_ms, step.target, step.ends_by_itself) == (Run(0, STREAM), 0, None, False)


ONE_STAY = Ledger(4, 2, (), (Run(0, SORTED, 0), Run(3, STREAM)), published=0, publishing=0)


def test_a_later_backlog_is_sorted_where_state_merges() -> None:
    seen = Seen(planned=5, committed=5, in_backlog=[True])
    assert made(MIXED, ONE_STAY).next_run(seen).run == Run(6, SORTED, 1)
    step = made(MIXED, unmergeable(ONE_STAY)).next_run(seen)
    assert (step.run, step.trigger_ms, step.ends_by_itself) == (Run(6, STREAM), 0, False)


def test_a_planned_batch_is_replayed_as_it_was_planned() -> None:
    first = made(MIXED, ONE_STAY).next_run(Seen(planned=2, committed=1, in_backlog=[False]))
    assert (first.run, first.target) == (Run(2, SORTED, 0), "backlogEnd")
    later = made(MIXED, ONE_STAY).next_run(Seen(planned=5, committed=4, in_backlog=[True]))
    assert (later.run, later.target, later.replays_only) == (Run(5, STREAM), "none", True)


@pytest.mark.parametrize("book", [ONE_STAY, replace(ONE_STAY, publishing=1)])
def test_state_that_was_handed_over_comes_before_a_new_stay(book: Ledger) -> None:
    seen = Seen(planned=2, committed=2, in_backlog=[True], has_unread_seeds=book is ONE_STAY)
    step = made(MIXED, book).next_run(seen)
    assert (step.run, step.target, step.takes_state_first) == (Run(3, STREAM), "none", True)


def test_a_query_whose_sources_have_ended_does_what_is_left() -> None:
    step = made(MIXED, ONE_STAY).next_run(Seen(planned=5, committed=5, finished=(True, True)))
    assert (step.finishes, step.trigger_ms, step.target) == (True, AVAILABLE_NOW, None)
    assert not made(MIXED, ONE_STAY).next_run(Seen(finished=(True, False))).finishes
    beside_frames = replace(MIXED, has_frames=True)
    assert not made(beside_frames, ONE_STAY).next_run(Seen(finished=(True, True))).finishes


# -- in a run ------------------------------------------------------------------------------------------------


def test_a_stream_run_ends_where_backlog_begins() -> None:
    assert made(MIXED, step=LIVE).at_batch_end([True]) == Boundary(True)
    assert made(MIXED, step=LIVE).at_batch_end([False]) == Boundary(False)
    assert made(MIXED, unmergeable(ONE_STAY), step=LIVE).at_batch_end([True]) == Boundary(False)
    off = Facts(1_000, None, is_keyed=True)
    assert made(off, step=replace(LIVE, trigger_ms=1_000)).at_batch_end([True]) == Boundary(False, 1_000)


def test_a_sorted_run_ends_by_itself_but_for_streaming_frames() -> None:
    assert made(MIXED, step=IN_ROUND).at_batch_end([False], ends_stay=True) == Boundary(False)
    beside_frames = replace(MIXED, has_frames=True)
    assert made(beside_frames, step=IN_ROUND).at_batch_end([False], ends_stay=True) == Boundary(True)


def test_what_timers_left_over_follows_at_once() -> None:
    ticking = Step(Run(1, STREAM), 1_000)
    beside_frames = replace(MIXED, has_frames=True)
    assert made(beside_frames, step=ticking).at_batch_end([False], is_firing=True).wait_ms == 0
    assert made(beside_frames, step=ticking).at_batch_end([False]).wait_ms == 1_000


def test_when_a_stay_is_known_to_end() -> None:
    assert made().ends_stay([False], is_known=False)
    assert not made().ends_stay([True], is_known=False)
    assert made().ends_stay([True], is_known=True)
    assert not made(replace(MIXED, has_frames=True), judge=rules()).ends_stay([False], is_known=False)


def test_a_report_ends_a_run() -> None:
    def leaves(step: Step = LIVE, *, flag: bool | None = False, finished: bool = False) -> bool:
        """``flag``: the source's by the newest report; None: it has reported that it has finished."""
        coordinator = made(step=step)
        if flag is None:
            coordinator.finish("orders")
        else:
            coordinator.report("orders", flag)
        return coordinator.after_report([finished])

    assert not leaves()
    assert leaves(flag=True)
    assert not leaves(IN_ROUND, flag=True)
    assert leaves(flag=None, finished=True)
    assert not leaves(flag=None, finished=False)  # reported late
    assert not leaves(replace(LIVE, finishes=True), flag=None, finished=True)


# -- after a run ---------------------------------------------------------------------------------------------


def test_what_follows_a_run() -> None:
    assert made(MIXED, step=IN_ROUND).after_run(idle=False, left=False) == Then(True)
    assert made(MIXED, step=IN_ROUND).after_run(idle=True, left=False) == Then(True, 1_000, is_drained=True)
    assert made(replace(MIXED, interval_ms=5_000), step=IN_ROUND).after_run(idle=True, left=False).wait_ms == 5_000
    assert made(MIXED, step=LIVE).after_run(idle=False, left=True) == Then(True)
    assert made(MIXED, step=LIVE).after_run(idle=False, left=False) == Then(False)
    now = replace(MIXED, available_now=True)
    ended = made(now, ONE_STAY, IN_ROUND)
    assert ended.after_run(idle=True, left=False).is_last_run
    assert ended.next_run(Seen(2, 2, in_backlog=[True])).run == Run(3, STREAM)


def test_the_end_of_all_input() -> None:
    finishing = replace(LIVE, finishes=True, trigger_ms=AVAILABLE_NOW)
    assert made(MIXED, step=finishing).after_run(idle=False, left=False) == Then(False)
    assert made(MIXED, step=finishing).after_run(idle=False, left=False, timers_done=False) == Then(True)
    assert made(MIXED, step=finishing).after_run(idle=True, left=False, timers_done=False) == Then(False)


# -- every state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("during_ms", [None, 0, 60_000])
@pytest.mark.parametrize("is_keyed", [True, False])
def test_every_combination_of_the_facts(during_ms: int | None, is_keyed: bool) -> None:
    """The proposals' rules for a run, and that no other question contradicts the answer for it."""
    both = (False, True)
    for interval, sorts_each, now, frames, ours, joins in product((0, 1_000), both, both, both, both, both):
        facts = Facts(
            interval, during_ms, is_keyed, sorts_each_batch=sorts_each, available_now=now, ours=(ours,),
            has_frames=frames, joins_results=joins,
        )  # fmt: skip
        mixed = is_keyed and (during_ms == 0 or (sorts_each and during_ms is not None))
        for flag, ended, rule, mergeable, unread, last, none in product(
            both, both, (None, False, True), both, both, both, both
        ):
            if (rule is not None and not frames) or (flag and ended) or (last and not now):  # cannot be
                continue
            for planned, committed in ((None, None), (2, 1), (2, 2), (5, 4), (5, 5)):
                ledger = None
                # ``none``: the source has given no row yet, so there was no stay in backlog either.
                if none and (unread or planned == 2):
                    continue
                if is_keyed and planned is not None:
                    before = Ledger(4, 2, (), (Run(0, STREAM),)) if none else ONE_STAY
                    ledger = replace(before, operators=(("sum", {"mergeable": mergeable}),))
                coordinator = made(facts, ledger, judge=None if rule is None else rules(hold=rule))
                coordinator.then = Then(True, is_last_run=last)
                step = coordinator.next_run(
                    Seen(planned, committed, [flag], [ended], has_unread_seeds=unread, no_rows_yet=none)
                )
                state = (facts, flag, ended, rule, mergeable, unread, last, none, planned, committed)

                backlog, is_replay = flag or bool(rule), planned != committed
                # A stay without a row before it is a first one. What streaming DataFrames have given is not known.
                first = none and not frames
                merges = ((mergeable or planned is None) and not joins) or first
                wants = mixed and backlog and not last
                if is_replay and is_keyed:
                    assert step.run == Run(planned, *((SORTED, 0) if planned == 2 else (STREAM, -1))), state
                elif is_keyed:
                    # A first stay finds no state. A later one must be able to merge into it, once that is complete.
                    sorts = wants and (planned is None or merges) and not unread
                    assert step.run is not None
                    assert (step.run.vehicle is SORTED) == sorts, state
                    if sorts:
                        assert step.run.epoch == (0 if planned is None or first else 1), state
                    assert step.run.first_batch == (0 if planned is None else planned + 1)
                else:
                    assert step.run is None
                assert step.replays_only == (wants and merges and not step.is_sorted), state
                over = ended and not frames and not step.ends_by_itself
                assert step.finishes == over, state
                assert (step.trigger_ms is AVAILABLE_NOW) == (now or over or step.ends_by_itself), state
                if step.trigger_ms is not AVAILABLE_NOW:
                    paced = during_ms is not None and ours and not frames  # by the sources themselves
                    assert step.trigger_ms == (0 if paced else interval), state
                assert step.target == ("backlogEnd" if step.is_sorted else "none" if step.replays_only else None)

                # The run must not be told to end because of what it was decided with: it would start again and again.
                assert not coordinator.at_batch_end([flag], no_rows_yet=none).leaves, state
                coordinator.begin({0: flag, **({} if rule is None else {1: rule})})
                if ended:
                    coordinator.finish(0)
                else:
                    assert not coordinator.after_report([ended]), state
                # But for new backlog: a stream run gives way to a sorted one.
                gives_way = mixed and merges and not (step.ends_by_itself or over)
                gives_way = gives_way and (not now or (first and not last))
                assert coordinator.at_batch_end([True], no_rows_yet=none).leaves == gives_way, state
                coordinator.report(2, True)
                assert coordinator.after_report([False]) == gives_way, state
                assert (coordinator.mode == "backlog") == (during_ms is not None)


# -- random lives --------------------------------------------------------------------------------------------


class Crash(Exception):
    pass


@dataclass
class Life:
    """A keyed query of one source, at an interval during backlog of 0.

    Parameters
    ----------
    flags : list of bool
        Whether the source is in backlog at the end of each batch that it has rows for; it has ended then.
    crashes : iterator
        Whether the driver dies at the next point between two steps.
    silent : int
        The first batches that have no rows.
    """

    starts_in_backlog: bool
    flags: list[bool]
    crashes: list[bool]
    merges: bool
    silent: int = 0
    ledger: Ledger | None = None
    planned: int | None = None
    committed: int | None = None
    planned_in: dict[int, Run] = field(default_factory=dict)
    unread: bool = False
    taken_in: set[int] = field(default_factory=set)
    drained: bool = False
    seed_batches: set[int] = field(default_factory=set)
    coordinator: Coordinator = field(default_factory=made)

    def maybe_crash(self) -> None:
        if self.crashes and self.crashes.pop():
            raise Crash

    def in_backlog_after(self, batch: int | None) -> bool:
        return self.starts_in_backlog if batch is None or batch < 0 else self.flags[batch]

    def has_ended(self, batch: int | None) -> bool:
        return batch is not None and batch == len(self.flags) - 1

    def no_rows_yet(self, batch: int | None) -> bool:
        return batch is None or batch < self.silent

    def live(self) -> None:
        for _ in range(4 * len(self.flags) + 4 * len(self.crashes) + 20):
            try:
                if self.one_process():
                    return
            except Crash:
                self.drained = False  # only the process knew
        raise AssertionError(f"it does not end: {self}")

    def one_process(self) -> bool:
        self.coordinator = made()
        for _ in range(3 * len(self.flags) + 20):
            self.coordinator.ledger = self.ledger
            step = self.coordinator.next_run(
                Seen(
                    self.planned, self.committed, [self.in_backlog_after(self.planned)],
                    [self.has_ended(self.planned)], has_unread_seeds=self.unread and not self.drained,
                    no_rows_yet=self.no_rows_yet(self.planned),
                )
            )  # fmt: skip
            idle, left = self.run(step)
            if not self.coordinator.after_run(idle=idle, left=left).goes_on:
                assert step.finishes
                return True
        raise AssertionError(f"runs without end: {self}")

    def run(self, step: Step) -> tuple[bool, bool]:
        run = step.run
        assert run is not None
        ledger = self.ledger or Ledger(4, 2, (("sum", {"mergeable": self.merges}),))
        if run.vehicle is STREAM and ledger.unpublished:
            epoch = ledger.last_epoch
            self.ledger = ledger = ledger.begin_publication(epoch)
            self.maybe_crash()
            self.unread, self.drained = True, False
            self.maybe_crash()
            self.ledger = ledger = ledger.publish(epoch)
            self.maybe_crash()
        self.drained = self.drained or step.takes_state_first
        self.ledger = self.coordinator.ledger = ledger = ledger.begin(run)
        run = ledger.runs[-1]
        self.maybe_crash()
        idle = True
        while True:
            replays = self.planned is not None and self.planned != self.committed
            if not replays:
                batch = 0 if self.committed is None else self.committed + 1
                seeds_only = run.vehicle is STREAM and self.unread and not self.taken_in >= {ledger.published}
                if seeds_only:
                    # A batch without rows of the source.
                    self.seed_batches.add(batch)
                    self.flags.insert(batch, self.in_backlog_after(self.committed))
                elif (
                    self.has_ended(self.committed)
                    or step.target == "none"
                    or (step.target == "backlogEnd" and not self.in_backlog_after(self.committed))
                ):
                    return idle, False
                self.planned, self.planned_in[batch] = batch, run
                self.maybe_crash()
            assert self.planned is not None
            batch = self.planned
            assert (run.vehicle, run.epoch) == (self.planned_in[batch].vehicle, self.planned_in[batch].epoch)
            if run.vehicle is STREAM:
                assert not ledger.unpublished, "a stream batch without the state of the backlog before it"
                if self.unread:
                    self.taken_in.add(ledger.published)
                elif ledger.last_epoch < 0 and batch and self.no_rows_yet(batch - 1):
                    assert not self.in_backlog_after(batch - 1), "a first stay is sorted"
            else:
                assert self.in_backlog_after(batch - 1), "a sorted batch outside of backlog"
                handed_over = {ledger.published} - {-1}
                assert self.taken_in >= handed_over, "a stay began on a state that lacks another"
            self.maybe_crash()
            boundary = self.coordinator.at_batch_end(
                [self.in_backlog_after(batch)], no_rows_yet=self.no_rows_yet(batch)
            )
            self.committed, idle = batch, False
            if run.vehicle is STREAM and self.taken_in >= {ledger.published} and batch > run.first_batch:
                self.unread = False  # removed when the batch after it runs
            self.maybe_crash()
            if boundary.leaves:
                return idle, True
            if self.has_ended(batch):
                self.coordinator.finish("orders")
            else:
                self.coordinator.report("orders", self.in_backlog_after(batch))
            if self.coordinator.after_report([self.has_ended(batch)]):
                return idle, True


@given(
    st.booleans(),
    st.lists(st.booleans(), min_size=1, max_size=8),
    st.lists(st.sampled_from([False, False, False, True]), max_size=60),
    st.booleans(),
    st.integers(0, 8),
)
def test_every_life_ends_with_all_batches_in_the_right_vehicle(
    starts: bool, flags: list[bool], crashes: list[bool], merges: bool, silent: int
) -> None:
    flags[-1] = False  # a source leaves backlog at its end at the latest
    life = Life(starts, flags, crashes, merges, silent)
    life.live()
    assert life.committed == len(life.flags) - 1
    assert sorted(life.planned_in) == list(range(len(life.flags)))
    for batch, run in life.planned_in.items():
        if run.vehicle is STREAM and life.in_backlog_after(batch - 1) and merges:
            assert batch in life.seed_batches, "a batch of backlog ran as stream"
