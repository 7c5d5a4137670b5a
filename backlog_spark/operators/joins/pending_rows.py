"""Lets a join stop between any two pairs and continue in the next batch (FLIP-443, "Future work").

New rows are joined batch by batch, the rows of a batch in a fixed order. Rows that were not reached stay in the state.
For an interrupted row the state also has the number of matches that were emitted. No other row of its key is joined
before it is done, so it finds the same matches in the same order in every batch.

Users see it as ``interruptible=True`` of `join` and `interval_join`. Without it a key with many matches would delay a
commit until all its pairs are emitted.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.operators.multiset import ROW, SIGN_OF
from backlog_spark.operators.rows import SIDE_OF, RowsFold
from backlog_spark.state.keys import equal_runs
from backlog_spark.state.tables import HASH, combine

__all__ = ["DONE", "TURN", "JoinsInTurn", "advance_in_turn", "in_one_order", "matches_before", "rows_of_key"]

TURN: Final = "turn"
"""Column of state: the turn of a row that has not been joined yet; NULL for other rows."""
DONE: Final = "done"
"""Column of state, for the row whose turn it is: the number of its matches that were emitted."""


class JoinsInTurn(Protocol):
    """The interface of a join to the queue. All tables are rows of its state; settled rows have been joined."""

    rows_a_pair: int
    """The largest number of output rows per pair."""

    def in_one_order(self, fresh: pa.RecordBatch) -> pa.RecordBatch:
        """New rows of a batch, in an order that does not depend on their arrival."""

    def most_matches(self, settled: pa.RecordBatch, work: pa.RecordBatch) -> np.ndarray:
        """The largest number of matches of each of the first rows of ``work``, among settled rows and rows before it.
        The result may be for fewer rows than ``work`` has, but for at least one."""

    def meets(self, settled: pa.RecordBatch, row: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the rows that are needed to join a row: rows that decide on the output, and the row's matches.

        Always the same rows in the same order, until the row is settled.
        """

    def worked(self, settled: pa.RecordBatch, work: pa.RecordBatch) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        """The settled rows after more rows, and the output."""

    def settled(self, settled: pa.RecordBatch, work: pa.RecordBatch) -> pa.RecordBatch:
        """The settled rows after more rows, if all their output has been emitted."""


def advance_in_turn(
    fold: JoinsInTurn, kept: pa.RecordBatch, fresh: pa.RecordBatch, budget: int | None
) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
    """Like `RowsFold.advance`, with about ``budget`` rows of output at most; None: no limit."""
    waits = kept.column(TURN).is_valid()
    settled, queue = kept.filter(pc.invert(waits)), kept.filter(waits)
    started = pc.greater(queue.column(DONE), 0)
    begun, queue = (
        rows.take(pc.array_sort_indices(rows.column(TURN)))
        for rows in (queue.filter(started), queue.filter(pc.invert(started)))
    )
    work = _without_turns(combine([queue, fold.in_one_order(fresh)], kept.schema))
    joining = _Joining(fold, settled, np.iinfo(np.int64).max if budget is None else budget)
    # An interrupted row continues first. There may be several: not all keys of a group are loaded each time.
    cut = []
    for number, before in enumerate(begun.column(DONE).to_pylist()):
        row = _without_turns(begun.slice(number, 1))
        done = joining.one(row, before)
        if done is not None:
            cut.append((row, done))
    while work.num_rows and joining.left > 0:
        count = joining.several(work)
        if not count:
            row, count = work.slice(0, 1), 1
            done = joining.one(row, 0)
            if done is not None:
                cut.append((row, done))
        work = work.slice(count)
    rest = [*(row for row, _ in cut), work]
    turned = _with_turns(combine(rest, kept.schema), [done for _, done in cut])
    return combine([joining.settled, turned], kept.schema), joining.out


class _Joining:
    """The rows that have been joined in a batch, and the remaining budget."""

    def __init__(self, fold: JoinsInTurn, settled: pa.RecordBatch, left: int) -> None:
        self._fold = fold
        self.settled = settled
        self.left = left
        self.out: list[pa.RecordBatch] = []

    def several(self, work: pa.RecordBatch) -> int:
        """Join the first rows, as many as fit the budget completely. Returns their number."""
        most = self._fold.rows_a_pair * self._fold.most_matches(self.settled, work) + 1
        count = int(np.searchsorted(np.cumsum(most), self.left, "right"))
        if count:
            self.settled, more = self._fold.worked(self.settled, work.slice(0, count))
            self._emit(more)
        return count

    def one(self, row: pa.RecordBatch, done: int) -> int | None:
        """Join a row of which ``done`` matches were emitted. Returns how many are emitted then; None if all are."""
        mine, others = self._fold.meets(self.settled, row)
        while self.left > 0 and done < len(others):
            some = others[done : done + max(1, self.left // self._fold.rows_a_pair)]
            _, more = self._fold.worked(self.settled.take(pa.array(np.concatenate([mine, some]))), row)
            self._emit(more)
            done += len(some)
        if done < len(others):
            return done
        self.settled = self._fold.settled(self.settled, row)
        return None

    def _emit(self, rows: list[pa.RecordBatch]) -> None:
        self.out += rows
        self.left -= sum(piece.num_rows for piece in rows)


def in_one_order(fresh: pa.RecordBatch) -> pa.RecordBatch:
    """New rows of a batch without rows that it retracts itself, in an order that does not depend on their arrival.

    A repeated batch must stop at the same pair. For joins whose rows have `backlog_spark.operators.multiset.OWN`.
    """
    if not fresh.num_rows:
        return fresh
    sign = fresh.column(SIGN_OF).to_numpy()
    numbers = [fresh.column(name).to_numpy() for name in (HASH, SIDE_OF, ROW)]
    # Equal rows together, retracting ones first.
    order = np.lexsort((sign, *reversed(numbers)))
    differs = np.zeros(len(order), dtype=bool)
    differs[0] = True
    for column in numbers:
        differs[1:] |= np.diff(column[order]) != 0
    starts, of = np.flatnonzero(differs), np.cumsum(differs) - 1
    net = np.add.reduceat(sign[order], starts)[of]
    gone = np.add.reduceat((sign[order] < 0).astype(np.int64), starts)[of]
    rank = np.arange(len(order)) - starts[of] - np.where(sign[order] > 0, gone, 0)
    chosen = order[(sign[order] * net > 0) & (rank < np.abs(net))]
    return fresh.take(pa.array(chosen[np.argsort(sign[chosen], kind="stable")]))


def _without_turns(rows: pa.RecordBatch) -> pa.RecordBatch:
    nothing = pa.nulls(rows.num_rows, pa.int64())
    return _with(rows, nothing, nothing)


def _with_turns(rows: pa.RecordBatch, done: list[int]) -> pa.RecordBatch:
    """Waiting rows in their order. The first ones have been started."""
    begun = pa.array(done + [0] * (rows.num_rows - len(done)), pa.int64())
    return _with(rows, pa.array(range(rows.num_rows), pa.int64()), begun)


def _with(rows: pa.RecordBatch, turns: pa.Array, done: pa.Array) -> pa.RecordBatch:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | {TURN: turns, DONE: done}
    return pa.RecordBatch.from_arrays([columns[name] for name in rows.schema.names], schema=rows.schema)


def matches_before(fold: RowsFold, settled: pa.RecordBatch, work: pa.RecordBatch) -> np.ndarray:
    """For each row the number of rows with its key on the other side, counting only rows before it."""
    rows = combine([settled, work], settled.schema)
    keyed, side = fold.keyed(rows), rows.column(SIDE_OF).to_numpy()
    hashes = rows.column(HASH).to_numpy()
    chosen = np.flatnonzero(keyed & np.isin(hashes, work.column(HASH).to_numpy()))
    order, starts = equal_runs(hashes[chosen], [rows.column(k).take(chosen) for k in fold.state.key_names])
    if not len(chosen):
        return np.zeros(work.num_rows, dtype=np.int64)
    # Sorted by key, and within a key by index: for each row the number of earlier rows of the other side.
    of = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(chosen))))
    by_index = np.lexsort((chosen[order], of))
    index, key = chosen[order][by_index], of[by_index]
    found = np.zeros(rows.num_rows, dtype=np.int64)
    first = np.searchsorted(key, np.arange(len(starts)))
    for mine in (0, 1):
        is_other = (side[index] != mine).astype(np.int64)
        before = np.cumsum(is_other) - is_other
        before -= before[first][key]
        found[index] = np.where(side[index] == mine, before, found[index])
    return found[settled.num_rows :]


def rows_of_key(fold: RowsFold, settled: pa.RecordBatch, row: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rows with a row's key: on its own side, and on the other side."""
    if not fold.keyed(row)[0]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    near = np.flatnonzero(settled.column(HASH).to_numpy() == row.column(HASH)[0].as_py())
    both = combine([row, settled.take(pa.array(near))], settled.schema)
    order, starts = equal_runs(both.column(HASH).to_numpy(), [both.column(k) for k in fold.state.key_names])
    runs = np.split(order, starts[1:])
    same = near[np.sort(next(run for run in runs if 0 in run)[1:] - 1)]
    is_mine = settled.column(SIDE_OF).to_numpy()[same] == row.column(SIDE_OF)[0].as_py()
    return same[is_mine], same[~is_mine]
