"""What a stream offers that is grouped by key: its operators, one stream in and one stream out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from backlog_spark.api.aggregations import Aggregations
from backlog_spark.api.paired_streams import ConnectedStreams, IntervalJoin
from backlog_spark.api.rows import Joined, Keyed, Stream, check_keyed
from backlog_spark.api.windowed_streams import WindowedStream
from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import KEYED, told
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import IMPLIED, refuse_change_type, refuse_changes
from backlog_spark.model.nodes import KeyedNode, pair_of, state_name, with_changes

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
    """Rows grouped by key. Each operator gives one row a key whose result changed: the keys, then the results.

    Rows with a column ``_change_type`` are a change stream: `aggregate` and `join` take rows back that are updated or
    deleted, and put out changes themselves. A function of yours is given the rows as they are, and other operators
    refuse such a stream. So that aggregates follow aggregates: the results of the first are changes to the second.
    """

    _habits = KEYED

    def aggregate(self, *aggregates: Aggregate | AggregateFunction | str, name: str = "") -> Stream:
        """Declared aggregates, as SQL texts or as objects of ``backlog_spark.operators.aggregates``; or one function.

        Parameters
        ----------
        aggregates : Aggregate or str, or one AggregateFunction
            Such as ``"sum(amount) AS total, count(*) AS orders"``. A function takes no row of a change stream back.
        name : str, optional
            Of the operator's state. Default: made of the keys and the results, or the function's class.

        Raises
        ------
        BacklogError
            For an aggregate that cannot be merged or is unknown, by name.
        """
        from backlog_spark.operators.aggregates.retracting import aggregate_fold
        from backlog_spark.operators.aggregates.user_fold import FunctionAggregateFold
        from backlog_spark.operators.aggregates.user_functions import only_function
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
        rows = with_changes(self._stream.node, IMPLIED)
        return self._stream.then(KeyedNode(rows, named, binding(""), with_changes=binding))

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str = "") -> Stream:
        """One row a key, made of all its rows by a Python function.

        Parameters
        ----------
        function : callable
            Takes two rows, named tuples of all columns, and returns one: a tuple of the same columns, in the same
            order, with the key as it was. It is to be associative and commutative, since rows are reduced in any
            order, and must not depend on anything but its arguments.
        name : str, optional
            Of the operator's state. Default: made of the keys.

        For example ``reduce(lambda a, b: a._replace(amount=a.amount + b.amount))``.
        """
        from backlog_spark.operators.aggregates.reduce import ReduceFold

        if not callable(function):
            raise BacklogError(f"reduce was given {told(function)}.", "Pass a function of two rows that returns one.")
        keys = self._keys

        def binding(mark: str) -> Bind:
            if mark:
                refuse_change_type("key_by", "key", keys)

            def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
                return ReduceFold(keys, function, schema, key_groups, changes=mark)

            return bind

        named = state_name(name or "_".join([*keys, "reduce"]))
        return self._stream.then(KeyedNode(self._stream.node, named, binding(""), with_changes=binding))

    def process(self, function: KeyedProcessFunction, *, name: str = "", late_output: str | None = None) -> Stream:
        """Process rows with a function that has state, timers and side outputs.

        The rows that come out are those that the function puts out, in backlog too: at the end of a batch, for all rows
        of it. In backlog its event-time timers wait for the switch, its processing-time timers do not.

        Parameters
        ----------
        function : KeyedProcessFunction
        name : str, optional
            Of the operator's state. Default: made of the keys and the function's class.
        late_output : str, optional
            Name of a side output for late rows, with the stream's columns. Without one they are counted and left out.
        """
        from backlog_spark.operators.process.fold import ProcessFold
        from backlog_spark.operators.process.functions import KeyedProcessFunction

        if not isinstance(function, KeyedProcessFunction):
            raise BacklogError(
                f"process was given {told(function)}.",
                "Pass an instance of a subclass of KeyedProcessFunction.",
            )
        keys, order = self._keys, self._order

        def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
            return ProcessFold(
                keys, function, schema, key_groups, order=order, late_output=late_output, control_first=is_first
            )

        named = state_name(name or "_".join([*keys, type(function).__name__]))
        return self._stream.then(KeyedNode(self._stream.node, named, bind, is_timed=True))

    def window(self, assigner: WindowAssigner) -> WindowedStream[Stream]:
        """Group a key's rows by window too.

        Parameters
        ----------
        assigner : WindowAssigner
            Such as ``bs.TumblingEventTimeWindows.of("1 minute")``.
        """
        from backlog_spark.operators.windows.assigners import WindowAssigner

        if not isinstance(assigner, WindowAssigner):
            raise BacklogError(
                f"window was given {told(assigner)}.", 'Pass windows: bs.TumblingEventTimeWindows.of("1 minute").'
            )
        return WindowedStream(self._stream, self._keys, self._order, assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[Stream]:
        """Group a key's rows by their number.

        Rows are numbered as they arrive; those of one batch, or of one stay in backlog at an interval of 0, in the
        order given to `BacklogStream.key_by`. Without an order, and where it leaves rows equal, they are numbered in
        an order of no meaning, which is the same whenever the batch is repeated.

        Parameters
        ----------
        size : int
            Rows of a window.
        slide : int, optional
            At every so many rows of a key a window of the last ``size`` rows, of fewer as long as there are not so
            many. Default: windows of ``size`` rows, one after another.

        Raises
        ------
        SettingError
            For what is no int of 1 or more, and for a slide greater than the size.
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
        """Each row with functions of the rows of its key that precede it in event time, and of itself.

        A row comes out once, when the watermark has reached its time. Rows of one time are ordered by the order given
        to `BacklogStream.key_by`, then by their columns.

        Parameters
        ----------
        functions : str
            Such as ``"sum(amount) AS total, row_number() AS n"``: sum, min, max, avg, count, row_number, lag,
            first_value and last_value.
        rows : int or "unbounded", optional
            The frame begins so many rows before the current row, and ends with it.
        range : str or timedelta or "unbounded", optional
            The frame begins so much earlier than the current row, and ends with the last row of its time. Default:
            unbounded, as in SQL.
        name : str, optional
            Of the operator's state. Default: made of the keys and the results.

        Raises
        ------
        BacklogError
            For another function, by name, and for both kinds of frame at once.
        """
        from backlog_spark.operators.over.fold import OverFold
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
        return self._stream.then(KeyedNode(with_changes(self._stream.node, IMPLIED), named, bind, is_timed=True))

    def connect(self, other: Keyed[Stream, Joined]) -> ConnectedStreams[Stream]:
        """This stream and another one, keyed alike, for a function of both."""
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
        """Join with the rows of another stream, keyed alike, however far apart they come.

        Either stream may be a change stream, and results of an operator that change are one: rows that are updated or
        deleted take their pairs with them. NULL equals no key.

        Parameters
        ----------
        other : KeyedStream
        how : str, default "inner"
            ``"inner"``, ``"left"``, ``"right"`` or ``"full"``: of the last three a row that has no match is there with
            NULL on the other side, until it finds one.
        ttl : str, timedelta or a pair of them, optional
            How long after its arrival a row is kept, by the clock; those of a stay in backlog from its end on. A row
            that is gone matches nothing and is not taken back, as with Flink's ``table.exec.state.ttl``. A pair is for
            the left rows and the right ones, as Flink's hint ``STATE_TTL``; None is for ever. Default: for ever.
        interruptible : bool, default False
            Whether a batch may stop between any two pairs, with ``spark.backlog.timers.interruptible.enabled``
            (FLIP-443): pairs of a key with very many go on coming out after the commit. The same at each start.
        name : str, optional
            Of the operator's state. Default: made of the keys.

        Returns
        -------
        BacklogStream
            The left stream's columns, then the right one's; a key of one name in both comes once. If pairs can be
            taken back, because of a change stream or of an outer join, also ``_change_type``: ``insert`` or
            ``delete``.

        Raises
        ------
        SettingError
            For another ``how``, and for what is no duration.
        """
        from backlog_spark.operators.joins.regular import JoinFold

        right = check_keyed(other, "join")
        one, other_one = ttl if isinstance(ttl, tuple) else (ttl, ttl)
        ttl_ms = (_kept_for(one), _kept_for(other_one))
        left_keys, right_keys = self._keys, right.keys

        def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
            return JoinFold(schema, left_keys, right_keys, key_groups, how=how, ttl_ms=ttl_ms, cuts=interruptible)

        pair = pair_of(*(with_changes(each.stream.node, IMPLIED) for each in (self, right)))
        named = state_name(name or "_".join([*self._keys, "join"]))
        return self._stream.then(KeyedNode(pair, named, bind, is_timed=ttl_ms != (None, None) or interruptible))

    def interval_join(
        self, other: Keyed[Stream, Joined], *, how: str = "inner", interruptible: bool = False
    ) -> IntervalJoin[Joined]:
        """Join with the rows of another stream, keyed alike, whose event times are not far apart.

        Parameters
        ----------
        other : KeyedStream
        how : str, default "inner"
            ``"inner"``, ``"left"``, ``"right"`` or ``"full"``: of the last three a row that finds none comes out with
            NULL on the other side, when the watermark has passed all that it could have found. Flink has only inner.
        interruptible : bool, default False
            As for `join`; the watermark goes on when the last pair is out.
        """
        return IntervalJoin(self, check_keyed(other, "interval_join"), how, interruptible)


def _kept_for(ttl: str | timedelta | None) -> int | None:
    return None if ttl is None else parse_duration(ttl, "ttl")


def _preceding(rows: int | str | None, span: str | timedelta | None) -> int | None:
    """How many rows or milliseconds; None for all."""
    if rows is not None and rows != "unbounded":
        if type(rows) is not int or rows < 0:
            raise SettingError("rows", rows, "is no number of rows.", 'Give 0 or more, or "unbounded".')
        return rows
    if span is not None and span != "unbounded":
        return parse_duration(span, "range")
    return None
