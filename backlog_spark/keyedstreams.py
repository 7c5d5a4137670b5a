"""What a stream offers that is grouped by key: its operators, one stream in and one stream out."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from backlog_spark.changes import IMPLIED, METADATA, is_change_stream, refuse_change_type, refuse_changes
from backlog_spark.durations import parse_duration
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.habits import KEYED, Guided, told
from backlog_spark.operators.sides import quoted
from backlog_spark.plan import KeyedNode, pair_of, state_name, with_changes
from backlog_spark.streams import BacklogStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from backlog_spark.operators.aggregate import Aggregate
    from backlog_spark.operators.aggregatefunctions import AggregateFunction
    from backlog_spark.operators.fold import Fold
    from backlog_spark.operators.functions import KeyedProcessFunction
    from backlog_spark.operators.windows import WindowAssigner
    from backlog_spark.pairedstreams import ConnectedStreams, IntervalJoin
    from backlog_spark.plan import Bind
    from backlog_spark.windowedstreams import WindowedStream

__all__ = ["Aggregations", "KeyedStream"]

_WHOLE_ROW = "__backlog_row"


def _flat_row(keys: int, frame: DataFrame) -> DataFrame:
    """The picked row's columns in the place of the struct that holds them; the keys are there already.

    What tells of the change that brought the row says nothing of the result, and would order results wrongly.
    """
    from pyspark.sql import functions as F

    before = [name for name in frame.columns if name != _WHOLE_ROW]
    row: StructType = frame.schema[_WHOLE_ROW].dataType  # type: ignore[assignment]
    told = METADATA if is_change_stream(row, before[:keys]) else ()
    rest = [name for name in row.names if name not in before and name not in told]
    return frame.select(*map(quoted, before), *(F.col(_WHOLE_ROW).getField(n).alias(n) for n in rest))


class Aggregations(Guided, ABC):
    """Short names for declared aggregates of a grouped stream."""

    _keys: tuple[str, ...]

    @abstractmethod
    def aggregate(self, *aggregates: Aggregate | str, name: str = "") -> BacklogStream:
        """Declared aggregates."""

    def count(self) -> BacklogStream:
        """Rows of each key, or of each of its windows, as ``count``."""
        return self.aggregate("count(*) AS count")

    def sum(self, column: str) -> BacklogStream:
        """Sum of a column, under the column's name, as PyFlink has it."""
        return self._one("sum", column)

    def min(self, column: str) -> BacklogStream:
        """Least value of a column, under the column's name."""
        return self._one("min", column)

    def max(self, column: str) -> BacklogStream:
        """Greatest value of a column, under the column's name."""
        return self._one("max", column)

    def min_by(self, column: str, *, last: bool = False) -> BacklogStream:
        """The row with the least value of a column: the keys, then the row's other columns.

        Parameters
        ----------
        column : str
        last : bool
            Among rows with equal values take the last; default the first. By the order given to `key_by`; without one
            ties are decided by the rows' other columns.
        """
        return self._row("min_by", column, last)

    def max_by(self, column: str, *, last: bool = False) -> BacklogStream:
        """The row with the greatest value of a column; see `min_by`."""
        return self._row("max_by", column, last)

    def _row(self, function: str, column: str, last: bool) -> BacklogStream:
        from backlog_spark.operators.aggregates import MaxBy, MinBy

        pick = MinBy if function == "min_by" else MaxBy
        name = "_".join([*self._keys, function, column])
        return self.aggregate(pick("*", column, name=_WHOLE_ROW, last=last), name=name).transform(
            functools.partial(_flat_row, len(self._keys))
        )

    def _one(self, function: str, column: str) -> BacklogStream:
        quoted = "`" + column.replace("`", "``") + "`"
        return self.aggregate(f"{function}({quoted}) AS {quoted}", name="_".join([*self._keys, function, column]))


class KeyedStream(Aggregations):
    """Rows grouped by key. Each operator gives one row a key whose result changed: the keys, then the results.

    Rows with a column ``_change_type`` are a change stream: `aggregate` and `join` take rows back that are updated or
    deleted, and put out changes themselves. A function of yours is given the rows as they are, and other operators
    refuse such a stream. So that aggregates follow aggregates: the results of the first are changes to the second.
    """

    _habits = KEYED

    def __init__(self, stream: BacklogStream, keys: tuple[str, ...], order: str | None) -> None:
        self._stream = stream
        self._keys = keys
        self._order = order

    @property
    def stream(self) -> BacklogStream:
        """The stream that is keyed."""
        return self._stream

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return self._keys

    @property
    def order(self) -> str | None:
        """The column that orders a key's rows."""
        return self._order

    def aggregate(self, *aggregates: Aggregate | AggregateFunction | str, name: str = "") -> BacklogStream:
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
        from backlog_spark.operators.aggregatefunctions import only_function
        from backlog_spark.operators.changeaggregates import aggregate_fold
        from backlog_spark.operators.declare import parse_aggregates
        from backlog_spark.operators.functionaggregate import FunctionAggregateFold

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
        return BacklogStream(KeyedNode(rows, named, binding(""), with_changes=binding))

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str = "") -> BacklogStream:
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
        from backlog_spark.operators.reduce import ReduceFold

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
        return BacklogStream(KeyedNode(self._stream.node, named, binding(""), with_changes=binding))

    def process(
        self, function: KeyedProcessFunction, *, name: str = "", late_output: str | None = None
    ) -> BacklogStream:
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
        from backlog_spark.operators.functions import KeyedProcessFunction
        from backlog_spark.operators.process import ProcessFold

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
        return BacklogStream(KeyedNode(self._stream.node, named, bind, is_timed=True))

    def window(self, assigner: WindowAssigner) -> WindowedStream:
        """Group a key's rows by window too.

        Parameters
        ----------
        assigner : WindowAssigner
            Such as ``bs.TumblingEventTimeWindows.of("1 minute")``.
        """
        from backlog_spark.operators.windows import WindowAssigner
        from backlog_spark.windowedstreams import WindowedStream

        if not isinstance(assigner, WindowAssigner):
            raise BacklogError(
                f"window was given {told(assigner)}.", 'Pass windows: bs.TumblingEventTimeWindows.of("1 minute").'
            )
        return WindowedStream(self._stream, self._keys, self._order, assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream:
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
        from backlog_spark.operators.triggers import CountedRows, whole_number
        from backlog_spark.operators.windowed import WindowOptions
        from backlog_spark.operators.windows import GlobalWindows
        from backlog_spark.windowedstreams import WindowedStream

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
    ) -> BacklogStream:
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
        from backlog_spark.operators.over import OverFold
        from backlog_spark.operators.overlist import parse_over

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
        return BacklogStream(KeyedNode(with_changes(self._stream.node, IMPLIED), named, bind, is_timed=True))

    def connect(self, other: KeyedStream) -> ConnectedStreams:
        """This stream and another one, keyed alike, for a function of both."""
        from backlog_spark.pairedstreams import ConnectedStreams, other_keyed

        return ConnectedStreams(self, other_keyed(other, "connect"))

    def join(
        self,
        other: KeyedStream,
        *,
        how: str = "inner",
        ttl: str | timedelta | tuple[str | timedelta | None, str | timedelta | None] | None = None,
        interruptible: bool = False,
        name: str = "",
    ) -> BacklogStream:
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
        from backlog_spark.operators.join import JoinFold
        from backlog_spark.pairedstreams import other_keyed

        right = other_keyed(other, "join")
        one, other_one = ttl if isinstance(ttl, tuple) else (ttl, ttl)
        ttl_ms = (_kept_for(one), _kept_for(other_one))
        left_keys, right_keys = self._keys, right.keys

        def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
            return JoinFold(schema, left_keys, right_keys, key_groups, how=how, ttl_ms=ttl_ms, cuts=interruptible)

        pair = pair_of(*(with_changes(each.stream.node, IMPLIED) for each in (self, right)))
        named = state_name(name or "_".join([*self._keys, "join"]))
        return BacklogStream(KeyedNode(pair, named, bind, is_timed=ttl_ms != (None, None) or interruptible))

    def interval_join(self, other: KeyedStream, *, how: str = "inner", interruptible: bool = False) -> IntervalJoin:
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
        from backlog_spark.pairedstreams import IntervalJoin, other_keyed

        return IntervalJoin(self, other_keyed(other, "interval_join"), how, interruptible)


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
