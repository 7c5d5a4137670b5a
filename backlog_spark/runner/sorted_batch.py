"""Evaluates the tree of a keyed query over one backlog batch, inside ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from backlog_spark.model.nodes import (
    KeyedNode,
    Node,
    PairNode,
    TransformNode,
)
from backlog_spark.operators.fold import EmittingFold, Fold
from backlog_spark.operators.sides import tagged
from backlog_spark.operators.waiting_fold import Gathered, StayEnd, WaitingFold
from backlog_spark.spark.plan.batch_frames import bytes_of, empty_frame
from backlog_spark.spark.plan.plan_builder import RawRows, last_keyed, put_after, union_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BatchFolds"]

# Largest version, in bytes, whose files are published without a rewrite. A rewrite costs a Spark job. Moving files
# on an object store copies them one after the other.
_LARGEST_MOVED = 64 << 20


class BatchFolds:
    """Evaluates the tree over one backlog batch, inside ``foreachBatch``.

    Parameters
    ----------
    folds : dict
        The operators' folds, from `Plans`.
    raw : RawRows
        From `Plans`.
    sample : callable
        Some raw rows of the batch, read separately; None if that is expensive.
    fold : callable
        Folds rows into an operator's batch state and returns the new version. Takes a sample of the rows, or None.
    gather : callable
        In a stay's last batch: the gathered rows of a waiting operator, executed. None if a version is to be written.
    end : callable
        The end of the stay if this is its last batch, else None. Called after the batch has been executed.
    collects : bool
        Whether all results are emitted in the stay's last batch, and none before.
    is_last : bool
        Whether this is known to be the last batch.
    """

    def __init__(
        self,
        folds: dict[str, Fold],
        raw: RawRows,
        sample: Callable[[], DataFrame | None],
        fold: Callable[[str, Fold, DataFrame, Callable[[], DataFrame | None]], DataFrame],
        gather: Callable[[str, WaitingFold, DataFrame], Gathered | None],
        end: Callable[[], StayEnd | None],
        *,
        collects: bool = False,
        is_last: bool = False,
    ) -> None:
        self._folds = folds
        self._raw = raw
        self._sample = sample
        self._fold = fold
        self._gather = gather
        self._end = end
        self._collects = collects
        self._holds = collects and not is_last
        self.handed_over: dict[str, Callable[[], DataFrame]] = {}
        """State that waiting operators hand over. It is saved after the results have been written. Operators whose
        version is handed over unchanged are missing. State and results come from the same rows, or from rows that a
        replay gives again."""

    def run(self, root: Node, batch: DataFrame) -> tuple[DataFrame, dict[str, DataFrame]]:
        """The output of the tree for a batch of `Plans.backlog`, and the last keyed operator's side outputs."""
        last = last_keyed(root)
        assert last is not None
        out, sides = self._results(last, batch)
        return put_after(root, last, out), sides

    def _results(self, node: KeyedNode, batch: DataFrame) -> tuple[DataFrame, dict[str, DataFrame]]:
        """An operator's output and its side outputs."""
        fold, rows = self._folds[node.name], self._rows(node.parent, batch)
        if self._holds and not _takes_raw_rows(node.parent):
            # This operator gets all its rows at once, in the last batch.
            return self._output(node.name, empty_frame(batch.sparkSession, fold.version_schema())), {}
        gathered = None
        if isinstance(fold, WaitingFold) and self._is_repeatable(node):
            gathered = self._gather(node.name, fold, rows)
        if gathered is None:
            version = self._fold(node.name, fold, rows, partial(self._sample_for, node))
            out = self._output(node.name, version)
        else:
            end = self._end()
            assert end is not None, "this is the stay's last batch"
            self.handed_over[node.name] = partial(gathered.left, gathered.rows, end)
            out = gathered.output(gathered, end)
            version = empty_frame(batch.sparkSession, fold.version_schema())
        return out, {name: fold.side_output_of(version, name) for name in fold.side_outputs}

    def _sample_for(self, node: KeyedNode) -> DataFrame | None:
        sample = None if node.parent.is_keyed else self._sample()
        return None if sample is None else self._raw.of(node.parent, sample)

    def _is_repeatable(self, node: KeyedNode) -> bool:
        """Whether a replay gives an operator the same rows.

        If not, the state saved before a crash and the results written after it could come from different rows. The
        results of an operator in front, perhaps of a user's function, are saved only if they are its version.
        """
        in_front = [self._folds[each.name] for each in node.parent.walk() if isinstance(each, KeyedNode)]
        others = (fold for fold in in_front if isinstance(fold, WaitingFold) and not fold.hands_over_version)
        return self._raw.are_repeatable and not any(others)

    def _rows(self, node: Node, batch: DataFrame) -> DataFrame:
        if not node.is_keyed:
            return self._raw.of(node, batch)
        if isinstance(node, KeyedNode):
            return self._results(node, batch)[0]
        if isinstance(node, TransformNode):
            return node.apply(self._rows(node.parent, batch))
        assert isinstance(node, PairNode), "unions and watermarks after a keyed operator are refused"
        left, right = self._rows(node.left, batch), self._rows(node.right, batch)
        return union_of(tagged(left, right, self._raw.pairs[id(node)]))

    def _output(self, name: str, version: DataFrame) -> DataFrame:
        fold = self._folds[name]
        if isinstance(fold, EmittingFold):
            if not self._collects:
                return fold.output_of(version)
            return fold.output_of_stay(version.where("false") if self._holds else version)
        assert isinstance(fold, WaitingFold)
        end = self._end()
        if end is None:
            return fold.output_at_end(version.where("false"), StayEnd(None))
        if not fold.hands_over_version or (size := bytes_of(version)) is None or size > _LARGEST_MOVED:
            self.handed_over[name] = partial(fold.handed_over, version, end)
        return fold.output_at_end(version, end)


def _takes_raw_rows(node: Node) -> bool:
    """Whether an operator over this node takes rows that no other operator has processed."""
    if not node.is_keyed:
        return True
    return not isinstance(node, KeyedNode) and any(map(_takes_raw_rows, node.parents))
