"""Short names for declared aggregates of a grouped stream."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

from backlog_spark.api.rows import Stream
from backlog_spark.common import sql_names
from backlog_spark.common.familiar_names import Guided
from backlog_spark.model.changes import METADATA, is_change_stream
from backlog_spark.operators.sides import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from backlog_spark.operators.aggregates.aggregate import Aggregate

__all__ = ["Aggregations"]

_WHOLE_ROW = "__backlog_row"


def _flat_row(keys: int, frame: DataFrame) -> DataFrame:
    """Replace the struct of a chosen row by its columns. The keys are there already.

    Columns about the row's own change are dropped: they would order results wrongly.
    """
    from pyspark.sql import functions as F

    before = [name for name in frame.columns if name != _WHOLE_ROW]
    row: StructType = frame.schema[_WHOLE_ROW].dataType  # type: ignore[assignment]
    metadata = METADATA if is_change_stream(row, before[:keys]) else ()
    rest = [name for name in row.names if name not in before and name not in metadata]
    return frame.select(*map(quoted, before), *(F.col(_WHOLE_ROW).getField(n).alias(n) for n in rest))


class Aggregations(Guided, ABC, Generic[Stream]):
    """Short names for declared aggregates of a grouped stream."""

    _keys: tuple[str, ...]

    @abstractmethod
    def aggregate(self, *aggregates: Aggregate | str, name: str = "") -> Stream:
        """Declared aggregates."""

    def count(self) -> Stream:
        """Number of rows of each key, or of each of its windows, as ``count``."""
        return self.aggregate("count(*) AS count")

    def sum(self, column: str) -> Stream:
        """Sum of a column, under the column's name, as in PyFlink."""
        return self._one("sum", column)

    def min(self, column: str) -> Stream:
        """Smallest value of a column, under the column's name."""
        return self._one("min", column)

    def max(self, column: str) -> Stream:
        """Greatest value of a column, under the column's name."""
        return self._one("max", column)

    def min_by(self, column: str, *, last: bool = False) -> Stream:
        """The row with the smallest value of a column: the keys, then the row's other columns.

        Parameters
        ----------
        column : str
        last : bool
            Among rows with equal values take the last; default the first. The order is the one given to `key_by`.
            Without one the other columns decide.
        """
        return self._row("min_by", column, last)

    def max_by(self, column: str, *, last: bool = False) -> Stream:
        """The row with the greatest value of a column; see `min_by`."""
        return self._row("max_by", column, last)

    def _row(self, function: str, column: str, last: bool) -> Stream:
        from backlog_spark.operators.aggregates import MaxBy, MinBy

        pick = MinBy if function == "min_by" else MaxBy
        name = "_".join([*self._keys, function, column])
        picked: Any = self.aggregate(pick("*", column, name=_WHOLE_ROW, last=last), name=name)
        made: Stream = picked.transform(functools.partial(_flat_row, len(self._keys)))
        return made

    def _one(self, function: str, column: str) -> Stream:
        name = sql_names.quoted(column)
        return self.aggregate(f"{function}({name}) AS {name}", name="_".join([*self._keys, function, column]))
