"""The functions of an OVER aggregation over rows of given types, in Spark and in a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backlog_spark.errors import BacklogError
from backlog_spark.operators import frames
from backlog_spark.operators.aggregates import groups
from backlog_spark.operators.over.functions import RANKS, Default, OverFunction

if TYPE_CHECKING:
    from pyspark.sql import Column, WindowSpec
    from pyspark.sql.types import DataType, StructType

    from backlog_spark.operators.over.rows import SortedRows

__all__ = ["BoundFunction", "bind", "is_ordered"]


def is_ordered(kind: DataType) -> bool:
    """Whether Spark and a worker order values of the type in the same way: atomic ones, texts byte by byte."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StringType):
        return kind.simpleString() == "string"
    plain = (T.NumericType, T.BinaryType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType)
    return isinstance(kind, plain)


@dataclass(frozen=True)
class BoundFunction:
    """A function bound to the types of its rows.

    Parameters
    ----------
    kind, column, name, offset, default
        Those of `OverFunction`; the default has the column's type.
    text : str
        For messages and the checkpoint.
    result : DataType
        The type of Spark's own function.
    accumulators : tuple of (str, DataType)
        Kept with a key's last row instead of the rows before it. Only for frames without a beginning.
    """

    kind: str
    column: str | None
    name: str
    offset: int
    default: Default
    text: str
    result: DataType
    accumulators: tuple[tuple[str, DataType], ...]

    def over(self, argument: Column | None, frame: WindowSpec, rows: WindowSpec) -> Column:
        """Spark's own function as an expression.

        Parameters
        ----------
        argument : Column, optional
        frame, rows : WindowSpec
            The operator's frame, and the total order of the rows.
        """
        from pyspark.sql import functions as F

        if self.kind == "row_number":
            return F.row_number().over(rows)
        if argument is None:
            return F.count(F.lit(1)).over(frame)
        if self.kind == "lag":
            missing = F.lit(self.default).cast(self.result)
            before = F.lag(argument, self.offset).over(rows)
            return (
                before
                if self.default is None
                else F.when(F.row_number().over(rows) > self.offset, before).otherwise(missing)
            )
        made: Column = getattr(F, self.kind)(argument).over(frame)
        return made

    def results(self, work: SortedRows, number: int) -> tuple[pa.Array, dict[str, pa.Array]]:
        """In a worker: the results for the rows that are emitted now, and the accumulators after each of them.

        Parameters
        ----------
        work : SortedRows
        number : int
            The function's number, with which names of accumulators end.
        The function's number. It is the end of the accumulators' names.
        """
        from pyspark.sql.pandas.types import to_arrow_type

        kind: pa.DataType = to_arrow_type(self.result, timezone="UTC")
        low, high = work.low, work.high
        if self.kind == "row_number":
            return pa.array(work.numbers[work.new]).cast(kind), {}
        argument = None if self.column is None else work.argument(self.column)
        if self.kind == "last_value":
            assert argument is not None
            return argument.take(pa.array(high - 1)), {}
        if self.kind == "lag":
            assert argument is not None
            at = work.new - self.offset
            extended = pa.concat_arrays([argument, self._missing(kind)])
            return extended.take(pa.array(np.where(at >= work.begins[work.new], at, len(argument)))), {}
        held = {name: work.accumulator(f"{name}{number}") for name, _ in self.accumulators}
        if self.kind == "count":
            one = np.ones(work.size, dtype=np.int64) if argument is None else _ones(argument)
            found = pa.array(frames.counts(_counted(work, one, held), low, high))
            values = {"c": found}
        else:
            assert argument is not None
            found, values = self._of_values(work, argument, held, kind)
        return found, {f"{name}{number}": values[name] for name in held}

    def _of_values(
        self, work: SortedRows, argument: pa.Array, held: dict[str, pa.Array], kind: pa.DataType
    ) -> tuple[pa.Array, dict[str, pa.Array]]:
        low, high = work.low, work.high
        if self.kind in ("min", "max", "first_value"):
            values = frames.chosen(work.seen, held["a"], argument) if held else argument
            if self.kind == "first_value":
                found = values.take(pa.array(low))
            else:
                best = frames.best(values, low, high, greatest=self.kind == "max")
                found = values.take(pa.array(best, mask=best < 0))
            return found, {"a": found}
        number = frames.counts(_counted(work, _ones(argument), held), low, high)
        if pa.types.is_decimal(kind) or (pa.types.is_integer(kind) and self.kind == "sum"):
            wide = (
                pa.decimal128(min(argument.type.precision + 10, 38), argument.type.scale) if _is_decimal(kind) else kind
            )
            values = argument.cast(wide)
            total = frames.sums(frames.chosen(work.seen, held["a"], values) if held else values, low, high, self.text)
            mean = self.kind == "avg"
            found = frames.averages(total, number, kind, self.text) if mean else total
            return found, {"a": total, "c": pa.array(number)}
        doubles = groups.values(argument).astype(np.float64)
        if held:
            doubles = np.where(work.seen, groups.values(held["a"], 0.0), doubles)
        if held or work.unbounded:
            sums = frames.running_doubles(doubles, work.starts, work.stops)[high - 1]
        else:
            sums = frames.sliding_doubles(doubles, low, high)
        with np.errstate(invalid="ignore"):
            result = sums / np.maximum(number, 1) if self.kind == "avg" else sums
        total, found = (groups.from_values(each, number > 0, pa.float64()) for each in (sums, result))
        return found, {"a": total, "c": pa.array(number)}

    def _missing(self, kind: pa.DataType) -> pa.Array:
        """The result of ``lag`` where there is no row."""
        return pa.nulls(1, kind) if self.default is None else pa.array([self.default], kind)


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind))


def _ones(argument: pa.Array) -> npt.NDArray[np.int64]:
    return groups.is_valid(argument).astype(np.int64)


def _counted(work: SortedRows, each: npt.NDArray[np.int64], held: dict[str, pa.Array]) -> npt.NDArray[np.int64]:
    """The number of rows that each row represents. An emitted row also represents all rows before it."""
    return np.where(work.seen, groups.values(held["c"]), each) if held else each


def bind(functions: Sequence[OverFunction], schema: StructType, *, unbounded: bool) -> Iterator[BoundFunction]:
    """Bind functions to the types of rows of ``schema``.

    Raises
    ------
    BacklogError
        If a function does not fit. The error has its name.
    """
    from pyspark.sql.types import IntegerType, LongType

    taken = {name.lower() for name in schema.names}
    for function in functions:
        if function.name.lower() in taken:
            raise BacklogError(
                f"over: the output would have two columns {function.name!r}.", "Give the function another name with AS."
            )
        taken.add(function.name.lower())
        default: Default = None
        accumulators: list[tuple[str, DataType]] = []
        result: DataType = LongType()
        if function.kind in RANKS:
            result = IntegerType()
        elif function.column is not None and function.column not in schema.names:
            raise BacklogError(
                f"over: {function.text}: there is no column {function.column!r}; there are {', '.join(schema.names)}.",
                "Check the name and its case.",
            )
        elif function.column is not None and function.kind != "count":
            kind = schema[function.column].dataType
            result = _result(function, kind)
            if function.kind == "lag":
                default = _typed(function, kind)
            elif function.kind != "last_value":
                accumulators.append(("a", _accumulated(function.kind, kind, result)))
        if function.kind in ("count", "avg", "sum"):
            accumulators.append(("c", LongType()))
        yield BoundFunction(
            function.kind, function.column, function.name, function.offset, default, function.text, result,
            tuple(accumulators) if unbounded else (),
        )  # fmt: skip


def _result(function: OverFunction, kind: DataType) -> DataType:
    from pyspark.sql import types as T

    if function.kind in ("lag", "first_value", "last_value"):
        return kind
    if function.kind in ("min", "max"):
        if is_ordered(kind):
            return kind
        wanted = "values that have an order"
    elif isinstance(kind, T.DecimalType):
        more = 10 if function.kind == "sum" else 4
        scale = kind.scale if function.kind == "sum" else min(kind.scale + 4, 38)
        return T.DecimalType(min(kind.precision + more, 38), scale)
    elif isinstance(kind, T.NumericType):
        return T.LongType() if function.kind == "sum" and isinstance(kind, T.IntegralType) else T.DoubleType()
    else:
        wanted = "numbers"
    raise BacklogError(
        f"over: {function.text}: column {function.column!r} is {kind.simpleString()}; {function.kind} takes {wanted}.",
        "Cast it first, for example with .map.",
    )


def _accumulated(function: str, kind: DataType, result: DataType) -> DataType:
    from pyspark.sql.types import DecimalType

    if function == "avg" and isinstance(kind, DecimalType):
        return DecimalType(min(kind.precision + 10, 38), kind.scale)
    return result


def _typed(function: OverFunction, kind: DataType) -> Default:
    """The default of ``lag`` as a value of the column's type."""
    from pyspark.sql import types as T

    given = function.default
    if given is None:
        return None
    is_number = isinstance(given, int | float | Decimal) and not isinstance(given, bool)
    try:
        if isinstance(kind, T.DecimalType) and is_number:
            exact = Decimal(str(given))
            if exact == exact.quantize(Decimal(1).scaleb(-kind.scale)):
                return exact.quantize(Decimal(1).scaleb(-kind.scale))
        elif isinstance(kind, T.IntegralType) and is_number and given == int(given):
            return int(given)
        elif isinstance(kind, T.FloatType | T.DoubleType) and is_number:
            return float(given)
        elif (isinstance(kind, T.StringType) and isinstance(given, str)) or (
            isinstance(kind, T.BooleanType) and isinstance(given, bool)
        ):
            return given
    except (InvalidOperation, ValueError):
        pass
    raise BacklogError(
        f"over: {function.text}: the default {given!r} is not {kind.simpleString()}, the type of {function.column!r}.",
        "Give a number, a text or a boolean of the column's type, or none.",
    )
