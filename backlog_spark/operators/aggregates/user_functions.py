"""The base class of Python functions for `aggregate`: they collect rows in an accumulator.

Source: PyFlink's ``pyflink.datastream.functions.AggregateFunction``; here accumulator and output are declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from backlog_spark.errors import BacklogError
from backlog_spark.operators.lifecycle import TaskFunction
from backlog_spark.operators.row_types import row_type
from backlog_spark.operators.state_arrays import state_array

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from backlog_spark.operators.aggregates.aggregate import Aggregate

__all__ = ["Accumulators", "AggregateFunction", "only_function"]


class AggregateFunction(TaskFunction):
    """Aggregates many rows to one result with an accumulator; subclass it.

    Rows are added per partition, and then the accumulators are merged, in any order. So every order must give the same
    result, and the result must depend only on the rows. A method may change and return the accumulator that it gets.
    ``close`` is not called.

    Attributes
    ----------
    accumulator : str or DataType
        Spark type of the accumulator. A struct is a named tuple with its names; a map is a dict.
    output : str or StructType
        Columns of the result, for windows and keyed streams. Not needed for `AggregatingState`.

    Examples
    --------
    >>> import backlog_spark as bs
    >>> class Mean(bs.AggregateFunction):
    ...     accumulator = "struct<total: double, rows: long>"
    ...     output = "mean double"
    ...
    ...     def create_accumulator(self):
    ...         return 0.0, 0
    ...
    ...     def add(self, row, accumulator):
    ...         return accumulator.total + row.amount, accumulator.rows + 1
    ...
    ...     def merge(self, one, other):
    ...         return one.total + other.total, one.rows + other.rows
    ...
    ...     def get_result(self, accumulator):
    ...         return accumulator.total / accumulator.rows
    """

    accumulator: ClassVar[str | DataType] = ""
    output: ClassVar[str | StructType] = ""

    def create_accumulator(self) -> Any:
        """An accumulator without rows."""
        raise BacklogError(f"{type(self).__name__} has no create_accumulator.", "Define it.")

    def add(self, value: Any, accumulator: Any) -> Any:
        """Add a value (a row as a named tuple, or the argument of `AggregatingState.add`); return the accumulator."""
        raise BacklogError(f"{type(self).__name__} has no add.", "Define it.")

    def merge(self, one: Any, other: Any) -> Any:
        """Merge two accumulators into one. Not needed for an `AggregatingState`."""
        raise BacklogError(f"{type(self).__name__} has no merge.", "Define it: accumulators are merged in backlog too.")

    def get_result(self, accumulator: Any) -> Any:
        """The result: a tuple of the columns of `output`, or the value itself if there is one column."""
        raise BacklogError(f"{type(self).__name__} has no get_result.", "Define it.")


class Accumulators:
    """Calls an aggregate function with accumulators in its own form.

    Parameters
    ----------
    function : AggregateFunction
    kind : pyarrow.DataType
        Arrow type of the accumulators.
    """

    def __init__(self, function: AggregateFunction, kind: pa.DataType) -> None:
        self._function = function
        self._what = type(function).__name__
        self._kind = kind
        self._is_map = pa.types.is_map(kind)
        names = tuple(field.name for field in kind) if pa.types.is_struct(kind) else None
        self._row: Any = None if names is None else row_type(names)

    def read(self, value: Any) -> Any:
        """An accumulator from an Arrow value."""
        if self._row is not None and type(value) is dict:
            return self._row(*value.values())
        return dict(value) if self._is_map and type(value) is list else value

    def _known(self, value: Any) -> Any:
        """An accumulator from a value of the function: a plain tuple gets the names of the struct."""
        if self._row is not None and type(value) is tuple and len(value) == len(self._row._fields):
            return self._row(*value)
        return value

    def add(self, value: Any, accumulator: Any) -> Any:
        """Add a value. The accumulator of the first value is None."""
        if accumulator is None:
            accumulator = self._known(self._function.create_accumulator())
        return self._known(self._function.add(value, accumulator))

    def merge(self, one: Any, other: Any) -> Any:
        """Merge two accumulators. NULL means no accumulator."""
        if one is None or other is None:
            return other if one is None else one
        return self._known(self._function.merge(one, other))

    def result(self, accumulator: Any) -> Any:
        """The result of an accumulator."""
        return self._function.get_result(accumulator)

    def array(self, values: Sequence[Any]) -> pa.Array:
        """As a column."""
        plain = [list(v.items()) if type(v) is dict else v for v in values] if self._is_map else values
        try:
            return state_array(list(plain), self._kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise BacklogError(
                f"{self._what} returned an accumulator that is not {self._kind}: {error}.",
                "Return accumulators of the declared type.",
            ) from None


def only_function(
    aggregates: Sequence[Aggregate | AggregateFunction | str],
) -> tuple[AggregateFunction | None, list[Aggregate | str]]:
    """The arguments of ``aggregate``: one function, or declared aggregates.

    Raises
    ------
    BacklogError
        For a class, and for a function next to other aggregates.
    """
    for each in aggregates:
        if isinstance(each, type) and issubclass(each, AggregateFunction):
            raise BacklogError(
                f"aggregate was given the class {each.__name__}.", f"Pass an instance: {each.__name__}()."
            )
        if isinstance(each, AggregateFunction):
            if len(aggregates) > 1:
                raise BacklogError(
                    f"aggregate was given {type(each).__name__} next to other aggregates.",
                    "Pass it alone; one function may have several columns of output.",
                )
            return each, []
    return None, [each for each in aggregates if not isinstance(each, AggregateFunction)]
