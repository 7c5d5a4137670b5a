"""The types that a function of the user's declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backlog_spark.common.failure_causes import first_line
from backlog_spark.errors import BacklogError
from backlog_spark.operators.process.functions import ListState, MapState, State

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["state_type", "struct_of", "type_of"]


def state_type(state: State) -> Any:
    """The type of a declared state's column."""
    from pyspark.sql.types import ArrayType, MapType

    kind = type_of(state.kind, f"state {state.name!r}")
    if isinstance(state, ListState):
        return ArrayType(kind)
    return MapType(type_of(state.key, f"state {state.name!r}"), kind) if isinstance(state, MapState) else kind


def type_of(kind: Any, what: str) -> Any:
    """A type as a user writes it.

    Raises
    ------
    BacklogError
        For what is none of Spark's.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType

    if isinstance(kind, DataType):
        return kind
    try:
        return DataType.fromDDL(kind)
    except (PySparkException, TypeError, AttributeError) as error:
        raise BacklogError(
            f"The type {kind!r} of {what} is none of Spark's: {first_line(error)}",
            'Write a type as in SQL, such as "bigint" or "array<string>".',
        ) from None


def struct_of(schema: Any, what: str) -> StructType:
    """The columns of rows, as `type_of`."""
    from pyspark.sql.types import StructType

    found = type_of(schema, what) if schema else None
    if not isinstance(found, StructType) or not found.fields:
        raise BacklogError(
            f"{what} is {schema!r}: it must name the columns of the rows that are put out.",
            'For example output = "user_id long, total long".',
        )
    return found
