"""What a user chains: sources, transformations, and the writer that starts a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.query import BacklogQuery

__all__ = ["BacklogStream", "BacklogStreamWriter", "SourceSpec", "source"]


@dataclass(frozen=True)
class SourceSpec:
    """A source that has not been loaded: the runner completes its options at each start.

    A Python source sees nothing but its options, no ``spark.conf`` and no checkpoint, so what it must know of
    the query is added there.
    """

    format: str
    name: str
    options: Mapping[str, str] = field(repr=False)

    def load(self, spark: SparkSession, more: Mapping[str, str | None]) -> DataFrame:
        """The streaming DataFrame, with the runner's options put over the user's."""
        lower = {k.lower() for k in more}
        kept = {k: v for k, v in self.options.items() if k.lower() not in lower}
        # None takes an option away: it has been taken care of elsewhere.
        given = {k: v for k, v in {**kept, **more}.items() if v is not None}
        return spark.readStream.format(self.format).options(**given).load()


def source(format: str, *, name: str, options: Mapping[str, object] | None = None, **more: object) -> BacklogStream:
    """Declare a source of a query.

    Parameters
    ----------
    format : str
        ``"mysql_cdc"``, or any streaming format that Spark knows.
    name : str
        Name of the source in the query's reports.
    options : mapping, optional
        Options whose names are no Python identifiers, such as ``startup.mode``.
    **more
        Further options of the format.

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
    if not name:
        raise SettingError(
            "name", name, "a source needs a name.", 'For example bs.source("mysql_cdc", name="orders", …).'
        )
    given = {k: _text(v) for k, v in {**(options or {}), **more}.items() if v is not None}
    return BacklogStream((SourceSpec(format, name, given),), lambda frame: frame, rows_as_read=True)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class BacklogStream:
    """A stream of rows: a source and what is done to it. Immutable; nothing runs before `write` … ``start()``."""

    def __init__(
        self, sources: tuple[SourceSpec, ...], build: Callable[[DataFrame], DataFrame], *, rows_as_read: bool
    ) -> None:
        self.sources = sources
        self._build = build
        self.rows_as_read = rows_as_read

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> BacklogStream:
        """Apply ``function`` to the streaming DataFrame at each start of the query.

        Parameters
        ----------
        function : callable
            Takes and returns a DataFrame; stateless operations only. Rows may come and go, so a sink no longer
            relies on the source's key being unique.
        """
        inner = self._build
        return BacklogStream(self.sources, lambda frame: function(inner(frame)), rows_as_read=False)

    def frame(self, spark: SparkSession, more: Mapping[str, str | None]) -> DataFrame:
        """The streaming DataFrame, for the runner."""
        return self._build(self.sources[0].load(spark, more))

    def write(self, name: str) -> BacklogStreamWriter:
        """Begin a query.

        Parameters
        ----------
        name : str
            Query name, shown in Spark's UI and in progress events.
        """
        return BacklogStreamWriter(self, name)

    def __repr__(self) -> str:
        return f"BacklogStream({', '.join(f'{s.name}: {s.format}' for s in self.sources)})"


class BacklogStreamWriter:
    """Collects how a query runs; `start` begins it. The counterpart of Spark's ``DataStreamWriter``."""

    def __init__(self, stream: BacklogStream, name: str) -> None:
        self._stream = stream
        self._name = name
        self._intervals: dict[str, object] = {}
        self._available_now = False
        self._options: dict[str, str] = {}
        self._sink: Sink | None = None

    def trigger(
        self,
        *,
        processing_time: str | timedelta | None = None,
        interval_during_backlog: str | int | timedelta | None = None,
        available_now: bool = False,
    ) -> BacklogStreamWriter:
        """Set the commit intervals.

        Parameters
        ----------
        processing_time : str or timedelta, optional
            Normal interval between commits. Default: ``spark.backlog.interval``, else the next batch starts
            as soon as the last is done.
        interval_during_backlog : str, 0 or timedelta, optional
            Interval while any source is processing backlog: 0, or at least ``processing_time`` (FLIP-309).
            Batches are sized to take this long; 0 puts the whole backlog into one. Default:
            ``spark.backlog.intervalDuringBacklog``, else off.
        available_now : bool
            Read what is there now, then end. Default false.
        """
        if processing_time is not None:
            self._intervals["interval"] = processing_time
        if interval_during_backlog is not None:
            self._intervals["interval_during_backlog"] = interval_during_backlog
        self._available_now = available_now
        return self

    def option(self, key: str, value: object) -> BacklogStreamWriter:
        """Set an option of the query; ``checkpointLocation`` is required."""
        self._options[key] = _text(value)
        return self

    def to(self, sink: Sink) -> BacklogStreamWriter:
        """Choose where batches go."""
        self._sink = sink
        return self

    def start(self, spark: SparkSession | None = None) -> BacklogQuery:
        """Check everything, then start the query.

        Parameters
        ----------
        spark : SparkSession, optional
            Default: the active session.

        Raises
        ------
        BacklogError
            Before any row is read, for whatever cannot work: settings, servers, tables, checkpoint, target.
        """
        from pyspark.sql import SparkSession

        from backlog_spark.query import BacklogQuery

        session: Any = spark or SparkSession.getActiveSession()
        if session is None:
            raise BacklogError("There is no active SparkSession.", "Create one, or call start(spark).")
        if self._sink is None:
            raise BacklogError(f"The query {self._name!r} has no sink.", "Add .to(bs.DeltaUpsert(path, keys=[…])).")
        location = next((v for k, v in self._options.items() if k.lower() == "checkpointlocation"), None)
        if not location:
            raise SettingError(
                "checkpointLocation", location, "a query needs one: it holds all that a restart needs.",
                'Add .option("checkpointLocation", path).',
            )  # fmt: skip
        return BacklogQuery(
            session,
            self._stream,
            self._sink,
            name=self._name,
            checkpoint_location=location,
            intervals=self._intervals,
            available_now=self._available_now,
            options=self._options,
        ).start()
