"""Combines the rows of two inputs in one table, with the number of the side and the columns of both sides.

A side's columns are NULL in the other side's rows. So for the plans and the state an operator with two inputs has a
single input. A NULL column takes one bit and its fixed width, which costs less than a second shuffle and a second
state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from backlog_spark.common import sql_names
from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import event_time_of
from backlog_spark.state.keys import check_keys

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["LEFT", "RIGHT", "SIDE", "Side", "prefixed", "quoted", "side_schema", "tagged", "two_sides"]

SIDE: Final = "__backlog_side"
LEFT: Final = 0
RIGHT: Final = 1
_PREFIXES = ("l:", "r:")


def quoted(name: str) -> Column:
    """The column with exactly this name."""
    from pyspark.sql import functions as F

    return F.col(sql_names.quoted(name))


def tagged(left: DataFrame | None, right: DataFrame | None, schemas: tuple[StructType, StructType]) -> list[DataFrame]:
    """The rows of each given side, with the columns of both.

    Parameters
    ----------
    left, right : DataFrame, optional
        None if a side has no rows.
    schemas : tuple of StructType
        Schemas of the two sides.
    """
    from pyspark.sql import functions as F

    made = []
    for number, frame in enumerate((left, right)):
        if frame is None:
            continue
        columns = [F.lit(number).cast("int").alias(SIDE)]
        for side, schema in enumerate(schemas):
            for field in schema:
                value = quoted(field.name) if side == number else F.lit(None).cast(field.dataType)
                columns.append(value.alias(_PREFIXES[side] + field.name, metadata=field.metadata))
        made.append(frame.select(*columns))
    return made


def prefixed(side: int, name: str) -> str:
    """The name of a side's column in the rows of both."""
    return _PREFIXES[side] + name


def side_schema(schema: StructType, side: int) -> StructType:
    """The schema of one side's own rows, from that of `tagged`."""
    from pyspark.sql.types import StructField, StructType

    prefix = _PREFIXES[side]
    return StructType(
        [
            StructField(f.name.removeprefix(prefix), f.dataType, True, f.metadata)
            for f in schema
            if f.name.startswith(prefix)
        ]
    )


@dataclass(frozen=True)
class Side:
    """One input of an operator with two inputs.

    Parameters
    ----------
    schema : StructType
        Schema of its rows.
    columns : tuple of str
        Names of its columns in the rows of both.
    keys : tuple of str
        Its key columns.
    event_time : str or None
        Its event time.
    """

    schema: StructType
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    event_time: str | None


def two_sides(
    what: str, schema: StructType, left_keys: Sequence[str], right_keys: Sequence[str]
) -> tuple[Side, Side, tuple[DataType, ...]]:
    """The two inputs in rows of `tagged`, and the types of the keys.

    Raises
    ------
    BacklogError
        If the keys do not match.
    """
    if len(left_keys) != len(right_keys):
        raise BacklogError(
            f"{what}: {len(left_keys)} keys on the left ({', '.join(left_keys)}) and {len(right_keys)} on the right "
            f"({', '.join(right_keys)}).",
            "Give each side the same number of keys.",
        )
    sides = []
    for number, keys in enumerate((left_keys, right_keys)):
        own = side_schema(schema, number)
        check_keys(keys, own)
        columns = tuple(_PREFIXES[number] + name for name in own.names)
        sides.append(Side(own, columns, tuple(keys), event_time_of(own)))
    left, right = sides
    types = []
    for mine, other in zip(left.keys, right.keys, strict=True):
        kind = left.schema[mine].dataType
        if kind != right.schema[other].dataType:
            raise BacklogError(
                f"{what}: key {mine!r} is {kind.simpleString()} on the left and {other!r} is "
                f"{right.schema[other].dataType.simpleString()} on the right.",
                "Cast one of them before key_by: equal keys must have equal types.",
            )
        types.append(kind)
    return left, right, tuple(types)
