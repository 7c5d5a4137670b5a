"""What a query does next: the proposals' rules as truth tables, then random runs that crash between any two steps.

Random runs use `Ledger` and a log of planned and committed batches like Spark's. Spark does not run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.decide.ledger import Ledger, Run, Vehicle
from backlog_spark.decide.next_step import (
    AVAILABLE_NOW,
    BatchEnd,
    Boundary,
    Facts,
    Seen,
    Step,
    Then,
    after_report,
    after_run,
    at_batch_end,
    ends_stay,
    next_step,
)

SORTED, STREAM = Vehicle.SORTED, Vehicle.STREAM
MIXED = Facts(1_000, 0, is_keyed=True)
LIVE = Step(Run(1, STREAM), 0)
IN_ROUND = Step(Run(0, SORTED, 0), AVAILABLE_NOW, "backlogEnd")


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
    assert next_step(Facts(1_000, 0, False), Seen(in_backlog=True), None).trigger_ms == 0
    assert next_step(Facts(1_000, None, False), Seen(in_backlog=True), None).trigger_ms == 1_000
    assert next_step(Facts(1_000, None, False, available_now=True), Seen(), None).trigger_ms is AVAILABLE_NOW


def test_a_first_start_in_backlog_is_sorted_to_its_end() -> None:
    step = next_step(MIXED, Seen(in_backlog=True), None)
    assert (step.run, step.trigger_ms, step.target) == (Run(0, SORTED, 0), AVAILABLE_NOW, "backlogEnd")
    assert step.ends_by_itself
    assert next_step(MIXED, Seen(rule_holds=True), None).run == Run(0, SORTED, 0)


def test_a_first_start_without_backlog_is_stream() -> None:
    step = next_step(MIXED, Seen(), None)
    assert (step.run, step.trigger_ms, step.target, step.ends_by_itself) == (Run(0, STREAM), 0, None, False)


ONE_STAY = Ledger(4, 2, (), (Run(0, SORTED, 0), Run(3, STREAM)), published=0, publishing=0)


def test_a_later_backlog_is_sorted_where_state_merges() -> None:
    seen = Seen(planned=5, committed=5, in_backlog=True)
    assert next_step(MIXED, seen, ONE_STAY).run == Run(6, SORTED, 1)
    step = next_step(MIXED, replace(seen, merges=False), ONE_STAY)
    assert (step.run, step.trigger_ms, step.ends_by_itself) == (Run(6, STREAM), 0, False)


def test_a_planned_batch_is_replayed_as_it_was_planned() -> None:
    first = next_step(MIXED, Seen(planned=2, committed=1, in_backlog=False), ONE_STAY)
    assert (first.run, first.target) == (Run(2, SORTED, 0), "backlogEnd")
    later = next_step(MIXED, Seen(planned=5, committed=4, in_backlog=True), ONE_STAY)
    assert (later.run, later.target, later.replays_only) == (Run(5, STREAM), "none", True)


@pytest.mark.parametrize("book", [ONE_STAY, replace(ONE_STAY, publishing=1)])
def test_state_that_was_handed_over_comes_before_a_new_stay(book: Ledger) -> None:
    seen = Seen(planned=2, committed=2, in_backlog=True, has_unread_seeds=book is ONE_STAY)
    step = next_step(MIXED, seen, book)
    assert (step.run, step.target, step.takes_state_first) == (Run(3, STREAM), "none", True)


def test_a_query_whose_sources_have_ended_does_what_is_left() -> None:
    step = next_step(MIXED, Seen(planned=5, committed=5, finished=(True, True)), ONE_STAY)
    assert (step.finishes, step.trigger_ms, step.target) == (True, AVAILABLE_NOW, None)
    assert not next_step(MIXED, Seen(finished=(True, False)), ONE_STAY).finishes
    beside_frames = replace(MIXED, has_frames=True)
    assert not next_step(beside_frames, Seen(finished=(True, True)), ONE_STAY).finishes


# -- in a run ------------------------------------------------------------------------------------------------


def test_a_stream_run_ends_where_backlog_begins() -> None:
    assert at_batch_end(MIXED, LIVE, BatchEnd(in_backlog=True)) == Boundary(True)
    assert at_batch_end(MIXED, LIVE, BatchEnd(in_backlog=False)) == Boundary(False)
    assert at_batch_end(MIXED, LIVE, BatchEnd(in_backlog=True, merges=False)) == Boundary(False)
    off = Facts(1_000, None, is_keyed=True)
    assert at_batch_end(off, replace(LIVE, trigger_ms=1_000), BatchEnd(in_backlog=True)) == Boundary(False, 1_000)


def test_a_sorted_run_ends_by_itself_but_for_streaming_frames() -> None:
    assert at_batch_end(MIXED, IN_ROUND, BatchEnd(in_backlog=False, ends_stay=True)) == Boundary(False)
    beside_frames = replace(MIXED, has_frames=True, has_rules=True)
    assert at_batch_end(beside_frames, IN_ROUND, BatchEnd(in_backlog=False, ends_stay=True)) == Boundary(True)


def test_what_timers_left_over_follows_at_once() -> None:
    ticking = Step(Run(1, STREAM), 1_000)
    beside_frames = replace(MIXED, has_frames=True)
    assert at_batch_end(beside_frames, ticking, BatchEnd(False, is_firing=True)).wait_ms == 0
    assert at_batch_end(beside_frames, ticking, BatchEnd(False)).wait_ms == 1_000


def test_when_a_stay_is_known_to_end() -> None:
    assert ends_stay(MIXED, in_backlog=False, is_known=False)
    assert not ends_stay(MIXED, in_backlog=True, is_known=False)
    assert ends_stay(MIXED, in_backlog=True, is_known=True)
    assert not ends_stay(replace(MIXED, has_frames=True, has_rules=True), in_backlog=False, is_known=False)


def test_a_report_ends_a_run() -> None:
    def leaves(step: Step = LIVE, **more: object) -> bool:
        given = {"in_backlog": False, "merges": True, "has_running_sources": True, "finished": (False,), **more}
        return after_report(MIXED, step, **given)  # type: ignore[arg-type]

    assert not leaves()
    assert leaves(in_backlog=True)
    assert not leaves(IN_ROUND, in_backlog=True)
    assert leaves(has_running_sources=False, finished=(True,))
    assert not leaves(has_running_sources=False, finished=(False,))  # reported late
    assert not leaves(replace(LIVE, finishes=True), has_running_sources=False, finished=(True,))


# -- after a run ---------------------------------------------------------------------------------------------


def test_what_follows_a_run() -> None:
    assert after_run(MIXED, IN_ROUND, idle=False, left=False) == Then(True)
    assert after_run(MIXED, IN_ROUND, idle=True, left=False) == Then(True, 1_000, is_drained=True)
    assert after_run(replace(MIXED, interval_ms=5_000), IN_ROUND, idle=True, left=False).wait_ms == 5_000
    assert after_run(MIXED, LIVE, idle=False, left=True) == Then(True)
    assert after_run(MIXED, LIVE, idle=False, left=False) == Then(False)
    now = replace(MIXED, available_now=True)
    assert after_run(now, IN_ROUND, idle=True, left=False).is_last_run
    assert next_step(now, Seen(2, 2, in_backlog=True, is_last_run=True), ONE_STAY).run == Run(3, STREAM)


def test_the_end_of_all_input() -> None:
    finishing = replace(LIVE, finishes=True, trigger_ms=AVAILABLE_NOW)
    assert after_run(MIXED, finishing, idle=False, left=False) == Then(False)
    assert after_run(MIXED, finishing, idle=False, left=False, timers_done=False) == Then(True)
    assert after_run(MIXED, finishing, idle=True, left=False, timers_done=False) == Then(False)


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
    """

    starts_in_backlog: bool
    flags: list[bool]
    crashes: list[bool]
    merges: bool
    ledger: Ledger | None = None
    planned: int | None = None
    committed: int | None = None
    planned_in: dict[int, Run] = field(default_factory=dict)
    unread: bool = False
    taken_in: set[int] = field(default_factory=set)
    drained: bool = False
    seed_batches: set[int] = field(default_factory=set)

    def maybe_crash(self) -> None:
        if self.crashes and self.crashes.pop():
            raise Crash

    def in_backlog_after(self, batch: int | None) -> bool:
        return self.starts_in_backlog if batch is None or batch < 0 else self.flags[batch]

    def has_ended(self, batch: int | None) -> bool:
        return batch is not None and batch == len(self.flags) - 1

    def live(self) -> None:
        for _ in range(4 * len(self.flags) + 4 * len(self.crashes) + 20):
            try:
                if self.one_process():
                    return
            except Crash:
                self.drained = False  # only the process knew
        raise AssertionError(f"it does not end: {self}")

    def one_process(self) -> bool:
        then = Then(True)
        for _ in range(3 * len(self.flags) + 20):
            finished = (self.has_ended(self.planned),)
            seen = Seen(
                self.planned, self.committed, self.in_backlog_after(self.planned), finished=finished,
                merges=self.merges, has_unread_seeds=self.unread and not self.drained, is_last_run=then.is_last_run,
            )  # fmt: skip
            step = next_step(MIXED, seen, self.ledger)
            idle, left = self.run(step)
            then = after_run(MIXED, step, idle=idle, left=left)
            if not then.goes_on:
                assert step.finishes
                return True
        raise AssertionError(f"runs without end: {self}")

    def run(self, step: Step) -> tuple[bool, bool]:
        run = step.run
        assert run is not None
        ledger = self.ledger or Ledger(4, 2, ())
        if run.vehicle is STREAM and ledger.unpublished:
            epoch = ledger.last_epoch
            self.ledger = ledger = ledger.begin_publication(epoch)
            self.maybe_crash()
            self.unread, self.drained = True, False
            self.maybe_crash()
            self.ledger = ledger = ledger.publish(epoch)
            self.maybe_crash()
        self.drained = self.drained or step.takes_state_first
        self.ledger = ledger = ledger.begin(run)
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
            else:
                assert self.in_backlog_after(batch - 1), "a sorted batch outside of backlog"
                handed_over = {ledger.published} - {-1}
                assert self.taken_in >= handed_over, "a stay began on a state that lacks another"
            self.maybe_crash()
            boundary = at_batch_end(MIXED, step, BatchEnd(self.in_backlog_after(batch), merges=self.merges))
            self.committed, idle = batch, False
            if run.vehicle is STREAM and self.taken_in >= {ledger.published} and batch > run.first_batch:
                self.unread = False  # removed when the batch after it runs
            self.maybe_crash()
            if boundary.leaves:
                return idle, True
            if after_report(
                MIXED, step, in_backlog=self.in_backlog_after(batch), merges=self.merges,
                has_running_sources=not self.has_ended(batch), finished=(self.has_ended(batch),),
            ):  # fmt: skip
                return idle, True


@given(
    st.booleans(),
    st.lists(st.booleans(), min_size=1, max_size=8),
    st.lists(st.sampled_from([False, False, False, True]), max_size=60),
    st.booleans(),
)
def test_every_life_ends_with_all_batches_in_the_right_vehicle(
    starts: bool, flags: list[bool], crashes: list[bool], merges: bool
) -> None:
    flags[-1] = False  # a source leaves backlog at its end at the latest
    life = Life(starts, flags, crashes, merges)
    life.live()
    assert life.committed == len(life.flags) - 1
    assert sorted(life.planned_in) == list(range(len(life.flags)))
    for batch, run in life.planned_in.items():
        if run.vehicle is STREAM and life.in_backlog_after(batch - 1) and merges:
            assert batch in life.seed_batches, "a batch of backlog ran as stream"
