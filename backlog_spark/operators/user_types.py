"""Parses the types that a user's function declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backlog_spark.common.failure_causes import first_line
from backlog_spark.errors import BacklogError
from backlog_spark.operators.process.functions import ListState, MapState, State

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["state_type", "struct_of", "type_of"]


def state_type(state: State) -> Any:
    """The column type of a declared state."""
    from pyspark.sql.types import ArrayType, MapType

    kind = type_of(state.kind, f"state {state.name!r}")
    if isinstance(state, ListState):
        return ArrayType(kind)
    return MapType(type_of(state.key, f"state {state.name!r}"), kind) if isinstance(state, MapState) else kind


def type_of(kind: Any, what: str) -> Any:
    """A type in the form that a user writes.

    Raises
    ------
    BacklogError
        If it is not a Spark type.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType

    if isinstance(kind, DataType):
        return kind
    try:
        return DataType.fromDDL(kind)
    except (PySparkException, TypeError, AttributeError) as error:
        raise BacklogError(
            f"The type {kind!r} of {what} is not a Spark type: {first_line(error)}",
            'Write a type as in SQL, such as "bigint" or "array<string>".',
        ) from None


def struct_of(schema: Any, what: str) -> StructType:
    """The columns of rows, in the form of `type_of`."""
    from pyspark.sql.types import StructType

    found = type_of(schema, what) if schema else None
    if not isinstance(found, StructType) or not found.fields:
        raise BacklogError(
            f"{what} is {schema!r}: it must name the columns of the output.",
            'For example output = "user_id long, total long".',
        )
    return found
