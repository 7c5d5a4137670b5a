"""A join that may stop between any two pairs and go on in the next batch (FLIP-443, "Future work").

New rows are worked on in the order in which they came. Those whose turn does not come in a batch stay in the state, and
of the first of them it is known how many of its pairs have been put out. Until it is done nothing else is, so the rows
that it matches are the same ones, in the same order, in every batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.operators.rows import SIDE_OF
from backlog_spark.state.keys import equal_runs
from backlog_spark.state.tables import HASH, combine

if TYPE_CHECKING:
    from backlog_spark.operators.join import JoinFold

__all__ = ["DONE", "TURN", "advance_in_turn"]

TURN: Final = "turn"
"""Of state: the place of a row that has not been joined yet; NULL for the others."""
DONE: Final = "done"
"""Of the row whose turn it is: how many of its matches have been put out."""


def advance_in_turn(
    fold: JoinFold, kept: pa.RecordBatch, fresh: pa.RecordBatch, budget: int | None
) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
    """As `RowsFold.advance`, with about ``budget`` rows of output at most; None: all of them."""
    waits = kept.column(TURN).is_valid()
    queue = kept.filter(waits)
    queue = queue.take(pc.array_sort_indices(queue.column(TURN)))
    done = (queue.column(DONE)[0].as_py() or 0) if queue.num_rows else 0
    settled, work = kept.filter(pc.invert(waits)), _without_turns(combine([queue, fresh], kept.schema))
    out: list[pa.RecordBatch] = []
    # With a row of an outer side its match's loss of loneliness is told: two rows for a pair.
    width = 1 + bool(fold.outer)
    left = np.iinfo(np.int64).max if budget is None else budget
    while work.num_rows and left > 0:
        if not done:
            rows = int(np.searchsorted(np.cumsum(width * _matches(fold, settled, work) + 1), left, "right"))
            if rows:
                settled, more = fold.worked(settled, work.slice(0, rows))
                out += more
                left -= sum(piece.num_rows for piece in more)
                work = work.slice(rows)
                continue
        row = work.slice(0, 1)
        mine, others = _of_its_key(fold, settled, row)
        some = others[done : done + max(1, left // width)]
        _, more = fold.worked(settled.take(pa.array(np.concatenate([mine, some]))), row)
        out += more
        left -= sum(piece.num_rows for piece in more)
        done += len(some)
        if done >= len(others):
            settled, work, done = fold.settled(settled, row), work.slice(1), 0
    return combine([settled, _with_turns(work, done)], kept.schema), out


def _without_turns(rows: pa.RecordBatch) -> pa.RecordBatch:
    nothing = pa.nulls(rows.num_rows, pa.int64())
    return _with(rows, nothing, nothing)


def _with_turns(rows: pa.RecordBatch, done: int) -> pa.RecordBatch:
    turns = pa.array(range(rows.num_rows), pa.int64())
    return _with(rows, turns, pa.array([done] * min(1, rows.num_rows) + [0] * (rows.num_rows - 1), pa.int64()))


def _with(rows: pa.RecordBatch, turns: pa.Array, done: pa.Array) -> pa.RecordBatch:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | {TURN: turns, DONE: done}
    return pa.RecordBatch.from_arrays([columns[name] for name in rows.schema.names], schema=rows.schema)


def _matches(fold: JoinFold, settled: pa.RecordBatch, work: pa.RecordBatch) -> np.ndarray:
    """How many rows of the other side each row can meet at most, with those that come before it."""
    rows = combine([settled, work], settled.schema)
    keyed, side = fold.keyed(rows), rows.column(SIDE_OF).to_numpy()
    hashes = rows.column(HASH).to_numpy()
    chosen = np.flatnonzero(keyed & np.isin(hashes, work.column(HASH).to_numpy()))
    order, starts = equal_runs(hashes[chosen], [rows.column(k).take(chosen) for k in fold.state.key_names])
    if not len(chosen):
        return np.zeros(work.num_rows, dtype=np.int64)
    # Within a key in the order of the table: of each row the number of rows of the other side before it.
    of = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(chosen))))
    by_place = np.lexsort((chosen[order], of))
    place, key = chosen[order][by_place], of[by_place]
    found = np.zeros(rows.num_rows, dtype=np.int64)
    first = np.searchsorted(key, np.arange(len(starts)))
    for mine in (0, 1):
        is_other = (side[place] != mine).astype(np.int64)
        before = np.cumsum(is_other) - is_other
        before -= before[first][key]
        found[place] = np.where(side[place] == mine, before, found[place])
    return found[settled.num_rows :]


def _of_its_key(fold: JoinFold, settled: pa.RecordBatch, row: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """Places of the rows of a row's key: of its own side, and of the other one."""
    if not fold.keyed(row)[0]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    same = settled.column(HASH).to_numpy() == row.column(HASH)[0].as_py()
    for name in fold.state.key_names:
        equal = pc.fill_null(pc.equal(settled.column(name), row.column(name)[0]), False)
        same &= equal.to_numpy(zero_copy_only=False)
    is_mine = settled.column(SIDE_OF).to_numpy() == row.column(SIDE_OF)[0].as_py()
    return np.flatnonzero(same & is_mine), np.flatnonzero(same & ~is_mine)
