"""The base of all declared aggregates: argument, condition, name, and types."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Self

from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DoubleType,
    FloatType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
)

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError
from backlog_spark.operators.aggregates.aggregate import Aggregate

__all__ = [
    "ArgumentAggregate",
    "DeclaredAggregate",
    "column",
    "is_hashable",
    "is_orderable",
    "order_field",
    "type_of",
    "without_negative_zero",
]

# Prefix of our own columns.
_OURS = "__backlog_"
_ORDERED = (
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    NumericType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)


@dataclass(frozen=True)
class DeclaredAggregate(Aggregate):
    """An aggregate that a user declares by name. (One with the user's own code is an `AggregateFunction`.)

    Parameters
    ----------
    name : str, optional
        Column of the result. Default: the function and its columns, such as ``sum_amount``. Required if an argument is
        not a plain column name.
    where : str, optional
        Condition in Spark SQL, like SQL's ``FILTER (WHERE ...)``. Only rows for which it is true count.

    Raises
    ------
    BacklogError
        If no name is given and none follows from the argument.
    """

    function: ClassVar[str]
    """Name of Spark's equivalent function."""

    name: str = field(default="", kw_only=True)
    where: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self._natural_name())

    def arguments(self) -> tuple[str, ...]:
        """The arguments as written."""
        return ()

    def with_order(self, order: str | None) -> Self:
        """This aggregate with ``order`` as its order column, if it can have one and has none; otherwise itself.

        Called by the keyed stream, which knows the order of its rows.
        """
        return self

    def __str__(self) -> str:
        condition = f" FILTER (WHERE {self.where})" if self.where else ""
        return f"{self.function}({', '.join(self.arguments())}){condition}"

    def _natural_name(self) -> str:
        if not all(re.fullmatch(r"\w+", argument) for argument in self.arguments()):
            raise BacklogError(f"{self} has no name for its result.", "Give it a name: name='...', or AS ... in SQL.")
        return "_".join((self.function, *self.arguments()))

    def _kept(self, value: Column) -> Column:
        """The value if the row satisfies the condition, else NULL."""
        return value if self.where is None else F.when(F.expr(self.where), value)

    def _refusal(self, found: DataType, wanted: str) -> BacklogError:
        return BacklogError(
            f"{self} AS {self.name}: {', '.join(self.arguments())} is of type {found.simpleString()}.",
            f"{self.function} takes {wanted}.",
        )


@dataclass(frozen=True)
class ArgumentAggregate(DeclaredAggregate):
    """A declared aggregate of one argument.

    Parameters
    ----------
    argument : str
        A column's name, ``*`` for the whole row as a struct, or an expression in Spark SQL over the rows.
    """

    argument: str

    def arguments(self) -> tuple[str, ...]:
        return (self.argument,)

    def _type(self, schema: StructType) -> DataType:
        return type_of(schema, self.argument, self)

    def _value(self, schema: StructType) -> Column:
        """The argument if the row counts, else NULL."""
        return self._kept(column(schema, self.argument))


def column(schema: StructType, text: str) -> Column:
    """The column with this name, all columns as one struct for ``*``, or else the expression in ``text``."""
    if text in schema.fieldNames():
        return F.col(quoted(text))
    if text == "*":
        return F.struct(*(F.col(quoted(name)) for name in _users(schema).fieldNames()))
    return F.expr(text)


def _users(schema: StructType) -> StructType:
    """The user's columns. Operators add others, such as a row's window or sign."""
    return StructType([each for each in schema.fields if not each.name.startswith(_OURS)])


def type_of(schema: StructType, text: str, owner: object) -> DataType:
    """Type of a column or an expression over rows of ``schema``. Only an expression needs Spark.

    All nested fields are nullable: Arrow has no NULL for a struct whose fields cannot be NULL.

    Raises
    ------
    BacklogError
        If Spark refuses the expression. The message has ``owner``.
    """
    if text in schema.fieldNames():
        return StructType([schema[text]]).toNullable().fields[0].dataType
    users = _users(schema)
    if text == "*":
        return users.toNullable()
    try:
        return _analysed(users.json(), text)
    except PySparkException as error:
        reason = str(error).strip().split("\n", 1)[0].split(" SQLSTATE")[0]
        raise BacklogError(f"{owner}: Spark refuses {text!r}: {reason}", f"Columns: {users.fieldNames()}.") from error


def is_orderable(kind: DataType) -> bool:
    """Whether values of the type have an order that is the same in Arrow and in Spark.

    A collation other than UTF8_BINARY exists in Spark alone.
    """
    if isinstance(kind, StructType):
        return all(is_orderable(each.dataType) for each in kind.fields)
    if isinstance(kind, StringType):
        return bool(kind.collation == "UTF8_BINARY")
    return isinstance(kind, _ORDERED)


def is_hashable(kind: DataType) -> bool:
    """Whether Spark's hash functions accept values of the type."""
    if isinstance(kind, StructType):
        return all(is_hashable(each.dataType) for each in kind.fields)
    if isinstance(kind, ArrayType):
        return is_hashable(kind.elementType)
    return not isinstance(kind, MapType | VariantType)


def order_field(schema: StructType, order: str, owner: DeclaredAggregate) -> StructField:
    """The accumulator's field for the order column.

    Raises
    ------
    BacklogError
        If there is no such column, or its type has no order.
    """
    if order not in schema.fieldNames():
        raise BacklogError(f"{owner}: there is no order column {order!r}.", f"Columns: {_users(schema).fieldNames()}.")
    kind = schema[order].dataType
    if isinstance(kind, StructType) or not is_orderable(kind):
        raise BacklogError(
            f"{owner}: the order column {order} is of type {kind.simpleString()}.",
            "It must be a number, string, binary, boolean, date or time.",
        )
    return StructField("order", kind)


def without_negative_zero(value: Column, kind: DataType) -> Column:
    """The value with -0.0 replaced by 0.0: they are equal, but their bits differ."""
    return value + F.lit(0).cast(kind) if isinstance(kind, FloatType | DoubleType) else value


@lru_cache(maxsize=256)
def _analysed(schema_json: str, text: str) -> DataType:
    schema = StructType.fromJson(json.loads(schema_json))
    nulls = [F.lit(None).cast(each.dataType).alias(each.name) for each in schema.fields]
    frame = SparkSession.active().range(0).select(*nulls).select(F.expr(text))
    if len(frame.columns) != 1:
        raise BacklogError(f"{text!r} is {len(frame.columns)} columns.", "An aggregate takes one value per argument.")
    return frame.schema.toNullable().fields[0].dataType
