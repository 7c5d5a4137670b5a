"""The next run, for any content of the checkpoint."""

from __future__ import annotations

import itertools

import pytest

from backlog_spark.decide.ledger import Ledger, Run, Vehicle
from backlog_spark.errors import BacklogError, SettingError

SORTED, STREAM = Vehicle.SORTED, Vehicle.STREAM
STATE = {"meaning": "by id bigint", "slots": ["sum(v) 0: bigint"]}
OPERATORS = (("totals", STATE),)


def ledger(*runs: Run, published: int = -1) -> Ledger:
    return Ledger(128, 4, OPERATORS, runs, published)


@pytest.mark.parametrize(
    ("before", "planned", "committed", "in_backlog", "run"),
    [
        # nothing yet
        (ledger(), None, None, True, Run(0, SORTED, 0)),
        (ledger(), None, None, False, Run(0, STREAM)),
        # recorded, but killed before the first batch was planned
        (ledger(Run(0, SORTED, 0)), None, None, True, Run(0, SORTED, 0)),
        # killed in a batch of backlog: replayed as it was planned, also when it is the one that ended the backlog
        (ledger(Run(0, SORTED, 0)), 0, None, True, Run(0, SORTED, 0)),
        (ledger(Run(0, SORTED, 0)), 0, None, False, Run(0, SORTED, 0)),
        (ledger(Run(0, SORTED, 0)), 3, 2, False, Run(3, SORTED, 0)),
        # between two batches of one stay
        (ledger(Run(0, SORTED, 0)), 2, 2, True, Run(3, SORTED, 0)),
        # the stay is over, published or not yet
        (ledger(Run(0, SORTED, 0)), 2, 2, False, Run(3, STREAM)),
        (ledger(Run(0, SORTED, 0), published=0), 2, 2, False, Run(3, STREAM)),
        # in the stream
        (ledger(Run(0, SORTED, 0), Run(3, STREAM), published=0), 5, 4, False, Run(5, STREAM)),
        (ledger(Run(0, SORTED, 0), Run(3, STREAM), published=0), 4, 4, False, Run(5, STREAM)),
        # backlog again: another stay, but first what the stream had planned
        (ledger(Run(0, SORTED, 0), Run(3, STREAM), published=0), 4, 4, True, Run(5, SORTED, 1)),
        (ledger(Run(0, SORTED, 0), Run(3, STREAM), published=0), 5, 4, True, Run(5, STREAM)),
        # no stay before, but a state: that is what epoch 0 would not have
        (ledger(Run(0, STREAM)), 4, 4, True, Run(5, SORTED, 1)),
        # a stay that planned nothing was forgotten with its run; its number is not given again
        (ledger(Run(0, STREAM), published=1), 4, 4, True, Run(5, SORTED, 2)),
        (ledger(published=0), None, None, True, Run(0, SORTED, 1)),
    ],
)
def test_next_run(before: Ledger, planned: int | None, committed: int | None, in_backlog: bool, run: Run) -> None:
    assert before.next_run(planned, committed, in_backlog=in_backlog) == run


def test_a_batch_that_no_run_planned_is_refused() -> None:
    with pytest.raises(BacklogError, match=r"how batch 2 was planned.*Restore"):
        ledger(Run(3, STREAM)).next_run(2, 1, in_backlog=False)


def test_unpublished() -> None:
    assert not ledger().unpublished
    assert ledger(Run(0, SORTED, 0)).unpublished
    assert not ledger(Run(0, SORTED, 0)).publish(0).unpublished
    assert ledger(Run(0, SORTED, 0), Run(3, STREAM), Run(7, SORTED, 1), published=0).unpublished


def test_a_publication_that_was_begun_is_known() -> None:
    begun = ledger(Run(0, SORTED, 0)).begin_publication(0)
    assert (begun.publishing, begun.published, begun.unpublished) == (0, -1, True)
    assert Ledger.from_json(begun.to_json()) == begun
    assert (begun.publish(0).publishing, begun.publish(0).unpublished) == (0, False)


def test_a_run_that_goes_on_is_not_written_again_and_one_without_a_batch_is_forgotten() -> None:
    start = ledger(Run(0, SORTED, 0))
    assert start.begin(Run(2, SORTED, 0)).runs == (Run(0, SORTED, 0),)
    assert start.begin(Run(3, STREAM)).runs == (Run(0, SORTED, 0), Run(3, STREAM))
    assert start.begin(Run(3, STREAM)).begin(Run(3, SORTED, 1)).runs == (Run(0, SORTED, 0), Run(3, SORTED, 1))
    assert start.begin(Run(0, STREAM)).runs == (Run(0, STREAM),)


def test_many_stays_and_restarts_never_lose_how_a_batch_was_planned() -> None:
    """Every path of: go on, switch, restart in mid-batch; the newest planned batch always has its run."""
    for steps in itertools.product((True, False), repeat=9):
        book, committed = ledger(), None
        for in_backlog in steps:
            run = book.next_run(committed, committed, in_backlog=in_backlog)
            if run.vehicle is STREAM and book.unpublished:
                book = book.publish(book.last_epoch)
            book = Ledger.from_json(book.begin(run).to_json())
            planned = 0 if committed is None else committed + 1
            # killed in the batch: whatever the flag says then, the same vehicle and epoch
            for flag in (True, False):
                replay = book.next_run(planned, committed, in_backlog=flag)
                assert (replay.vehicle, replay.epoch) == (run.vehicle, run.epoch)
            committed = planned
        epochs = [r.epoch for r in book.runs if r.vehicle is SORTED]
        assert epochs == sorted(set(epochs))
        assert (0 in epochs) == steps[0], "epoch 0 is the one without a state before it"


def test_what_is_pinned() -> None:
    book = ledger()
    book.check(128, OPERATORS)
    with pytest.raises(SettingError, match="keyGroups"):
        book.check(64, OPERATORS)
    with pytest.raises(BacklogError, match="operators are counts, those of its checkpoint totals"):
        book.check(128, (("counts", OPERATORS[0][1]),))
    with pytest.raises(BacklogError, match="'totals' is now by name string; in the checkpoint it is by id bigint"):
        book.check(128, (("totals", {**STATE, "meaning": "by name string"}),))
    for slots in ([], ["sum(v) 0: double"], ["count(*) 0: bigint", *STATE["slots"]]):
        with pytest.raises(BacklogError, match=r"'totals' is now .*; in the checkpoint it is \(sum\(v\) 0: bigint\)"):
            book.check(128, (("totals", {**STATE, "slots": slots}),))


def test_state_may_be_added_at_the_end() -> None:
    more = {**STATE, "slots": [*STATE["slots"], "count(*) 0: bigint"]}
    book = Ledger.from_json(ledger().check(128, (("totals", more),)).to_json())
    assert book.operators == (("totals", more),)
    with pytest.raises(BacklogError, match="nothing can be removed"):
        book.check(128, OPERATORS)
    # Unless rows from before can be taken back from it.
    with pytest.raises(BacklogError, match=r"Nothing can be added to it either.* Put it back"):
        ledger().check(128, (("totals", {**more, "grows": False}),))
    assert ledger().check(128, (("totals", {**STATE, "grows": False}),))


def test_a_state_that_cannot_be_merged_has_one_stay() -> None:
    first = ledger().next_run(None, None, in_backlog=True, mergeable=False)
    assert first == Run(0, SORTED, 0)
    later = ledger(Run(0, SORTED, 0), Run(3, STREAM), published=0)
    assert later.next_run(4, 4, in_backlog=True, mergeable=False) == Run(5, STREAM)
    assert ledger(Run(0, SORTED, 0)).next_run(2, 2, in_backlog=True, mergeable=False) == Run(3, SORTED, 0)


def test_another_version_is_refused() -> None:
    for version in (1, 2, None):
        with pytest.raises(BacklogError, match=f"version {version}"):
            Ledger.from_json({**ledger().to_json(), "version": version})


def test_an_older_checkpoint_continues_in_pandas() -> None:
    told = ledger().to_json()
    assert not Ledger.from_json(told).in_pandas
    del told["inPandas"]
    assert Ledger.from_json(told).in_pandas
