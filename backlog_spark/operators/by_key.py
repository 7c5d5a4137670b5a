"""Operators that also work key by key in backlog: at the end of the stay, many keys at a time.

All rows of a key, or of several keys with the same hash, must fit into a worker's memory. A key that does not is
refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.common.gc_tuning import collect_rarely, keep_imports
from backlog_spark.model.record_attributes import ALL_BACKLOG
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.operators.fold import Clock
from backlog_spark.operators.key_memory import check_key_fits, naming_largest_key, too_large
from backlog_spark.operators.key_sort import sorted_by_hash
from backlog_spark.operators.narrow import Narrow
from backlog_spark.operators.rows import RowsFold
from backlog_spark.operators.waiting_fold import Gathered, StayEnd
from backlog_spark.state.tables import HASH, arrow_schema, combine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["AdvanceKeys", "ByKeyFold"]


class AdvanceKeys:
    """For ``mapInArrow``: passes rows to `advance`, in order of their hash, whole keys at a time. The hash is first.

    Parameters
    ----------
    fold : RowsFold
    narrow : Narrow
        The form of the input rows.
    end : StayEnd
    output : pyarrow.Schema or None
        Schema of the output. None: return the remaining state instead.
    """

    def __init__(self, fold: RowsFold, narrow: Narrow, end: StayEnd, output: pa.Schema | None) -> None:
        self._fold = fold
        self._narrow = narrow
        self._end = end
        self._output = output
        self._large: tuple[pa.RecordBatch, int, int] | None = None  # the key that is being read into memory
        self._keys = list(fold.state.key_names[: len(fold.keys)])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collect_rarely()
        keep_imports()
        try:
            for piece in sorted_by_hash(batches, check=self._check_fits):
                with naming_largest_key(self._fold.what, self._keys, [piece]):
                    yield from self._advance(piece)
                self._large = None
        except MemoryError as error:
            if self._large is None:
                raise
            raise too_large(self._fold.what, *self._large) from error
        finally:
            self._fold.close()

    def _check_fits(self, row: pa.RecordBatch, rows: int, nbytes: int) -> None:
        self._large = row.select(self._keys), rows, nbytes
        check_key_fits(self._fold.what, *self._large)

    def _advance(self, piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        fold = self._fold
        watermark = MIN_WATERMARK if self._end.watermark is None else self._end.watermark
        clock = Clock(before=MIN_WATERMARK, watermark=watermark, now=None, backlog=ALL_BACKLOG)
        fresh = fold.widened(self._narrow.widened([piece]))
        if self._output is not None:
            _, out = fold.advance(combine([], fresh.schema), fresh, clock)
            yield from (combine([piece], self._output) for piece in out)
            return
        yield fold.left_by(fresh, clock)


class ByKeyFold(RowsFold):
    """A fold whose `advance` makes the results in both vehicles."""

    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        placed = self.placed(version)
        narrow = self.narrow(placed)
        return self._results(narrow.of(placed).repartition(HASH), narrow, end)

    def still_needed(self, placed: DataFrame, end: StayEnd) -> DataFrame:
        """What `advance` leaves."""
        placed = self.still_relevant(placed, end)
        narrow = self.narrow(placed)
        return self._left(narrow.of(placed).repartition(HASH), narrow, end)

    def gathered(self, rows: DataFrame, base: DataFrame | None) -> Gathered | None:
        placed = self.placed(self.fold(rows, base))
        narrow = self.narrow(placed)

        def left(together: DataFrame, end: StayEnd) -> DataFrame:
            return self.as_state(self._left(self.with_hash(self.still_relevant(together, end)), narrow, end))

        def output(found: Gathered, end: StayEnd) -> DataFrame:
            return self._results(self.with_hash(found.rows), narrow, end)

        # The hash depends only on the keys, and is computed again.
        return Gathered(narrow.of(placed).drop(HASH), tuple(self.state.key_names), left, output)

    def still_relevant(self, rows: DataFrame, end: StayEnd) -> DataFrame:
        """Of rows with hash, keys, side and time: those that `advance` may keep. Default: all."""
        return rows

    def finish_results(self, results: DataFrame) -> DataFrame:
        """The output, made from the rows that `advance` emits in the sorted vehicle. Default: the rows themselves."""
        return results

    def _results(self, together: DataFrame, narrow: Narrow, end: StayEnd) -> DataFrame:
        schema = self.output_schema()
        advance = AdvanceKeys(self, narrow, end, arrow_schema(schema))
        return self.finish_results(map_in_arrow(together, advance, schema))

    def _left(self, together: DataFrame, narrow: Narrow, end: StayEnd) -> DataFrame:
        return map_in_arrow(together, AdvanceKeys(self, narrow, end, None), self.state.spark())
