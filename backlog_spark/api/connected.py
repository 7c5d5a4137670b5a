"""Makes one stream from two keyed streams, for a function of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backlog_spark.api.rows import Keyed
from backlog_spark.errors import BacklogError
from backlog_spark.model.nodes import KeyedNode, TransformNode, pair_of
from backlog_spark.model.watermarks import EVENT_TIME
from backlog_spark.operators.sides import SIDE, Side, quoted, two_sides

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from backlog_spark.operators.fold import Fold
    from backlog_spark.operators.process.co_functions import KeyedCoProcessFunction

__all__ = ["connected"]

_ORDER: Final = "__backlog_order"


def connected(left: Keyed[Any, Any], right: Keyed[Any, Any], function: KeyedCoProcessFunction, name: str) -> KeyedNode:
    """The node that gives a function the rows of two keyed streams."""
    what = type(function).__name__
    orders = (left.order, right.order)
    if (left.order is None) != (right.order is None):
        raise BacklogError(
            f"connect: one stream is ordered by {left.order or right.order} and the other is not.",
            "Give key_by an order on both sides, or on neither.",
        )

    def keyed(frame: DataFrame) -> DataFrame:
        return _with_keys(frame, two_sides(what, frame.schema, left.keys, right.keys)[:2], orders)

    def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
        from backlog_spark.operators.process.fold import ProcessFold

        sides = two_sides(what, schema, left.keys, right.keys)[:2]
        order = None if left.order is None else _ORDER
        return ProcessFold(left.keys, function.bound(sides), schema, key_groups, order=order, control_first=is_first)

    pair = TransformNode(pair_of(left.stream.node, right.stream.node), keyed)
    return KeyedNode(pair, name, bind, is_timed=True)


def _with_keys(frame: DataFrame, sides: tuple[Side, Side], orders: tuple[str | None, str | None]) -> DataFrame:
    """Rows of both sides with the key, the event time and the order in a column each."""
    from pyspark.sql import functions as F

    def either(*names: str | None) -> Column:
        columns = [
            F.lit(None) if name is None else quoted(side.columns[side.schema.names.index(name)])
            for side, name in zip(sides, names, strict=True)
        ]
        return F.when(quoted(SIDE) == 0, columns[0]).otherwise(columns[1])

    columns = [quoted(name).alias(name, metadata={}) for name in frame.columns]
    columns += [either(*pair).alias(pair[0]) for pair in zip(sides[0].keys, sides[1].keys, strict=True)]
    times = [side.event_time for side in sides]
    if times[0] is not None and times[0] not in sides[0].keys:
        columns.append(either(*times).alias(times[0], metadata={EVENT_TIME: times[0]}))
    for side, order in zip(sides, orders, strict=True):
        if order is not None and order not in side.schema.names:
            raise BacklogError(
                f"key_by: the stream has no column {order!r} to order by; it has {', '.join(side.schema.names)}.",
                "Check the name and its case.",
            )
    if orders[0] is not None:
        columns.append(either(*orders).alias(_ORDER))
    return frame.select(*columns)
