"""Functions of the rows of two keyed streams, with one state for each key.

To the operator they are functions of one stream, whose rows say which input they are of.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.attributes import RecordAttributes, TwoInputFunction
from backlog_spark.errors import BacklogError
from backlog_spark.operators.functions import KeyedProcessFunction, ProcessContext
from backlog_spark.operators.rowtypes import row_type
from backlog_spark.operators.sides import SIDE, Side, quoted, two_sides
from backlog_spark.plan import KeyedNode, TransformNode, pair_of
from backlog_spark.streams import BacklogStream
from backlog_spark.watermarks import EVENT_TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from backlog_spark.keyedstreams import KeyedStream
    from backlog_spark.operators.fold import Fold

__all__ = ["KeyedCoProcessFunction", "connected"]

_ORDER: Final = "__backlog_order"


class KeyedCoProcessFunction(KeyedProcessFunction, TwoInputFunction):
    """A function of the rows that two streams have of one key; subclass it.

    State, timers, side outputs and `output` are those of `KeyedProcessFunction`; both inputs share them.

    Examples
    --------
    >>> import backlog_spark as bs
    >>> class Enrich(bs.KeyedCoProcessFunction):
    ...     output = "order_id long, name string"
    ...     name = bs.ValueState("string")
    ...
    ...     def process_element1(self, order, ctx):
    ...         yield order.order_id, self.name.value()
    ...
    ...     def process_element2(self, user, ctx):
    ...         self.name.update(user.name)
    """

    _names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    _calls: Any = None

    def process_element1(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Called for each row of the left stream; see `KeyedProcessFunction.process_element`."""
        raise BacklogError(f"{type(self).__name__} has no process_element1.", "Define it.")

    def process_element2(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Called for each row of the right stream; see `KeyedProcessFunction.process_element`."""
        raise BacklogError(f"{type(self).__name__} has no process_element2.", "Define it.")

    def process_element(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Called by the operator for the rows of both; not to be overridden."""
        if self._calls is None:
            self._calls = self._made_calls()
        call, make, first, end = self._calls[row[0]]
        result: Iterable[Any] | None = call(make(row[first:end]), ctx)
        return result

    def _made_calls(self) -> list[Any]:
        made, at = [], 1
        for names, call in zip(self._names, (self.process_element1, self.process_element2), strict=True):
            made.append((call, partial(tuple.__new__, row_type(tuple(names))), at, at + len(names)))
            at += len(names)
        return made

    def take_attributes(self, backlog: int) -> None:
        """Called by the operator; see `TwoInputFunction.take_attributes`."""
        TwoInputFunction.take_attributes(self, backlog)

    def attributes_of_output(self, *inputs: RecordAttributes) -> RecordAttributes:
        """What the operators behind are told when the inputs have these attributes."""
        first, second = inputs
        return TwoInputFunction.attributes_of_output(self, first, second)

    def bound(self, sides: tuple[Side, Side]) -> KeyedCoProcessFunction:
        """A copy that knows the columns of its inputs."""
        made = copy.copy(self)
        made._names = tuple(tuple(side.schema.names) for side in sides)  # type: ignore[assignment]
        return made


def connected(left: KeyedStream, right: KeyedStream, function: KeyedCoProcessFunction, name: str) -> BacklogStream:
    """The stream that a function makes of two keyed streams."""
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
        from backlog_spark.operators.process import ProcessFold

        sides = two_sides(what, schema, left.keys, right.keys)[:2]
        order = None if left.order is None else _ORDER
        return ProcessFold(left.keys, function.bound(sides), schema, key_groups, order=order, control_first=is_first)

    pair = TransformNode(pair_of(left.stream.node, right.stream.node), keyed)
    return BacklogStream(KeyedNode(pair, name, bind, is_timed=True))


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
