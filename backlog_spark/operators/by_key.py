"""Operators that also work key by key in backlog: at the end of the stay, many keys at a time.

All rows of a key, or of several keys with the same hash, must fit into a worker's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.operators.narrow import Narrow
from backlog_spark.operators.rows import RowsFold
from backlog_spark.operators.waiting_fold import Gathered, StayEnd
from backlog_spark.operators.whole_keys import AdvanceKeys
from backlog_spark.state.tables import HASH, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ByKeyFold"]


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
