"""Runs phases of Spark's own readers as one query on one checkpoint: files or Delta first, then Kafka, at JVM speed.

Each phase is a run of the query with only that phase's source. Bounded phases end by themselves (``availableNow``); the
last one continues. Spark allows the sources of a checkpoint to change if they are named and the offset log has format
2, which stores offsets by name. Both settings are made while such a source is loaded
(`backlog_spark.spark.foreign.named_sources`) and for such a query (`backlog_spark.spark.jvm.own_settings`).

Source: Spark 4.2, ``spark.sql.streaming.queryEvolution.enableSourceEvolution``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial, partialmethod
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.readwriter import to_str
from pyspark.sql.streaming import DataStreamReader

from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.stored_values import check_version
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.native.phase_handoff import FILES, Handover, Reread
from backlog_spark.spark.checkpoint.offset_log import add_shuffle_partitions
from backlog_spark.spark.foreign.kafka_admin import JvmKafkaAdmin, kafka_admin
from backlog_spark.spark.foreign.named_sources import CONF, NamedSource
from backlog_spark.spark.jvm.session import check_session
from backlog_spark.spi.kafka_admin import AdminError
from backlog_spark.spi.registry import connector_module

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.native.run_context import RunContext
    from backlog_spark.spark.checkpoint.logs import Checkpoint

    Phase = Callable[[DataStreamReader, "RunContext"], "DataFrame"]

__all__ = ["CONF", "NativeHybrid", "hybrid", "pinned", "starting_offsets"]

_METADATA = "phases"
_PARTITIONS = "spark.sql.shuffle.partitions"
_VERSION = 1
_ADVICE: Final = (
    'bs.hybrid runs Spark\'s own readers, one phase after the other. Take bs.source("hybrid"), the default for files, '
    "then Kafka, unless reading the files then takes too long, or only Spark reads their format."
)
_KAFKA = "org.apache.spark.sql.kafka010.kafkasourceprovider"
# Of Spark's Kafka source: where it begins.
_STARTING_OPTIONS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")


@checked_arguments
def hybrid(
    spark: SparkSession,
    name: str,
    *,
    phases: Mapping[str, Phase],
    timestamp_column: str = "",
    starting_overlap: str | int | timedelta = 0,
    dedup_key: str | Sequence[str] = (),
    allow_empty: bool = False,
) -> NativeHybrid:
    """Declare phases of Spark's own readers, for `backlog_query`.

    Parameters
    ----------
    spark : SparkSession
    name : str
        Name of the source.
    phases : mapping of str to callable
        The phases in order: name, and a function that makes the DataFrame. The function gets a ``DataStreamReader``
        and the `RunContext`. It is called at the start of each run, and once more at the query's first start. All
        phases must give the same columns. All but the last are read up to the data present when their run starts.
    timestamp_column : str, optional
        Column of type timestamp or timestamp_ntz (then UTC) with a row's time. The last phase gets the newest time of
        the earlier phases as ``ctx.starting_timestamp``. For this each phase of files or Delta is read again after its
        end, this column only.
    starting_overlap : str, int or timedelta, default 0
        How much earlier than the newest time ``ctx.starting_timestamp`` is.
    dedup_key : str or sequence of str, optional
        Columns that, together with ``timestamp_column``, match rows of the last phase to rows of earlier phases.
        Matching rows are dropped. A row with the same key and another time is another version, and stays. The
        checkpoint keeps keys and times within the overlap. A key that contains NULL is never de-duplicated.
    allow_empty : bool, default False
        Whether a phase of files may find no file, for example because a pattern matches nothing. By default the query
        then fails before the next phase begins.

    Returns
    -------
    NativeHybrid
        Pass it as ``source`` to `backlog_query`; ``build`` gets the present phase's DataFrame as ``ctx.frame``.

    Raises
    ------
    BacklogError
        For fewer than two phases, for a name that Spark does not accept for a source, and for an overlap or a key
        without a ``timestamp_column``.
    """
    check_session(spark)
    if len(phases) < 2:
        raise BacklogError(
            f"bs.hybrid was given {len(phases)} phases.",
            "Give it two or more. A single phase needs no hybrid.",
        )
    for text in (name, *phases):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text):
            raise SettingError(
                "phases", text, "is not a valid source name.", "Use letters, digits and _, a letter first."
            )
    keys = (dedup_key,) if isinstance(dedup_key, str) else tuple(dedup_key)
    overlap_ms = parse_duration(starting_overlap, "starting_overlap")
    if (keys or overlap_ms) and not timestamp_column:
        setting, value = ("dedup_key", keys) if keys else ("starting_overlap", starting_overlap)
        raise SettingError(setting, value, "needs a timestamp_column.", "Name the column with a row's time.")
    return NativeHybrid(spark, name, phases, Handover(timestamp_column, overlap_ms, keys), allow_empty)


class _Named(DataStreamReader):
    """The reader of a phase. Spark checks `CONF` while it loads a source, so that happens in a copy of the session.

    Parameters
    ----------
    spark : SparkSession
    starts : callable, optional
        Takes the options of a Kafka source, names in lower case, and returns its ``startingOffsets``; "" keeps them.
    """

    def __init__(self, spark: SparkSession, starts: Callable[[Mapping[str, str]], str] | None = None) -> None:
        super().__init__(spark)
        self.source_format = str(spark.conf.get("spark.sql.sources.default"))
        self._source = NamedSource(spark)
        self._source.reads_by(self)
        self._starts = starts
        self._given: dict[str, str] = {}
        self._starting: dict[str, str] = {}  # not passed on yet: an option cannot be removed again
        self.loaded = False

    def format(self, source: str) -> _Named:
        self.source_format = source.lower()
        super().format(source)
        return self

    def option(self, key: str, value: Any) -> _Named:
        text = to_str(value)
        if text is None or key.lower() not in _STARTING_OPTIONS:
            super().option(key, value)
        else:
            self._starting[key] = text
        if text is not None:
            self._given[key.lower()] = text
        return self

    def options(self, **options: Any) -> _Named:
        for key, value in options.items():
            self.option(key, value)
        return self

    @property
    def kafka(self) -> dict[str, str] | None:
        """The options of Spark's Kafka source, names in lower case; None for another source."""
        return self._given if self.source_format in ("kafka", _KAFKA) else None

    def _load(self, method: str, *args: Any, **options: Any) -> DataFrame:
        if method in FILES:
            self.source_format = method
        if method == "load":
            path, source, schema = (*args, None, None, None)[:3]
            if (source := options.pop("format", source)) is not None:
                self.format(source)
            if (schema := options.pop("schema", schema)) is not None:
                self.schema(schema)
            path = options.pop("path", path)
            self.options(**options)
            args, options = (() if path is None else (path,)), {}
        if self._starts is not None and self.kafka is not None and (offsets := self._starts(self.kafka)):
            self._starting = {"startingOffsets": offsets}
        for key, value in self._starting.items():
            super().option(key, value)
        load = getattr(super(), method)
        made = self._source.load(lambda: load(*args, **options))
        self.loaded = True
        return made


for _method in ("load", "table", "changes", "parquet", "orc", "json", "csv", "text", "xml"):
    setattr(_Named, _method, partialmethod(_Named._load, _method))


class NativeHybrid:
    """Phases of Spark's own readers; see `hybrid`."""

    def __init__(
        self, spark: SparkSession, name: str, phases: Mapping[str, Phase], handover: Handover, allow_empty: bool
    ) -> None:
        self._spark = spark
        self._allow_empty = allow_empty
        self._is_of_files = False  # the present phase
        self.name = name
        self._phases = dict(phases)
        self._handover = handover
        self._reached_us: int | None = None
        self._shape: list[tuple[str, str]] = []  # columns and types of all phases
        self._kafka: dict[str, dict[str, str] | None] = {}  # options of Kafka phases, None for other phases
        # For Kafka phases: the state of their topics at the first start, before the present phase listed its files, and
        # before the phase with the newest row did.
        self._pins: dict[str, Any] = {}
        self._listed: dict[str, Any] = {}
        self._reached: dict[str, Any] = {}

    def _of_query(self) -> NativeHybrid:
        """The same phases for one query. Its state, such as the newest time, is not shared with other queries."""
        return NativeHybrid(self._spark, self.name, self._phases, self._handover, self._allow_empty)

    @property
    def phases(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self._phases)

    def _explained(self, phase: int) -> list[str]:
        """The phases and the present one, for `backlog_spark.explain`, and when to take the other hybrid source."""
        return [f"phases of {self.name}: {', '.join(self.phases)}; now {self.phases[phase]}", f"  * {_ADVICE}"]

    @property
    def _starting_timestamp(self) -> int | None:
        """Where the last phase begins, in milliseconds since 1970; None if unknown."""
        return self._handover.starting_ms(self._reached_us)

    def _frame(self, phase: int, context: RunContext, checkpoint: Checkpoint) -> DataFrame:
        """The streaming DataFrame of a phase. The session needs `CONF` when it starts."""
        name = self.phases[phase]
        is_new = phase > 0 and checkpoint.read_file(f"sources/{self._source(name)}/0") is None
        reader = _Named(self._spark, partial(self._starts, name) if is_new else None)
        made = self._made(reader, name, context)
        self._is_of_files = reader.source_format in FILES
        before = len(self._phases) - 1
        is_first = phase == 0 and checkpoint.latest_batch() is None
        if is_first or (phase < before and self._handover.column):
            # Each run lists files again. Records that reach a topic from here on may be in no file.
            self._listed = self._pinned(phase, context)
            if is_first:
                self._pins = self._pins or self._listed
            self._enter(checkpoint, phase)
        if phase < before:
            return made
        return self._handover.without_known(self._spark, checkpoint, before, made, self._reached_us)

    def _made(self, reader: _Named, name: str, context: RunContext) -> DataFrame:
        made = self._phases[name](reader.name(self._source(name)), context)
        if not getattr(made, "isStreaming", False):
            raise BacklogError(
                f"The phase {name} of {self.name} did not return a streaming DataFrame.",
                "Make it with the reader that the function gets.",
            )
        if not reader.loaded:
            raise self._made_otherwise(name)
        shape = [(f.name, f.dataType.simpleString()) for f in made.schema]
        if shape != (self._shape or shape):
            raise BacklogError(
                f"The phase {name} of {self.name} has the columns {dict(shape)}, the one before {dict(self._shape)}.",
                "Select and cast, so that all phases have the same columns.",
            )
        self._shape = shape
        self._handover.check(name, made)
        return made

    def _pinned(self, phase: int, context: RunContext) -> dict[str, Any]:
        """The present state of the topics of later phases. Each later phase is built once for it."""
        later = self.phases[phase + 1 :]
        for name in later:
            if name not in self._kafka:
                reader = _Named(self._spark)
                self._made(reader, name, replace(context, phase=name, starting_timestamp=None))
                self._kafka[name] = reader.kafka
        return {name: pinned(self._spark, options) for name in later if (options := self._kafka[name]) is not None}

    def _starts(self, name: str, options: Mapping[str, str]) -> str:
        """Where a Kafka phase begins that has not begun yet."""
        reached_ms = None if self._reached_us is None else self._reached_us // 1000
        return starting_offsets(self._spark, options, self._pins.get(name), reached_ms, self._reached.get(name))

    def _source(self, phase: str) -> str:
        """Name of a phase's source. Spark keeps its offsets and its log of files under this name."""
        return f"{self.name}_{phase}"

    def _recall(self, checkpoint: Checkpoint) -> int:
        """The phase that a checkpoint is in; 0 for a new checkpoint.

        Raises
        ------
        BacklogError
            If the checkpoint belongs to something else.
        """
        checkpoint.finish_replacing()  # otherwise the log has a hole, and Spark would plan a batch again
        found = checkpoint.newest_metadata(_METADATA)
        handover = self._handover.to_json()
        if checkpoint.latest_batch() is None:  # nothing has been read, so the user may still correct the phases
            # But if Spark has listed files already, it keeps to that list.
            is_listed = bool(checkpoint.names_in(f"sources/{self._source(self.phases[0])}"))
            self._pins = (found or {}).get("pins", {}) if is_listed else {}
            return 0
        if found is None:
            raise BacklogError(
                f"The checkpoint {checkpoint.location} was made by a query without phases.",
                "Start with a new checkpoint.",
            )
        check_phases_version(found)
        if (found["name"], found["phases"]) != (self.name, list(self._phases)):
            raise BacklogError(
                f"The checkpoint is about {found.get('name')} with the phases {found.get('phases')}; the query has "
                f"{self.name} with {list(self._phases)}.",
                "Use the phases that the query was started with, or a new checkpoint.",
            )
        if found.get("handover", {}) != handover:
            raise BacklogError(
                f"The checkpoint was made with the hand-over {found.get('handover', {})}; the query has {handover}.",
                "Use timestamp_column, starting_overlap and dedup_key as before, or a new checkpoint.",
            )
        self._reached_us = found.get("reachedMicros")
        self._pins, self._listed = found.get("pins", {}), found.get("listed", {})
        self._reached = found.get("reachedPins", {})
        return int(found["phase"])

    def _mend(self, checkpoint: Checkpoint) -> None:
        """Complete the log entry of a batch that was planned but not committed. Called before each start."""
        add_shuffle_partitions(checkpoint, str(self._spark.conf.get(_PARTITIONS)))

    def _leave(self, checkpoint: Checkpoint, phase: int, context: RunContext) -> None:
        """Record the hand-over of a phase that has ended, and that the next phase begins.

        Called after the phase's last run. After a crash in between it is called again.

        Raises
        ------
        BacklogError
            If the phase has found no file, and that is not allowed.
        """
        name, make = list(self._phases.items())[phase]
        reread = Reread(self._spark, checkpoint, self._source(name), name)
        if self._is_of_files and not self._allow_empty and not reread.files():
            raise BacklogError(
                f"The phase {name} of {self.name} has found no file to read.",
                "Correct its path or pattern and start again; the next phase has read nothing. If there may be no "
                "history, pass bs.hybrid(…, allow_empty=True).",
            )
        if self._handover.column:
            again = make(reread, context)  # type: ignore[arg-type]
            if again.isStreaming:
                raise self._made_otherwise(name)
            newest = self._handover.take(checkpoint, phase, again, self._reached_us)
            if newest != self._reached_us:
                self._reached_us, self._reached = newest, self._listed
        self._enter(checkpoint, phase + 1)

    def _made_otherwise(self, phase: str) -> BacklogError:
        return BacklogError(
            f"The phase {phase} of {self.name} was not made with the reader that the function got.",
            "Use that reader: it names the source, and with timestamp_column it reads the phase's rows again.",
        )

    def _enter(self, checkpoint: Checkpoint, phase: int) -> None:
        """Record that a phase begins. Called before its first run, after the end of the run before."""
        value = {"version": _VERSION, "name": self.name, "phases": list(self._phases), "phase": phase}
        if self._handover.column:
            value |= {"handover": self._handover.to_json(), "reachedMicros": self._reached_us}
        pins = {"pins": self._pins, "listed": self._listed, "reachedPins": self._reached}
        value |= {key: found for key, found in pins.items() if found}
        checkpoint.replace_metadata(_METADATA, value)


def check_phases_version(found: Mapping[str, Any]) -> None:
    """Refuse what another version of backlog_spark keeps of the phases."""
    check_version(f"backlog/{_METADATA}-<n>.json of the checkpoint", found.get("version"), _VERSION)


def pinned(spark: SparkSession, options: Mapping[str, str]) -> dict[str, Any]:
    """The present state of the topics that is needed later; see ``connectors.hybrid.kafka.native_starts``."""
    with _admin(spark, options) as (rules, admin):
        found: dict[str, Any] = rules.pinned(admin, options)
        return found


def starting_offsets(
    spark: SparkSession,
    options: Mapping[str, str],
    pin: Mapping[str, Any] | None,
    reached_ms: int | None,
    listed: Mapping[str, Any] | None = None,
) -> str:
    """The ``startingOffsets`` of a phase that begins now; see ``connectors.hybrid.kafka.native_starts``."""
    with _admin(spark, options) as (rules, admin):
        found: str = rules.starting_offsets(admin, options, pin, reached_ms, listed)
        return found


@contextmanager
def _admin(spark: SparkSession, options: Mapping[str, str]) -> Iterator[tuple[Any, JvmKafkaAdmin]]:
    rules = connector_module("hybrid", "kafka.native_starts")
    try:
        with kafka_admin(spark, options) as admin:
            yield rules, admin
    except AdminError as error:
        raise rules.failed(options, error) from None
