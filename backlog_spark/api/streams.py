"""Sources and streams: the steps that a user chains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from backlog_spark.api.keyed_streams import KeyedStream
from backlog_spark.api.paired_streams import CoGroupedStreams, temporal_join
from backlog_spark.api.rows import Rows
from backlog_spark.api.writer import BacklogStreamWriter
from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import STREAM, checked_arguments, described
from backlog_spark.common.option_text import option_text
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import ASKED, CHANGE_TYPE, lost_change_type
from backlog_spark.model.nodes import (
    FrameNode,
    Node,
    SourceNode,
    SourceSpec,
    TransformNode,
    UnionNode,
    WatermarkNode,
)
from backlog_spark.model.plan_checks import check_no_clock
from backlog_spark.model.trees import sources_of, with_changes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from backlog_spark.operators.joins.process import ProcessJoinFunction


__all__ = ["BacklogStream", "IntervalJoined", "source", "stream"]


@checked_arguments
def source(format: str, /, *, name: str, options: Mapping[str, object] | None = None, **more: object) -> BacklogStream:
    """Declare a source of a query.

    Parameters
    ----------
    format : str
        ``"mysql_cdc"``, or any streaming format that Spark knows.
    name : str
        Name of the source in the query's reports.
    options : mapping, optional
        Options whose names are not Python identifiers, such as ``startup.mode``.
    **more
        Further options of the format, also one that is named ``format``. A value is a text, number, duration, PySpark
        schema, or a list of them; a list is joined by commas. None leaves the option out.

    Returns
    -------
    BacklogStream

    Examples
    --------
    >>> import backlog_spark as bs
    >>> orders = bs.source("mysql_cdc", name="orders", host="db", user="reader", table="shop.orders")
    >>> orders
    BacklogStream(orders: mysql_cdc)
    """
    if not name or not isinstance(name, str):
        raise SettingError(
            "name", name, "a source needs a name for reports.",
            f'For example bs.source("{format}", name="orders", …).',
        )  # fmt: skip
    given = {k: option_text(k, v) for k, v in {**(options or {}), **more}.items() if v is not None}
    return BacklogStream(SourceNode(SourceSpec(format, name, given)))


@checked_arguments
def stream(frame: DataFrame, *, use_processing_time: bool = False) -> BacklogStream:
    """Make a `BacklogStream` from a streaming DataFrame.

    Parameters
    ----------
    frame : DataFrame
        Made with ``spark.readStream``, without stateful operations of Spark.
    use_processing_time : bool
        Its rows are live, and event time follows the system time (FLIP-326). Default false: nothing is known about it,
        so its `WatermarkCharacteristic` is ``UNDEFINED``.

    Raises
    ------
    BacklogError
        If it is not a stream.
    """
    from backlog_spark.spark.jvm.session import refuse_spark_connect

    refuse_spark_connect(frame)
    if not getattr(frame, "isStreaming", False):
        raise BacklogError(
            f"bs.stream needs a streaming DataFrame, but was given {described(frame)}.",
            "Make it with spark.readStream.",
        )
    return BacklogStream(FrameNode(frame, use_processing_time))


def _refuse_unless(fits: bool, method: str, value: object, hint: str) -> None:
    if not fits:
        raise BacklogError(f"{method} was given {described(value)}.", hint)


def _is_column(value: object) -> bool:
    from pyspark.sql import Column

    return bool(value.strip()) if isinstance(value, str) else isinstance(value, Column)


class BacklogStream(Rows["BacklogStream", "IntervalJoined"]):
    """A stream of rows: sources and steps over them. Immutable; nothing runs before `write` … ``start()``."""

    _habits = STREAM

    def _then(self, node: Node) -> BacklogStream:
        """A stream with another node. Operators make their result with it."""
        return BacklogStream(node)

    def _then_joined(self, joined: Callable[[ProcessJoinFunction | None], Node]) -> IntervalJoined:
        """The stream of an interval join."""
        return IntervalJoined(joined)

    @property
    def sources(self) -> tuple[SourceSpec, ...]:
        """The sources that were declared with `source`."""
        return tuple(sources_of(self._node))

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> BacklogStream:
        """Apply ``function`` to the DataFrame at each start of the query: a streaming one, or one backlog batch.

        Parameters
        ----------
        function : callable
            Takes and returns a DataFrame. Stateless operations only, and the same ones at every call. It may add and
            remove rows, so a sink no longer relies on a unique key of the source.
        """
        _refuse_unless(callable(function), "transform", function, "Pass a function: .transform(lambda df: df.…).")
        return BacklogStream(TransformNode(self._node, function))

    def map(self, *columns: Column | str) -> BacklogStream:
        """Select columns of each row, like ``DataFrame.select``; texts are SQL expressions.

        The change type of a keyed operator (`changes`) stays, even if it is not named.
        """
        for column in columns or (None,):
            _refuse_unless(
                _is_column(column), "map", column,
                "Pass columns or SQL expressions: .map('id', 'amount * 2 AS twice'). Python code over rows goes into "
                ".transform(lambda df: df.mapInArrow(…)), or after key_by into .process(function).",
            )  # fmt: skip

        def select(frame: DataFrame) -> DataFrame:
            from pyspark.sql import functions as F

            # Not before: it needs a session.
            chosen = [F.expr(c) if isinstance(c, str) and c != "*" else c for c in columns]
            made = frame.select(*chosen)
            lost = lost_change_type(frame.schema, made.schema)
            return made if lost is None else frame.select(*chosen, CHANGE_TYPE)

        return BacklogStream(TransformNode(self._node, select, f"map {', '.join(map(str, columns))}"))

    def filter(self, condition: Column | str) -> BacklogStream:
        """Keep the rows for which the condition is true."""
        _refuse_unless(_is_column(condition), "filter", condition, "Pass SQL or a Column: .filter('amount > 0').")
        return BacklogStream(TransformNode(self._node, lambda frame: frame.where(condition), f"filter {condition}"))

    def union(self, *others: BacklogStream) -> BacklogStream:
        """All rows of several streams with the same columns."""
        for other in others or (None,):
            _refuse_unless(
                isinstance(other, BacklogStream), "union", other,
                "Pass streams: a.union(b, c). A streaming DataFrame becomes one with bs.stream(df).",
            )  # fmt: skip
        return BacklogStream(UnionNode((self._node, *(o._node for o in others))))

    def with_watermark(
        self, column: str, delay: str | timedelta, *, idle_timeout: str | timedelta | None = None
    ) -> BacklogStream:
        """Set the event-time column, for timers and late rows. Call it before the first `key_by`.

        Parameters
        ----------
        column : str
            A timestamp column. Rows in which it is NULL are never late.
        delay : str or timedelta
            How far behind the greatest time a row may come, such as ``"10 seconds"``. The watermark is the greatest
            time so far minus the delay and a millisecond; with several inputs the least one. A row is late when its
            time is at or before the watermark of its batch. During backlog, with an interval during backlog of 0,
            there is no watermark; in a later stay it does not move. At the switch the greatest watermark of the
            backlog is applied (FLIP-327).
        idle_timeout : str or timedelta, optional
            After this time without rows, by the driver's clock, the stream is idle and holds back no watermark that it
            shares with others. Default: never idle. A source that has come to its end (FLIP-147) holds back nothing.

        Raises
        ------
        SettingError
            For a delay that is not a duration.
        BacklogError
            If the event time of a source already follows the system time. For a declared source, when the query starts.
        """
        delay_ms = parse_duration(delay, "with_watermark delay")
        idle_ms = None if idle_timeout is None else parse_duration(idle_timeout, "with_watermark idle_timeout")
        mark = WatermarkNode(self._node, column, delay_ms, idle_ms)
        check_no_clock(mark)
        return BacklogStream(mark)

    def key_by(self, *keys: str, order: str | None = None) -> KeyedStream[BacklogStream, IntervalJoined]:
        """Group rows by key, for the keyed operators.

        Parameters
        ----------
        keys : str
            Columns of atomic types. NULL is a key like any other.
        order : str, optional
            A column that orders a key's rows, for operators that depend on the first row: ``_commit_seq`` of
            ``mysql_cdc``, an event's time, an offset.
        """
        if not keys:
            raise BacklogError("key_by needs at least one column.", "For example .key_by('user_id').")
        for key in keys:
            _refuse_unless(
                isinstance(key, str) and bool(key), "key_by", key,
                "Pass names of columns: .key_by('user_id', 'day'). Compute a key before, such as "
                ".map('*', 'date(ts) AS day').",
            )  # fmt: skip
        return KeyedStream(self, keys, order)

    def changes(self) -> BacklogStream:
        """Emit changing results as a change stream, with ``_change_type`` as in Delta's change data feed.

        Without this an aggregate or a reduce emits only a key's newest result. With it the earlier result is emitted
        too, as ``update_preimage``, and the newest as ``insert`` or ``update_postimage``. So a filter after it is
        right: if only the earlier result passes, the row is retracted. Streams whose rows are only added do not change.
        """
        return BacklogStream(with_changes(self._node, ASKED))

    def co_group(self, other: BacklogStream) -> CoGroupedStreams[BacklogStream]:
        """Give a function the rows of two streams that share a key and a window.

        ``a.co_group(b).where("id").equal_to("id").window(bs.EndOfStreamWindows.get()).apply(function)``.
        """
        _refuse_unless(isinstance(other, BacklogStream), "co_group", other, "Pass a stream: a.co_group(b).")
        return CoGroupedStreams(self, other)

    def temporal_join(
        self,
        build: BacklogStream,
        *,
        on: str | Sequence[str],
        build_on: str | Sequence[str] | None = None,
        how: str = "left",
        order: str | None = None,
        as_of: str | None = None,
        wait: bool = True,
        name: str = "",
    ) -> BacklogStream:
        """Join each row once with another stream's row of its key: as of its processing, or as of its event time.

        The other stream is the build side. While it is processing backlog, rows wait. So no row is joined before the
        build side's snapshot is complete (FLIP-326). Later changes of the build side do not change emitted rows.

        With ``as_of`` a row is joined with the version of its key that is valid at its event time: the newest one at or
        before it. The row is emitted when the watermark of both streams has reached that time. A row of the build side
        is a version from its own event time on, such as ``_commit_timestamp``. A delete ends the version before it.
        ``update_preimage`` is ignored, so an update that changes a row's key does not end the old key's version. If a
        filter removes a version from the build side, the version before it stays valid.

        Parameters
        ----------
        build : BacklogStream
            A change stream, such as that of ``mysql_cdc``: its inserts, updates and deletes apply. Or a stream of
            newer and newer rows, with an ``order`` or ``as_of``. ``as_of`` needs an event time (`with_watermark`).
        on : str or sequence of str
            Key columns of this stream. NULL matches nothing.
        build_on : str or sequence of str, optional
            Key columns of the build side. Default: as ``on``.
        how : str, default "left"
            ``"left"``: a row without a match is emitted with NULLs. ``"inner"``: it is not emitted.
        order : str, optional
            Column that orders a key's rows on a build side that is not a change stream; the newest one counts. Not
            with ``as_of``.
        as_of : str, optional
            This stream's event time, the column of `with_watermark`. Late rows are counted and dropped. A NULL in
            either stream's event time fails the query. Default: rows are joined as they are processed.
        wait : bool, default True
            False: rows are joined with the build rows read so far, also while the build side is in backlog, like
            Flink's temporal table functions. At an interval during backlog of 0 nothing is emitted before the end of
            the backlog.
        name : str, optional
            Name of the operator's state. Default: made of the keys.

        Returns
        -------
        BacklogStream
            This stream's columns, then those of the build side. A key with the same name in both appears once. With
            ``as_of`` the result has this stream's event time.

        Raises
        ------
        BacklogError
            For ``order`` together with ``as_of``. If rows have to wait and a streaming DataFrame of either stream
            cannot report that it has left backlog (`WatermarkCharacteristic` ``UNDEFINED``). When the query starts:
            for a declared source that cannot report this, an ``as_of`` that is not this stream's event time, a build
            side without an event time, and if this stream is a change stream.
        """
        return temporal_join(
            self, build, on=on, build_on=build_on, how=how, order=order, as_of=as_of, wait=wait, name=name
        )

    def write(self, name: str) -> BacklogStreamWriter:
        """Begin a query.

        Parameters
        ----------
        name : str
            Query name, for Spark's UI and progress events.
        """
        if not name or not isinstance(name, str):
            raise SettingError("name", name, "a query needs a name.", "For example .write('orders').")
        return BacklogStreamWriter(self._node, name)

    def __repr__(self) -> str:
        return f"BacklogStream({', '.join(f'{s.name}: {s.format}' for s in self.sources)})"


class IntervalJoined(BacklogStream):
    """The pairs of an interval join, as rows of both sides' columns."""

    def __init__(self, joined: Callable[[ProcessJoinFunction | None], Node]) -> None:
        super().__init__(joined(None))
        self._joined = joined

    def process(self, function: ProcessJoinFunction) -> BacklogStream:
        """Give each pair to a function. Its output has the later of the two rows' times, as ``join_time``.

        Rows without a match have no such time, so the join must be inner. The state is that of the join alone.

        Parameters
        ----------
        function : ProcessJoinFunction
        """
        from backlog_spark.operators.joins.process import ProcessJoinFunction

        if not isinstance(function, ProcessJoinFunction):
            raise BacklogError(
                f"process was given {described(function)}.", "Pass an instance of a subclass of ProcessJoinFunction."
            )
        return BacklogStream(self._joined(function))
