"""The operators of a keyed stream whose rows are grouped by window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from backlog_spark.api.aggregations import Aggregations
from backlog_spark.api.rows import Rows, Stream
from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import WINDOWED, described
from backlog_spark.common.requirements import required
from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import IMPLIED, refuse_changes
from backlog_spark.model.nodes import KeyedNode
from backlog_spark.model.trees import state_name, with_changes
from backlog_spark.operators.windows.columns import check_window_result, check_window_rows
from backlog_spark.operators.windows.fold import WindowFold, WindowOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from backlog_spark.model.nodes import Bind
    from backlog_spark.operators.aggregates.aggregate import Aggregate
    from backlog_spark.operators.aggregates.user_functions import AggregateFunction
    from backlog_spark.operators.fold import Fold
    from backlog_spark.operators.merge import MergeFold
    from backlog_spark.operators.windows.assigners import WindowAssigner
    from backlog_spark.operators.windows.functions import ProcessWindowFunction, WindowFunction
    from backlog_spark.operators.windows.triggers import CountTrigger, PurgingTrigger, Trigger

__all__ = ["WindowedStream"]


class WindowedStream(Aggregations[Stream]):
    """Rows grouped by key and window. Each operator gives one row per window: the keys, ``window_start``,
    ``window_end``, ``window_time`` (the window's last millisecond, and the event time of the output), the results.

    A window is emitted once, when the watermark reaches its end. With an allowed lateness it is emitted again when
    late rows came. In backlog all windows wait for the switch; its batch emits those up to the greatest watermark.

    Windows of a number of rows, by `KeyedStream.count_window` or a `trigger`, have no start and no end: these columns
    are NULL. The batch that ends a backlog emits all full windows.
    """

    _habits = WINDOWED

    def __init__(
        self,
        stream: Rows[Stream, Any],
        keys: tuple[str, ...],
        order: str | None,
        assigner: WindowAssigner,
        options: WindowOptions | None = None,
    ) -> None:
        self._stream = stream
        self._keys = keys
        self._order = order
        self._options = options or WindowOptions(assigner)

    def allowed_lateness(self, lateness: str | timedelta) -> WindowedStream[Stream]:
        """Keep windows for this time after their end, and emit them again when late rows come.

        The next keyed operator retracts the earlier result; `BacklogStream.changes` shows that too. The output of a
        function, of `apply` or `process`, is not retracted.

        Raises
        ------
        SettingError
            For a value that is not a duration.
        BacklogError
            For windows of processing time and global ones, which have no late rows.
        """
        self._refuse_late_rows(f"allowed_lateness({str(lateness)!r})")
        if not self._options.assigner.is_event_time:
            raise BacklogError(
                f"allowed_lateness({str(lateness)!r}): no row is late for windows of processing time.",
                "Leave it out, or take windows of event time.",
            )
        return self._with(lateness_ms=parse_duration(lateness, "allowed_lateness"))

    def side_output_late_data(self, name: str) -> WindowedStream[Stream]:
        """Send rows that come after their windows were removed to a side output, with the stream's columns.

        Without it they are counted (`BacklogQuery.lateRows`) and dropped.

        Raises
        ------
        BacklogError
            For global windows, which have no late rows.
        """
        self._refuse_late_rows(f"side_output_late_data({name!r})")
        return self._with(late_output=name)

    def trigger(self, trigger: CountTrigger | PurgingTrigger | Trigger) -> WindowedStream[Stream]:
        """Set when rows of ``bs.GlobalWindows`` are emitted.

        Parameters
        ----------
        trigger : CountTrigger, PurgingTrigger or Trigger
            ``bs.CountTrigger.of(100)``: at every 100th row of a key, a window of all its rows so far. Its rows are kept
            for ever; declared aggregates keep one row per key. ``bs.PurgingTrigger.of(bs.CountTrigger.of(100))``: a
            window of the 100 rows since the last one, like ``count_window(100)``. An instance of your own subclass of
            `Trigger` is asked after each row and timer. `apply`, `process` or `aggregate` with an `AggregateFunction`
            may follow it.

        Raises
        ------
        BacklogError
            For another trigger, for windows that end by themselves, and for a second trigger.
        """
        from backlog_spark.operators.windows.triggers import CountTrigger, PurgingTrigger, Trigger

        options = self._options
        if not isinstance(trigger, CountTrigger | PurgingTrigger | Trigger):
            raise BacklogError(
                f"trigger was given {trigger!r:.100}.",
                "Pass bs.CountTrigger.of(100), bs.PurgingTrigger.of(bs.CountTrigger.of(100)), or your own bs.Trigger.",
            )
        if isinstance(trigger, Trigger) and not options.assigner.is_global:
            raise BacklogError(
                f"trigger({type(trigger).__name__}()): {type(options.assigner).__name__} are merged in backlog without "
                "looking at single rows, and are emitted when they end. They cannot ask a trigger.",
                "Use bs.GlobalWindows.create(), or a KeyedProcessFunction with timers.",
            )
        if not options.assigner.is_global:
            raise BacklogError(
                f"trigger: {type(options.assigner).__name__} are emitted when they end, and take no trigger.",
                "Leave it out, or use bs.GlobalWindows.create().",
            )
        if options.counted is not None or options.trigger is not None:
            raise BacklogError(
                "trigger: these windows have a trigger already.", "Use one trigger, and none after count_window."
            )
        if isinstance(trigger, Trigger):
            return self._with(trigger=trigger)
        return self._with(counted=trigger._rows())

    def _refuse_late_rows(self, what: str) -> None:
        if self._options.assigner.is_global:
            raise BacklogError(f"{what}: global windows count rows, so no row is late for them.", "Leave it out.")

    def _ready(self) -> WindowOptions:
        """The options, if these windows ever emit rows."""
        if self._options.assigner.is_global and self._options.counted is None and self._options.trigger is None:
            raise BacklogError(
                "GlobalWindows without a trigger never emit anything.",
                "Add .trigger(bs.CountTrigger.of(n)), or use count_window(n), or EndOfStreamWindows for "
                "one window that ends with the input.",
            )
        return self._options

    def _with(self, **changes: Any) -> WindowedStream[Stream]:
        assigner = self._options.assigner
        return WindowedStream(self._stream, self._keys, self._order, assigner, replace(self._options, **changes))

    def aggregate(self, *aggregates: Aggregate | AggregateFunction | str, name: str = "") -> Stream:
        """Declared aggregates, or one `AggregateFunction`; see `KeyedStream.aggregate`."""
        from backlog_spark.operators.aggregates.retracting import window_aggregate_fold
        from backlog_spark.operators.aggregates.user_fold import FunctionAggregateFold
        from backlog_spark.operators.aggregates.user_functions import only_function

        with required("aggregate"):
            from backlog_spark.operators.declare import parse_aggregates

        function, given = only_function(aggregates)
        if function is not None and self._options.trigger is not None:
            return self._triggered(self._options.trigger, function, name)
        declared = [] if function is not None else parse_aggregates(*given, order=self._order)
        for each in declared:
            check_window_result(each.name)

        def make(key_groups: int) -> Callable[..., MergeFold]:
            def inner(keys: Sequence[str], schema: StructType, hidden: Sequence[str]) -> MergeFold:
                if function is not None:
                    refuse_changes("an AggregateFunction of a window", schema, keys)
                    made = FunctionAggregateFold(keys, function, schema, key_groups, hidden)
                    for column in made.output.names:
                        check_window_result(column)
                    return made
                return window_aggregate_fold(keys, declared, schema, key_groups, hidden)

            return inner

        results = [type(function).__name__] if function is not None else [a.name for a in declared]
        return self._keyed(name or "_".join([*self._keys, *results]), make)

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str = "") -> Stream:
        """Reduce all rows of a window to one row with a Python function; see `KeyedStream.reduce`."""
        from backlog_spark.operators.aggregates.reduce import ReduceFold

        if not callable(function):
            raise BacklogError(
                f"reduce was given {described(function)}.", "Pass a function of two rows that returns one."
            )
        unnamed = self._options.assigner.is_unbounded or self._options.counted is not None

        def make(key_groups: int) -> Callable[..., MergeFold]:
            def inner(keys: Sequence[str], schema: StructType, hidden: Sequence[str]) -> MergeFold:
                refuse_changes("reduce of a window", schema, keys)
                if not unnamed:
                    check_window_rows(schema)
                return ReduceFold(keys, function, schema, key_groups, hidden)

            return inner

        return self._keyed(name or "_".join([*self._keys, "reduce"]), make)

    def _keyed(self, name: str, make: Callable[[int], Callable[..., MergeFold]]) -> Stream:
        keys, order, options = self._keys, self._order, self._ready()
        if options.trigger is not None:
            raise BacklogError(
                f"Declared aggregates and reduce after trigger({type(options.trigger).__name__}()): they merge rows "
                "without looking at them one by one, so they cannot ask the trigger.",
                "Use aggregate with a bs.AggregateFunction, apply or process.",
            )

        def bound(changes: str) -> Bind:
            def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
                from backlog_spark.operators.windows.count import CountFold
                from backlog_spark.operators.windows.sessions import SessionFold

                if options.counted is not None:
                    return CountFold(keys, make(key_groups), schema, key_groups, options.counted, order)
                kind = SessionFold if options.assigner.is_session else WindowFold
                return kind(keys, make(key_groups), schema, replace(options, control_first=is_first), changes)

            return bind

        named = state_name(f"{name}_window")
        rows = with_changes(self._stream._node, IMPLIED)
        is_timed = options.counted is None
        again = bound if options.lateness_ms else None
        return self._stream._then(KeyedNode(rows, named, bound(""), is_timed=is_timed, with_changes=again))

    def apply(self, function: WindowFunction, *, name: str = "") -> Stream:
        """Give all rows of a window to a function. They are kept until the window ends.

        Parameters
        ----------
        function : WindowFunction
        name : str, optional
            Name of the operator's state. Default: made of the keys and the function's class.
        """
        from backlog_spark.operators.windows.functions import WindowFunction

        return self._function(function, WindowFunction, "apply", name)

    def process(self, function: ProcessWindowFunction, *, name: str = "") -> Stream:
        """Like `apply`, for a function with a context."""
        from backlog_spark.operators.windows.functions import ProcessWindowFunction

        return self._function(function, ProcessWindowFunction, "process", name)

    def _function(self, function: Any, kind: type[Any], what: str, name: str) -> Stream:
        from backlog_spark.operators.joins.cogroup import WindowRowsFold
        from backlog_spark.operators.windows.count import CountRowsFold
        from backlog_spark.operators.windows.functions import ProcessWindowFunction

        if not isinstance(function, kind):
            raise BacklogError(
                f"{what} was given {described(function)}.", f"Pass an instance of a subclass of {kind.__name__}."
            )
        keys, order, options = self._keys, self._order, self._ready()
        if options.trigger is not None:
            return self._triggered(options.trigger, function, name)

        def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
            given = replace(options, control_first=is_first)
            if given.counted is not None:
                return CountRowsFold(function, schema, keys, key_groups, given, order=order)
            return WindowRowsFold(function, schema, keys, None, key_groups, given, order=order)

        named = state_name(name or "_".join([*keys, type(function).__name__]))
        is_timed = options.counted is None or kind is ProcessWindowFunction
        return self._stream._then(KeyedNode(self._stream._node, named, bind, is_timed=is_timed))

    def _triggered(self, trigger: Trigger, function: Any, name: str) -> Stream:
        """A function after the user's own trigger."""
        from backlog_spark.operators.process.fold import ProcessFold
        from backlog_spark.operators.windows.triggered import TriggeredWindows

        keys, order = self._keys, self._order

        def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
            refuse_changes(f"trigger({type(trigger).__name__}())", schema, keys)
            made = TriggeredWindows(keys, trigger, function, schema)
            return ProcessFold(keys, made, schema, key_groups, order=order, control_first=is_first)

        named = state_name(name or "_".join([*keys, type(trigger).__name__, type(function).__name__]))
        return self._stream._then(KeyedNode(self._stream._node, named, bind, is_timed=True))
