"""Gives a transform's result its declared columns, by position.

Source: Flink SQL's INSERT statement; Spark's ANSI store assignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DatetimeType,
    NullType,
    NumericType,
    StringType,
    StructType,
)

from backlog_spark.common.sql_names import quoted
from backlog_spark.model.changes import METADATA, is_change_stream
from backlog_spark.pipelines.upserts import as_upserts
from backlog_spark.spark.plan.schemas import Schemas
from backlog_spark.streamsql.translation import results_change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.api.streams import BacklogStream
    from backlog_spark.pipelines.document import Path
    from backlog_spark.pipelines.model import Pipeline
    from backlog_spark.pipelines.sections import Transform

__all__ = ["with_columns"]

# Types of one group are cast into each other.
_GROUPS: Final = (NumericType, DatetimeType)
_ATOMIC: Final = (*_GROUPS, BooleanType, BinaryType, StringType)


def with_columns(
    pipeline: Pipeline, transform: Transform, path: Path, stream: BacklogStream, spark: SparkSession
) -> BacklogStream:
    """The stream with the declared columns, by position. The columns about changes stay.

    Raises
    ------
    PipelineError
        At ``path``: for another number of columns, for a type that needs a CAST, and for changes where only inserts
        may come.
    """
    schema = Schemas(spark).of(stream._node)
    changes = is_change_stream(schema)
    if transform.changes == "refuse" and (changes or results_change(stream._node)):
        raise pipeline.error(
            path, "The result's rows are updated or deleted, and the target takes only new rows.",
            "Give the target a primary key.",
        )  # fmt: skip
    shown = [column for column in schema if not (changes and column.name in METADATA)]
    given = dict(transform.columns) or {column.name: None for column in shown}
    if len(shown) != len(given):
        raise pipeline.error(
            path, f"The result has {_count(len(shown))}, and {len(given)} are declared.",
            f"It has {', '.join(column.name for column in shown)}; declared are {', '.join(given)}.",
        )  # fmt: skip
    items = []
    for column, (name, kind) in zip(shown, given.items(), strict=True):
        text = quoted(column.name)
        if kind is not None:
            wanted = _type(kind)
            if not _can_become(column.dataType, wanted):
                raise pipeline.error(
                    path, f"{name}: {column.dataType.simpleString()} does not become {kind} by itself.",
                    f"Write CAST({column.name} AS {kind}).",
                )  # fmt: skip
            text = text if column.dataType == wanted else f"CAST({text} AS {kind})"
        items.append(text if text == quoted(name) else f"{text} AS {quoted(name)}")
    hidden = [quoted(column.name) for column in schema if column not in shown]
    made = stream.map(*items, *hidden)
    if transform.changes == "upsert" and not changes and not results_change(stream._node):
        return made.transform(as_upserts)
    return made


def _count(columns: int) -> str:
    return f"{columns} column{'' if columns == 1 else 's'}"


def _type(ddl: str) -> DataType:
    made = DataType.fromDDL(f"only {ddl}")
    assert isinstance(made, StructType)
    return made[0].dataType


def _can_become(kind: DataType, wanted: DataType) -> bool:
    """Whether a value is converted without CAST: within numbers and within times, and anything to a text."""
    if isinstance(kind, NullType) or isinstance(wanted, type(kind)):
        return True
    if isinstance(wanted, StringType):
        return isinstance(kind, _ATOMIC)
    return any(isinstance(kind, group) and isinstance(wanted, group) for group in _GROUPS)
