"""Functions of the rows of two keyed streams, with one state for each key.

The operator sees one stream whose rows carry the number of their input.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

from backlog_spark.errors import BacklogError
from backlog_spark.model.record_attributes import RecordAttributes, TwoInputFunction
from backlog_spark.operators.process.functions import KeyedProcessFunction, ProcessContext
from backlog_spark.operators.row_types import row_type
from backlog_spark.operators.sides import Side

__all__ = ["KeyedCoProcessFunction"]


class KeyedCoProcessFunction(KeyedProcessFunction, TwoInputFunction):
    """A function of the rows of two streams with one key; subclass it.

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
        """Called by the operator for the rows of both streams. Do not override it."""
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

    def _take_attributes(self, backlog: int) -> None:
        """Called by the operator; see `TwoInputFunction._take_attributes`."""
        TwoInputFunction._take_attributes(self, backlog)

    def _attributes_of_output(self, *inputs: RecordAttributes) -> RecordAttributes:
        """The attributes for the next operators, if the inputs have these."""
        first, second = inputs
        return TwoInputFunction._attributes_of_output(self, first, second)

    def _bound(self, sides: tuple[Side, Side]) -> KeyedCoProcessFunction:
        """A copy that knows the columns of its inputs."""
        made = copy.copy(self)
        made._names = tuple(tuple(side.schema.names) for side in sides)  # type: ignore[assignment]
        return made
