"""Global windows with the user's own trigger, which is asked after each row and timer of a key.

Source: Flink's ``WindowOperator``, for the one window that ``GlobalWindows`` has for each key.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.errors import BacklogError
from backlog_spark.operators.aggregates.user_functions import AggregateFunction
from backlog_spark.operators.lifecycle import RuntimeContext, open_function
from backlog_spark.operators.process.functions import (
    AggregatingState,
    KeyedProcessFunction,
    ListState,
    ProcessContext,
    State,
)
from backlog_spark.operators.row_types import row_type
from backlog_spark.operators.user_types import struct_of
from backlog_spark.operators.windows.assigners import FOREVER
from backlog_spark.operators.windows.columns import WINDOW_COLUMNS, check_window_keys, check_window_result
from backlog_spark.operators.windows.functions import ProcessWindowFunction, TimeWindow, WindowContext, WindowFunction
from backlog_spark.operators.windows.triggers import Trigger, TriggerContext, TriggerResult

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["TriggeredWindows"]

_WINDOW: Final = TimeWindow(-FOREVER, FOREVER)
# Prefix of the trigger's state among the function's state.
_PREFIX: Final = "trigger_"


class TriggeredWindows(KeyedProcessFunction):
    """The window of each key: its rows or an accumulator, and the trigger's state.

    Parameters
    ----------
    keys : sequence of str
    trigger : Trigger
    function : WindowFunction, ProcessWindowFunction or AggregateFunction
    schema : StructType
        Schema of the rows.
    """

    _takes_late_rows = True

    def __init__(
        self,
        keys: Sequence[str],
        trigger: Trigger,
        function: WindowFunction | ProcessWindowFunction | AggregateFunction,
        schema: StructType,
    ) -> None:
        from pyspark.sql.types import StructType, TimestampType

        self._trigger, self._function = trigger, function
        self._row = row_type(tuple(schema.names))
        what = type(function).__name__
        output = struct_of(function.output, f"{what}.output")
        self.contents: State
        if isinstance(function, AggregateFunction):
            check_window_keys(keys)
            for name in output.names:
                check_window_result(name)
            windows = [(name, TimestampType()) for name in WINDOW_COLUMNS]
            self.contents = AggregatingState(function)
            fields = [*(schema[key] for key in keys), *output]
            self.output = StructType(fields)  # type: ignore[misc]
            for name, kind in windows:
                self.output = self.output.add(name, kind)  # type: ignore[misc]
        else:
            if function._is_vectorised:
                raise BacklogError(
                    f"{what} has process_groups, but windows with your own trigger are emitted one by one.",
                    "Define apply or process.",
                )
            self.contents = ListState(StructType(list(schema.fields)))
            self.output = output  # type: ignore[misc]
        for name, state in trigger._declared_states().items():
            setattr(self, _PREFIX + name, state)

    def open(self, ctx: RuntimeContext) -> None:
        self._trigger, self._function = copy.copy(self._trigger), copy.copy(self._function)
        for name in self._trigger._declared_states():
            setattr(self._trigger, name, getattr(self, _PREFIX + name))
        open_function(self._trigger)
        if not isinstance(self._function, AggregateFunction):  # the state opens that one
            open_function(self._function)

    def close(self) -> None:
        self._trigger.close()
        if not isinstance(self._function, AggregateFunction):
            self._function.close()

    def process_element(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        self.contents.add(row)  # type: ignore[attr-defined]
        return self._done(self._trigger.on_element(row, ctx.timestamp(), _WINDOW, TriggerContext(ctx)), ctx)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterable[Any] | None:
        is_event = ctx.time_domain() == "event"
        asked = self._trigger.on_event_time if is_event else self._trigger.on_processing_time
        return self._done(asked(timestamp, _WINDOW, TriggerContext(ctx)), ctx)

    def _done(self, result: TriggerResult, ctx: ProcessContext) -> Iterable[Any] | None:
        if not isinstance(result, TriggerResult):
            raise BacklogError(
                f"{type(self._trigger).__name__} returned {result!r:.100}.",
                "Return a bs.TriggerResult: CONTINUE, FIRE, PURGE or FIRE_AND_PURGE.",
            )
        found = list(self._called(ctx) or ()) if result.is_fire() else None
        if result.is_purge():
            self.contents.clear()
        return found

    def _called(self, ctx: ProcessContext) -> Iterable[Any] | None:
        key, function = ctx.get_current_key(), self._function
        if isinstance(self.contents, AggregatingState):
            result = self.contents.get()
            row = result if isinstance(result, tuple | list) else (result,)
            keys = key if isinstance(key, tuple) else (key,)
            # A timer may fire an empty window. It has no result.
            return [] if result is None else [(*keys, *row, None, None, None)]
        assert isinstance(self.contents, ListState)
        # Values from the state are dicts.
        kept = self.contents.get()
        rows: Any = [self._row(*row.values()) if type(row) is dict else row for row in kept]
        if not rows:
            return []
        if isinstance(function, WindowFunction):
            return function.apply(key, _WINDOW, rows)
        assert isinstance(function, ProcessWindowFunction)
        return function.process(key, WindowContext(_WINDOW, ctx.timer_service().current_watermark()), rows)
