"""The writer of a stream: sets how a query runs and where its rows go, and starts it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from backlog_spark.common.failure_causes import with_next_step
from backlog_spark.common.familiar_names import WRITER, Guided, described
from backlog_spark.common.intervals import INTERVAL_OPTIONS, resolve_intervals
from backlog_spark.common.option_text import option_text
from backlog_spark.decide.rules import UserRule, check_user_rule
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.base import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.model.nodes import Node
    from backlog_spark.runner.query import BacklogQuery

__all__ = ["BacklogStreamWriter"]

_TRIGGERS = (
    "Write .trigger(processing_time='30 seconds', interval_during_backlog='30 minutes'), or "
    ".trigger(available_now=True) to read the present data and end."
)


class BacklogStreamWriter(Guided):
    """Sets how a query runs; `start` begins it. The counterpart of Spark's ``DataStreamWriter``."""

    _habits = WRITER

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name
        self._intervals: dict[str, object] = {}
        self._available_now = False
        self._options: dict[str, str] = {}
        self._sinks: dict[str, list[Sink]] = {}
        self._own_rule: UserRule | None = None

    def trigger(
        self,
        *,
        processing_time: str | timedelta | None = None,
        interval_during_backlog: str | int | timedelta | None = None,
        available_now: bool = False,
    ) -> BacklogStreamWriter:
        """Set the commit intervals. The arguments may have Spark's names: ``processingTime``, ``availableNow``.

        Parameters
        ----------
        processing_time : str or timedelta, optional
            Normal interval between commits. Default: ``spark.backlog.interval``, else the next batch starts
            as soon as the last is done.
        interval_during_backlog : str, 0 or timedelta, optional
            Interval while any source is processing backlog: 0, or at least ``processing_time`` (FLIP-309).
            Batches are sized to take this long; 0 puts the whole backlog into one batch. Default:
            ``spark.backlog.intervalDuringBacklog``, else off.
        available_now : bool
            Read the present data, then end. Default false.

        Raises
        ------
        SettingError
            For a value that is not a duration, and for an interval during backlog above 0 that is shorter than
            ``processing_time``.
        """
        intervals = {"interval": processing_time, "interval_during_backlog": interval_during_backlog}
        self._intervals.update({name: value for name, value in intervals.items() if value is not None})
        resolve_intervals(self._intervals, {}, ())
        self._available_now = bool(available_now)
        return self

    def backlog_when(self, rule: UserRule) -> BacklogStreamWriter:
        """Let a function of yours say whether the streaming DataFrames are in backlog; without any, the sources.

        What a source has not read after a batch is backlog while the function says so, or the source itself does.

        Parameters
        ----------
        rule : callable
            Called on the driver after each batch, with its `backlog_spark.decide.reports.ProgressReport`: rows, offsets
            and newest offsets of the sources, and the watermark. Returns True, False, or None if it does not know.
            It counts beside the rules of ``spark.backlog.rule.*``: one that says backlog is enough. An exception or
            another value ends the query.

        Raises
        ------
        SettingError
            For anything but a callable.
        """
        check_user_rule(rule)
        self._own_rule = rule
        return self

    def option(self, key: str, value: object) -> BacklogStreamWriter:
        """Set an option of the query; ``checkpointLocation`` is required.

        Raises
        ------
        SettingError
            For an interval, which `trigger` sets.
        """
        if key.lower() in {name.lower() for name in INTERVAL_OPTIONS}:
            raise SettingError(key, value, "is an option of sources, not of a query.", _TRIGGERS)
        self._options[key] = option_text(key, value)
        return self

    def to(self, sink: Sink, *, side_output: str = "") -> BacklogStreamWriter:
        """Add a sink to an output.

        An output may have several: each batch is computed once and written to all of them, in their order. Each has its
        own transactions. If one fails, the query fails, and its next run writes the batch to the sinks that lack it.

        Parameters
        ----------
        sink : Sink
        side_output : str, optional
            Name of a side output of the last operator. Default: the main output.

        Raises
        ------
        BacklogError
            For anything but a sink, such as a path.
        """
        fits = isinstance(sink, Sink)
        if not fits:
            path = f"{sink!r:.200}" if isinstance(sink, str) else "'/lake/table'"
            raise BacklogError(
                f"to was given {described(sink)}, which is not a sink.",
                f".to(bs.DeltaAppend({path})) adds all rows to a Delta table, .to(bs.DeltaUpsert({path}, keys=['id'])) "
                "keeps the newest row of each key in one. For other targets write a subclass of bs.Sink.",
            )
        if any(sink is other for other in self._sinks.get(side_output, ())):
            raise BacklogError(f"to was given {sink!r} twice.", "Each target is a sink of its own.")
        self._sinks.setdefault(side_output, []).append(sink)
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
            Before any row is read, for settings, servers, tables, checkpoints or targets that cannot work.
        """
        from pyspark.sql import SparkSession

        from backlog_spark.runner.assembly import assemble
        from backlog_spark.runner.query import BacklogQuery
        from backlog_spark.spark.jvm.session import check_session

        session: Any = spark or SparkSession.getActiveSession()
        check_session(session)
        if "" not in self._sinks:
            raise BacklogError(f"The query {self._name!r} has no sink.", "Add .to(bs.DeltaUpsert(path, keys=[…])).")
        location = next((v for k, v in self._options.items() if k.lower() == "checkpointlocation"), None)
        if not location:
            raise SettingError(
                "checkpointLocation", location, "a query needs one: a restart continues from it.",
                'Add .option("checkpointLocation", path).',
            )  # fmt: skip
        with with_next_step(f"Query {self._name!r} could not be started"):
            parts = assemble(
                session,
                self._node,
                self._sinks,
                name=self._name,
                checkpoint_location=location,
                intervals=self._intervals,
                available_now=self._available_now,
                options=self._options,
                own_rule=self._own_rule,
            )
            return BacklogQuery(parts)._launch()
