"""Folds that wait: they emit nothing before a stay in backlog ends, as joins and windows do."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backlog_spark.operators.fold import Fold

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

__all__ = ["Gathered", "StayEnd", "WaitingFold"]


@dataclass(frozen=True)
class StayEnd:
    """The end of a stay in backlog: its last batch has been folded, and all results are due.

    Parameters
    ----------
    watermark : int or None
        The greatest watermark of the stay, in milliseconds since 1970; None if the inputs had none.
    """

    watermark: int | None


@dataclass(frozen=True)
class Gathered:
    """All rows of a stay, in its last batch, before they are shuffled; with the functions to apply afterwards.

    The caller shuffles `rows` once, by `by`. From the shuffled rows `left` makes the state that is handed over, and
    `output` the results. So no version is written that both would read again.

    Parameters
    ----------
    rows : DataFrame
        The rows of the batch, united with those of the last version.
    by : tuple of str
        The columns to shuffle by.
    left : callable
        (shuffled rows, end of the stay) -> rows of state, as `WaitingFold.handed_over` returns them.
    output : callable
        (this object with shuffled `rows`, end of the stay) -> results, as `WaitingFold.output_at_end` returns them.
    sides : str, optional
        A column that is 0 or 1: the rows of the two sides are joined by the columns `by`. None: there is no join.
    sizes : (int, int), optional
        Bytes of the largest partition of each side after the shuffle, as estimated; None if unknown.
    """

    rows: DataFrame
    by: tuple[str, ...]
    left: Callable[[DataFrame, StayEnd], DataFrame]
    output: Callable[[Gathered, StayEnd], DataFrame]
    sides: str | None = None
    sizes: tuple[int, int] | None = None


class WaitingFold(Fold):
    """A fold that emits nothing before the end of a stay in backlog, and then all results of the stay at once."""

    hands_over_version = False
    """Whether the version contains the output, and `handed_over` only selects rows. Selecting twice must give the same
    rows. Then stream mode may read the version and select by itself."""

    @abstractmethod
    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        """The output of the stay, from the version of its last batch."""

    def gathered(self, rows: DataFrame, base: DataFrame | None) -> Gathered | None:
        """Replaces `fold` in a stay's last batch: saves writing a version whose rows are read again at once.

        None, the default: use `fold`.

        Parameters
        ----------
        rows, base
            As for `fold`.
        """
        return None

    @abstractmethod
    def handed_over(self, version: DataFrame, end: StayEnd | None) -> DataFrame:
        """Rows of state for the stream vehicle: hash, keys, accumulators.

        Parameters
        ----------
        version : DataFrame
            The version of the stay's last batch.
        end : StayEnd, optional
            The argument of the call of `output_at_end`. None if it was not called, and everything is still to be
            emitted.
        """
