"""The operators of a stream that is grouped by key: one stream in, one stream out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from backlog_spark.api.aggregations import Aggregations
from backlog_spark.api.paired_streams import ConnectedStreams, IntervalJoin, check_windows
from backlog_spark.api.rows import Joined, Keyed, Stream, check_keyed
from backlog_spark.api.windowed_streams import WindowedStream
from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import KEYED, described
from backlog_spark.common.requirements import required
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import IMPLIED, refuse_change_type, refuse_changes
from backlog_spark.model.nodes import KeyedNode
from backlog_spark.model.trees import pair_of, state_name, with_changes
from backlog_spark.operators.joins.pairs import OUTER, check_kind

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from backlog_spark.model.nodes import Bind
    from backlog_spark.operators.aggregates.aggregate import Aggregate
    from backlog_spark.operators.aggregates.user_functions import AggregateFunction
    from backlog_spark.operators.fold import Fold
    from backlog_spark.operators.process.functions import KeyedProcessFunction
    from backlog_spark.operators.windows.assigners import WindowAssigner

__all__ = ["KeyedStream"]


class KeyedStream(Keyed[Stream, Joined], Aggregations[Stream]):
    """Rows grouped by key. An aggregate gives one row per key whose result changed: the keys, then the results.

    Rows with a column ``_change_type`` are a change stream. `aggregate` and `join` retract rows that are updated or
    deleted, and emit changes themselves. Your own functions get the rows unchanged. Other operators refuse a change
    stream. An aggregate can follow an aggregate: the results of the first are changes to the second.
    """

    _habits = KEYED

    def aggregate(self, *aggregates: Aggregate | AggregateFunction | str, name: str = "") -> Stream:
        """Aggregate with declared aggregates (SQL texts or ``backlog_spark.operators.aggregates``), or with one
        function.

        Parameters
        ----------
        aggregates : Aggregate or str, or one AggregateFunction
            Such as ``"sum(amount) AS total, count(*) AS orders"``. A function cannot retract rows of a change stream.
        name : str, optional
            Name of the operator's state. Default: made of the keys and the results, or the function's class.

        Raises
        ------
        BacklogError
            For an unknown aggregate, and for one that cannot be merged, with its name.
        """
        from backlog_spark.operators.aggregates.retracting import aggregate_fold
        from backlog_spark.operators.aggregates.user_fold import FunctionAggregateFold
        from backlog_spark.operators.aggregates.user_functions import only_function

        with required("aggregate"):
            from backlog_spark.operators.declare import parse_aggregates

        function, given = only_function(aggregates)
        declared = [] if function is not None else parse_aggregates(*given, order=self._order)
        keys = self._keys

        def binding(mark: str) -> Bind:
            if mark:
                refuse_change_type("key_by", "key", keys)

            def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
                if function is not None:
                    refuse_changes("an AggregateFunction", schema, keys)
                    return FunctionAggregateFold(keys, function, schema, key_groups, changes=mark)
                return aggregate_fold(keys, declared, schema, key_groups, mark)

            return bind

        results = [type(function).__name__] if function is not None else [a.name for a in declared]
        named = state_name(name or "_".join([*keys, *results]))
        rows = with_changes(self._stream._node, IMPLIED)
        return self._stream._then(KeyedNode(rows, named, binding(""), with_changes=binding))

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str = "") -> Stream:
        """Reduce all rows of a key to one row with a Python function.

        Parameters
        ----------
        function : callable
            Takes two rows, named tuples of all columns, and returns one: a tuple of the same columns, in the same
            order, with the same key. It must be associative and commutative, since rows are reduced in any order. It
            must depend only on its arguments.
        name : str, optional
            Name of the operator's state. Default: made of the keys.

        For example ``reduce(lambda a, b: a._replace(amount=a.amount + b.amount))``.
        """
        from backlog_spark.operators.aggregates.reduce import ReduceFold

        if not callable(function):
            raise BacklogError(
                f"reduce was given {described(function)}.", "Pass a function of two rows that returns one."
            )
        keys = self._keys

        def binding(mark: str) -> Bind:
            if mark:
                refuse_change_type("key_by", "key", keys)

            def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
                return ReduceFold(keys, function, schema, key_groups, changes=mark)

            return bind

        named = state_name(name or "_".join([*keys, "reduce"]))
        return self._stream._then(KeyedNode(self._stream._node, named, binding(""), with_changes=binding))

    def process(self, function: KeyedProcessFunction, *, name: str = "", late_output: str | None = None) -> Stream:
        """Process rows with a function that has state, timers and side outputs.

        The function's output is emitted at the end of a batch, in backlog too. In backlog event-time timers wait for
        the switch; processing-time timers do not.

        Parameters
        ----------
        function : KeyedProcessFunction
        name : str, optional
            Name of the operator's state. Default: made of the keys and the function's class.
        late_output : str, optional
            Name of a side output for late rows, with the stream's columns. Without it they are counted and dropped.
        """
        from backlog_spark.operators.process.fold import ProcessFold
        from backlog_spark.operators.process.functions import KeyedProcessFunction

        if not isinstance(function, KeyedProcessFunction):
            raise BacklogError(
                f"process was given {described(function)}.",
                "Pass an instance of a subclass of KeyedProcessFunction.",
            )
        keys, order = self._keys, self._order

        def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
            return ProcessFold(
                keys, function, schema, key_groups, order=order, late_output=late_output, control_first=is_first
            )

        named = state_name(name or "_".join([*keys, type(function).__name__]))
        return self._stream._then(KeyedNode(self._stream._node, named, bind, is_timed=True))

    def window(self, assigner: WindowAssigner) -> WindowedStream[Stream]:
        """Group a key's rows by window.

        Parameters
        ----------
        assigner : WindowAssigner
            Such as ``bs.TumblingEventTimeWindows.of("1 minute")``.
        """
        check_windows(assigner)
        return WindowedStream(self._stream, self._keys, self._order, assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[Stream]:
        """Group a key's rows into windows of a number of rows.

        Rows are numbered as they arrive. Rows of one batch, or of one stay in backlog at an interval of 0, are numbered
        in the order given to `BacklogStream.key_by`. Without an order, and between rows that it leaves equal, the order
        is arbitrary, but the same when the batch is replayed.

        Parameters
        ----------
        size : int
            Rows of a window.
        slide : int, optional
            A window of the last ``size`` rows at every ``slide``-th row of a key; of fewer rows at first. Default:
            windows of ``size`` rows, one after another.

        Raises
        ------
        SettingError
            For a value that is not an int of 1 or more, and for a slide greater than the size.
        """
        from backlog_spark.operators.windows.assigners import GlobalWindows
        from backlog_spark.operators.windows.fold import WindowOptions
        from backlog_spark.operators.windows.triggers import CountedRows, whole_number

        last = whole_number(size, "count_window size")
        every = last if slide is None else whole_number(slide, "count_window slide")
        if every > last:
            raise SettingError(
                "count_window slide", slide, f"is greater than the size {size}, so rows between windows would be lost.",
                "Take a slide of at most the size.",
            )  # fmt: skip
        assigner = GlobalWindows.create()
        options = WindowOptions(assigner, counted=CountedRows(every, last))
        return WindowedStream(self._stream, self._keys, self._order, assigner, options)

    def over(
        self, *functions: str, rows: int | str | None = None, range: str | timedelta | None = None, name: str = ""
    ) -> Stream:
        """Add to each row functions of itself and of the rows of its key before it in event time.

        A row is emitted once, when the watermark reaches its time. Rows of the same time follow the order given to
        `BacklogStream.key_by`, then their columns.

        Parameters
        ----------
        functions : str
            Such as ``"sum(amount) AS total, row_number() AS n"``: sum, min, max, avg, count, row_number, lag,
            first_value and last_value.
        rows : int or "unbounded", optional
            The frame begins this many rows before the current row, and ends with it.
        range : str or timedelta or "unbounded", optional
            The frame begins this much earlier than the current row, and ends with the last row of its time. Default:
            unbounded, as in SQL.
        name : str, optional
            Name of the operator's state. Default: made of the keys and the results.

        Raises
        ------
        BacklogError
            For an unknown function, with its name, and for both kinds of frame at once.
        """
        from backlog_spark.operators.over.fold import OverFold

        with required("over"):
            from backlog_spark.operators.over.select_list import parse_over

        if rows is not None and range is not None:
            raise BacklogError(f"over was given rows={rows!r} and range={range!r}.", "Give one of them.")
        parsed = parse_over(*functions)
        unit = "rows" if rows is not None else "range"
        preceding = _preceding(rows, range)
        keys, order = self._keys, self._order

        def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
            return OverFold(
                keys, parsed, schema, key_groups, preceding=preceding, unit=unit, order=order, control_first=is_first
            )

        named = state_name(name or "_".join([*keys, "over", *(f.name for f in parsed)]))
        return self._stream._then(KeyedNode(with_changes(self._stream._node, IMPLIED), named, bind, is_timed=True))

    def connect(self, other: Keyed[Stream, Joined]) -> ConnectedStreams[Stream]:
        """Connect with another stream with keys of the same types, for a function of both."""
        return ConnectedStreams(self, check_keyed(other, "connect"))

    def join(
        self,
        other: Keyed[Stream, Joined],
        *,
        how: str = "inner",
        ttl: str | timedelta | tuple[str | timedelta | None, str | timedelta | None] | None = None,
        interruptible: bool = False,
        name: str = "",
    ) -> Stream:
        """Join with the rows of another stream with keys of the same types, however far apart they come.

        Either stream may be a change stream, such as the changing results of an operator. An updated or deleted row
        retracts its pairs. NULL matches nothing.

        Parameters
        ----------
        other : KeyedStream
        how : str, default "inner"
            ``"inner"``, ``"left"``, ``"right"`` or ``"full"``. With the last three a row without a match is emitted
            with NULL on the other side, and retracted when it finds a match.
        ttl : str, timedelta or a pair of them, optional
            How long a row is kept after its arrival, by the clock. For rows of a stay in backlog the time counts from
            the end of the stay. An expired row matches nothing and is not retracted, as with Flink's
            ``table.exec.state.ttl``. A pair holds for the left rows and the right rows, like Flink's hint
            ``STATE_TTL``; None is for ever. Default: for ever.
        interruptible : bool, default False
            Whether a batch may stop between any two pairs, with ``spark.backlog.timers.interruptible.enabled``
            (FLIP-443). The remaining pairs of a key with very many then come out after the commit. Must be the same at
            each start.
        name : str, optional
            Name of the operator's state. Default: made of the keys.

        Returns
        -------
        BacklogStream
            The left stream's columns, then the right one's. A key with the same name in both appears once. If pairs can
            be retracted, because of a change stream or an outer join, also ``_change_type``: ``insert`` or ``delete``.

        Raises
        ------
        SettingError
            For another ``how``, and for a ``ttl`` that is not a duration.
        """
        from backlog_spark.operators.joins.regular import JoinFold

        right = check_keyed(other, "join")
        check_kind(how, OUTER)
        if isinstance(ttl, tuple) and len(ttl) != 2:
            raise SettingError(
                "ttl", ttl, "is not a pair.", "Give one duration, or one for each side: ('1 day', None)."
            )
        one, other_one = ttl if isinstance(ttl, tuple) else (ttl, ttl)
        ttl_ms = (_kept_for(one), _kept_for(other_one))
        left_keys, right_keys = self._keys, right._keys

        def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
            return JoinFold(schema, left_keys, right_keys, key_groups, how=how, ttl_ms=ttl_ms, cuts=interruptible)

        pair = pair_of(*(with_changes(each._stream._node, IMPLIED) for each in (self, right)))
        named = state_name(name or "_".join([*self._keys, "join"]))
        return self._stream._then(KeyedNode(pair, named, bind, is_timed=ttl_ms != (None, None) or interruptible))

    def interval_join(
        self, other: Keyed[Stream, Joined], *, how: str = "inner", interruptible: bool = False
    ) -> IntervalJoin[Joined]:
        """Join with the rows of another stream with keys of the same types whose event times are close.

        Parameters
        ----------
        other : KeyedStream
        how : str, default "inner"
            ``"inner"``, ``"left"``, ``"right"`` or ``"full"``. With the last three a row without a match comes out with
            NULL on the other side, when the watermark has passed everything that it could match. Flink has only inner.
        interruptible : bool, default False
            As for `join`. The watermark advances after the last pair.
        """
        right = check_keyed(other, "interval_join")
        check_kind(how, OUTER, "interval join")
        return IntervalJoin(self, right, how, interruptible)


def _kept_for(ttl: str | timedelta | None) -> int | None:
    return None if ttl is None else parse_duration(ttl, "ttl")


def _preceding(rows: int | str | None, span: str | timedelta | None) -> int | None:
    """How many rows or milliseconds; None for all."""
    if rows is not None and rows != "unbounded":
        if type(rows) is not int or not 0 <= rows < 2**63:
            raise SettingError("rows", rows, "is not a number of rows.", 'Give 0 or more, or "unbounded".')
        return rows
    if span is not None and span != "unbounded":
        return parse_duration(span, "range")
    return None
