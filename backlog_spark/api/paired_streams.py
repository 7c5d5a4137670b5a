"""Two streams in one operator: co-groups, connected streams, interval joins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from backlog_spark.api.rows import Joined, Keyed, Rows, Stream
from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import PAIRED, Guided, described
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import IMPLIED
from backlog_spark.model.nodes import KeyedNode, TransformNode
from backlog_spark.model.temporal_joins import TemporalJoinKind, choose_temporal_join
from backlog_spark.model.trees import (
    pair_of,
    state_name,
    watermark_characteristics,
    with_changes,
)
from backlog_spark.model.watermarks import EVENT_TIME
from backlog_spark.operators.joins.pairs import TEMPORAL, check_kind
from backlog_spark.operators.sides import SIDE, Side, quoted, two_sides
from backlog_spark.operators.windows.fold import WindowOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from backlog_spark.operators.fold import Fold
    from backlog_spark.operators.joins.process import ProcessJoinFunction
    from backlog_spark.operators.process.co_functions import KeyedCoProcessFunction
    from backlog_spark.operators.windows.assigners import WindowAssigner
    from backlog_spark.operators.windows.functions import CoGroupFunction

__all__ = ["CoGroupedStreams", "ConnectedStreams", "IntervalJoin", "check_windows"]

_ORDER = "__backlog_order"


@dataclass(frozen=True)
class CoGroupedStreams(Guided, Generic[Stream]):
    """Two streams. A function gets their rows of one key and window together.

    ``left.co_group(right).where("id").equal_to("id").window(assigner).apply(function)``, as in Flink.
    """

    _habits = PAIRED

    _left: Rows[Stream, Any]
    _right: Rows[Stream, Any]
    _where: tuple[str, ...] = ()
    _equal_to: tuple[str, ...] = ()
    _options: WindowOptions | None = None
    _order: str | None = None

    def where(self, *keys: str, order: str | None = None) -> CoGroupedStreams[Stream]:
        """The left stream's key columns. ``order``: a column of both streams that orders the rows of a group."""
        return replace(self, _where=_names("where", keys), _order=order)

    def equal_to(self, *keys: str) -> CoGroupedStreams[Stream]:
        """The right stream's key columns, in the same order and of the same types."""
        return replace(self, _equal_to=_names("equal_to", keys))

    def window(self, assigner: WindowAssigner) -> CoGroupedStreams[Stream]:
        """The windows. `EndOfStreamWindows` emits everything when both streams have ended."""
        check_windows(assigner)
        if assigner.is_global:
            raise BacklogError(
                "co_group: GlobalWindows never emit anything, because co_group takes no trigger.",
                "Use windows of time, or EndOfStreamWindows for one window that ends with the input.",
            )
        return replace(self, _options=WindowOptions(assigner))

    def allowed_lateness(self, lateness: str | timedelta) -> CoGroupedStreams[Stream]:
        """As `WindowedStream.allowed_lateness`; after `window`."""
        options = replace(self._ready(), lateness_ms=parse_duration(lateness, "allowed_lateness"))
        return replace(self, _options=options)

    def _ready(self) -> WindowOptions:
        for given, what, example in (
            (self._where, "where", '.where("id")'),
            (self._equal_to, "equal_to", '.equal_to("id")'),
            (self._options, "window", '.window(bs.TumblingEventTimeWindows.of("1 minute"))'),
        ):
            if not given:
                raise BacklogError(f"co_group has no {what}.", f"Add {example}.")
        assert self._options is not None
        return self._options

    def apply(self, function: CoGroupFunction, *, name: str = "") -> Stream:
        """Give the function the rows of each key and window.

        Parameters
        ----------
        function : CoGroupFunction
        name : str, optional
            Name of the operator's state. Default: made of the keys and the function's class.

        Raises
        ------
        BacklogError
            If keys or windows are missing.
        """
        from backlog_spark.operators.joins.cogroup import WindowRowsFold
        from backlog_spark.operators.windows.functions import CoGroupFunction

        options = self._ready()
        if not isinstance(function, CoGroupFunction):
            raise BacklogError(
                f"apply was given {described(function)}.", "Pass an instance of a subclass of CoGroupFunction."
            )
        where, equal_to, order = self._where, self._equal_to, self._order

        def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
            given = replace(options, control_first=is_first)
            return WindowRowsFold(function, schema, where, equal_to, key_groups, given, order=order)

        named = state_name(name or "_".join([*where, type(function).__name__]))
        pair = pair_of(self._left._node, self._right._node)
        return self._left._then(KeyedNode(pair, named, bind, is_timed=True))


def _names(what: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    for key in keys or (None,):
        if not isinstance(key, str) or not key:
            raise BacklogError(f"{what} was given {described(key)}.", f"Pass names of columns: .{what}('id').")
    return keys


def check_windows(assigner: Any) -> None:
    """Refuse anything but windows."""
    from backlog_spark.operators.windows.assigners import WindowAssigner

    if not isinstance(assigner, WindowAssigner):
        raise BacklogError(
            f"window was given {described(assigner)}.", 'Pass windows: bs.TumblingEventTimeWindows.of("1 minute").'
        )


@dataclass(frozen=True)
class ConnectedStreams(Guided, Generic[Stream]):
    """Two keyed streams. One function with one state processes their rows of a key."""

    _habits = PAIRED

    _left: Keyed[Stream, Any]
    _right: Keyed[Stream, Any]

    def process(self, function: KeyedCoProcessFunction, *, name: str = "") -> Stream:
        """Process rows of both streams with a function that has state, timers and side outputs.

        In backlog, with an interval during backlog of 0, a key's rows come when both streams have left backlog, in the
        order given to ``key_by``; see `KeyedStream.process`.

        Parameters
        ----------
        function : KeyedCoProcessFunction
        name : str, optional
            Name of the operator's state. Default: made of the keys and the function's class.
        """
        from backlog_spark.operators.process.co_functions import KeyedCoProcessFunction

        if not isinstance(function, KeyedCoProcessFunction):
            raise BacklogError(
                f"process was given {described(function)}.",
                "Pass an instance of a subclass of KeyedCoProcessFunction.",
            )
        left, right = self._left, self._right
        named = state_name(name or "_".join([*left._keys, type(function).__name__]))
        return left._stream._then(_connected(left, right, function, named))


def _connected(left: Keyed[Any, Any], right: Keyed[Any, Any], function: KeyedCoProcessFunction, name: str) -> KeyedNode:
    """The node that gives a function the rows of two keyed streams."""
    what = type(function).__name__
    orders = (left._order, right._order)
    if (left._order is None) != (right._order is None):
        raise BacklogError(
            f"connect: one stream is ordered by {left._order or right._order} and the other is not.",
            "Give key_by an order on both sides, or on neither.",
        )

    def keyed(frame: DataFrame) -> DataFrame:
        return _with_keys(frame, two_sides(what, frame.schema, left._keys, right._keys)[:2], orders)

    def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
        from backlog_spark.operators.process.fold import ProcessFold

        sides = two_sides(what, schema, left._keys, right._keys)[:2]
        order = None if left._order is None else _ORDER
        return ProcessFold(left._keys, function._bound(sides), schema, key_groups, order=order, control_first=is_first)

    pair = TransformNode(pair_of(left._stream._node, right._stream._node), keyed)
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


@dataclass(frozen=True)
class IntervalJoin(Guided, Generic[Joined]):
    """Two keyed streams; rows with close event times are joined."""

    _habits = PAIRED

    _left: Keyed[Any, Joined]
    _right: Keyed[Any, Joined]
    _how: str = "inner"
    _cuts: bool = False

    def between(
        self,
        lower: str | timedelta,
        upper: str | timedelta,
        *,
        lower_exclusive: bool = False,
        upper_exclusive: bool = False,
        name: str = "",
    ) -> Joined:
        """Join each left row with the right rows of its key from ``left time + lower`` to ``left time + upper``.

        Parameters
        ----------
        lower, upper : str or timedelta
            Such as ``"-5 seconds"`` and ``"10 minutes"``; whole milliseconds.
        lower_exclusive, upper_exclusive : bool
            Whether the bound itself is excluded. Default false.
        name : str, optional
            Name of the operator's state. Default: made of the keys.

        Returns
        -------
        IntervalJoined
            A stream of the left stream's columns, then the right one's; a key of the same name in both comes once. Its
            ``process`` gives the pairs to a function instead.
        """
        from backlog_spark.operators.joins.interval import IntervalJoinFold
        from backlog_spark.operators.joins.process import ProcessedIntervalJoinFold

        least, greatest = signed_duration(lower, "lower bound"), signed_duration(upper, "upper bound")
        left, right, how, cuts = self._left, self._right, self._how, self._cuts

        def joined(function: ProcessJoinFunction | None) -> KeyedNode:
            kind = IntervalJoinFold if function is None else partial(ProcessedIntervalJoinFold, function)

            def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
                return kind(
                    schema, left._keys, right._keys, least, greatest, key_groups, how=how,
                    lower_exclusive=lower_exclusive, upper_exclusive=upper_exclusive, control_first=is_first, cuts=cuts,
                )  # fmt: skip

            return KeyedNode(pair, named, bind, is_timed=True)

        named = state_name(name or "_".join([*left._keys, "interval_join"]))
        pair = pair_of(*(with_changes(each._stream._node, IMPLIED) for each in (left, right)))
        return left._stream._then_joined(joined)


def temporal_join(
    probe: Rows[Stream, Any],
    build: Rows[Stream, Any],
    *,
    on: str | Sequence[str],
    build_on: str | Sequence[str] | None,
    how: str,
    order: str | None,
    as_of: str | None,
    wait: bool,
    name: str,
) -> Stream:
    """See `BacklogStream.temporal_join`."""
    from backlog_spark.operators.joins.temporal import TemporalJoinFold
    from backlog_spark.operators.joins.versioned import VersionedJoinFold

    if not isinstance(build, Rows):
        raise BacklogError(
            f"temporal_join was given {described(build)}.", 'Pass a stream: clicks.temporal_join(users, on="id").'
        )
    if as_of is not None and order is not None:
        raise BacklogError(
            f"temporal_join: order={order!r} together with as_of={as_of!r}.",
            "Leave order out: versions are ordered by the build side's event time.",
        )
    check_kind(how, TEMPORAL, "temporal join")
    for setting, names in (("on", on), ("build_on", build_on)):
        if names is not None and not (names and all(names)):
            raise SettingError(setting, names, "names no column.", f"Name the key columns, such as {setting}='id'.")
    characteristics = watermark_characteristics([probe._node, build._node])
    kind = choose_temporal_join(characteristics, event_time=as_of is not None, wait=wait)
    left = (on,) if isinstance(on, str) else tuple(on)
    right = left if build_on is None else (build_on,) if isinstance(build_on, str) else tuple(build_on)

    def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
        if as_of is not None:
            return VersionedJoinFold(schema, left, right, key_groups, as_of=as_of, how=how, control_first=is_first)
        return TemporalJoinFold(schema, left, right, key_groups, how=how, order=order, wait=waits)

    pair = pair_of(*(with_changes(each._node, IMPLIED) for each in (probe, build)))
    named = state_name(name or "_".join([*left, "temporal_join"]))
    waits = kind is TemporalJoinKind.WAITING
    return probe._then(KeyedNode(pair, named, bind, is_timed=True, waits_for_build=waits))


def signed_duration(value: str | timedelta, what: str) -> int:
    """Milliseconds, which may be negative.

    Raises
    ------
    SettingError
        For a value that is not a duration.
    """
    if isinstance(value, timedelta):
        return -parse_duration(-value, what) if value < timedelta(0) else parse_duration(value, what)
    minus = re.match(r"\s*-", value) if isinstance(value, str) else None
    return -parse_duration(value[minus.end() :], what) if minus else parse_duration(value, what)
