"""Keyed operators bound to their rows, and the mark of event time that binds some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from backlog_spark.errors import BacklogError
from backlog_spark.model.trees import uses_processing_time
from backlog_spark.model.watermarks import EVENT_TIME
from backlog_spark.operators.sides import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from backlog_spark.model.nodes import KeyedNode, WatermarkNode
    from backlog_spark.operators.fold import Fold

__all__ = ["bound", "with_event_time"]


def bound(node: KeyedNode, schema: StructType, key_groups: int = 1) -> Fold:
    """A keyed operator for rows of a schema. Raises what the operator says of rows that do not fit."""
    fold = cast("Fold", node.bind(schema, key_groups, not node.parent.is_keyed))
    return fold.clocked() if any(map(uses_processing_time, node.walk())) else fold


def with_event_time(node: WatermarkNode, frame: DataFrame) -> DataFrame:
    """Marks the event time of rows.

    Raises
    ------
    BacklogError
        If there is no such column, or it is not a timestamp.
    """
    from pyspark.sql.types import TimestampType

    if node.column not in frame.columns:
        raise BacklogError(
            f"with_watermark: the stream has no column {node.column!r}; it has {', '.join(frame.columns)}.",
            "Check the name and its case.",
        )
    kind = frame.schema[node.column].dataType
    if not isinstance(kind, TimestampType):
        raise BacklogError(
            f"with_watermark: column {node.column!r} is {kind.simpleString()}; event time must be a timestamp.",
            "Convert it first, for example with .map('*', 'timestamp_millis(ms) AS ts').",
        )
    return frame.withColumn(node.column, quoted(node.column).alias(node.column, metadata={EVENT_TIME: node.column}))
