"""The options of the Kafka phase, each declared once (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import Option, duration, flag, integer, option, options_of, parsed, switch, text, values
from backlog_spark.spi.user_options import UserOptions, check_names

from .backlog import OffsetThresholds
from .offsets import EARLIEST, LATEST, Partition, parse_assign, parse_numbers
from .properties import Properties

__all__ = ["Boundary", "KafkaOptions", "Topics"]

# Options of Spark's source that are set elsewhere here, or do not exist.
_ELSEWHERE = {
    "maxoffsetspertrigger": "Set it for the stream, not for one phase.",
    "minoffsetspertrigger": "Set it for the stream, not for one phase.",
    "maxtriggerdelay": "Set it for the stream, not for one phase.",
    "maxrecordsperpartition": "Set minPartitions.",
    "fetchoffset.numretries": "Set kafka.default.api.timeout.ms: requests are repeated for this time.",
    "fetchoffset.retryintervalms": "Set kafka.default.api.timeout.ms: requests are repeated for this time.",
}
_OFFSETS_EXAMPLE = '{"orders": {"0": 23, "1": -2}}'
_STRATEGIES = ("error", "latest")
_TIMES_EXAMPLE = '{"orders": {"0": 1700000000000, "1": 1700000000000}}'


def _names(given: UserOptions, name: str) -> tuple[str, ...]:
    text = given.text(name)
    found = [part.strip() for part in text.split(",")] if text.strip() else []
    for part in found:
        if not part:
            raise SettingError(name, text, "has an empty name.", "Separate names by commas.")
        if found.count(part) > 1:
            raise SettingError(name, text, f"names {part} twice.", "Name each once.")
    return tuple(found)


@dataclass(frozen=True)
class Topics:
    """What to read. Exactly one of the three is given."""

    names: tuple[str, ...] = option(
        "subscribe", lambda given, name: tuple(sorted(_names(given, name))), (), type="names", shown="one of three",
        spark="subscribe",
    )  # fmt: skip
    """Topics to read, separated by commas."""
    pattern: str = option(
        "subscribePattern", lambda given, name: given.pattern(name, r'For example "orders_\d+".').strip(), "",
        type="regular expression", shown="one of three", spark="subscribePattern",
    )  # fmt: skip
    """Reads topics whose whole name matches, in Python's syntax, also those that are created later. Never Kafka's
    internal topics."""
    partitions: tuple[Partition, ...] = option(
        "assign", lambda given, name: parse_assign(given.text(name)) if given.text(name).strip() else (), (),
        type="JSON", shown="one of three", spark="assign",
    )  # fmt: skip
    """Reads only these partitions: `{"topic": [0, 1]}`."""

    @classmethod
    def parse(cls, given: UserOptions) -> Self:
        """Parse the three options."""
        there = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name).strip()]
        if len(there) != 1:
            raise SettingError(
                there[1] if there else "subscribe", given.text(there[1]) if there else None,
                f"{there[0]} is given as well." if there else "the Kafka phase needs this, subscribePattern or assign.",
                "Give one of subscribe, subscribePattern and assign.",
            )  # fmt: skip
        return cls(**values(cls, given))

    @property
    def asked(self) -> tuple[str, ...]:
        """The named topics; none with a pattern."""
        return self.names or tuple(sorted({topic for topic, _ in self.partitions}))

    def __str__(self) -> str:
        return f"subscribePattern={self.pattern!r}" if self.pattern else f"topics {', '.join(self.asked)}"


@dataclass(frozen=True)
class Boundary:
    """Where to begin or to end. The first of these that is given counts.

    Parameters
    ----------
    option : str
        Name of the option, for errors.
    timestamp : int or None
        The first record of this time or later, milliseconds since 1970.
    timestamps : mapping
        The same for each partition.
    offsets : mapping
        For each partition an offset, `LATEST` or `EARLIEST`.
    everywhere : int
        `LATEST` or `EARLIEST`, for all partitions.
    or_latest : bool
        If no record has this time or a later one, use the end instead of raising an error.
    """

    option: str
    timestamp: int | None = None
    timestamps: Mapping[Partition, int] = field(default_factory=dict)
    offsets: Mapping[Partition, int] = field(default_factory=dict)
    everywhere: int = EARLIEST
    or_latest: bool = False

    @property
    def is_by_time(self) -> bool:
        """Whether it is given by time."""
        return self.timestamp is not None or bool(self.timestamps)

    def times(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The time for each partition, if it is given by time."""
        return {p: self.timestamps[p] if self.timestamps else self.timestamp or 0 for p in partitions}


def _starting(given: UserOptions) -> Boundary:
    strategy = given.choice("startingOffsetsByTimestampStrategy", _STRATEGIES)
    boundary = _by_time(given, "starting", or_latest=strategy == "latest")
    return boundary or _by_offset(given, "startingOffsets", "earliest", EARLIEST)


def _ending(given: UserOptions) -> Boundary | None:
    boundary = _by_time(given, "ending", or_latest=True)
    if boundary is None and "endingoffsets" in given:
        boundary = _by_offset(given, "endingOffsets", "latest", LATEST)
    return boundary


def _by_time(given: UserOptions, which: str, *, or_latest: bool) -> Boundary | None:
    one, each = f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    if one.lower() in given:
        return Boundary(one, timestamp=given.integer(one, None, 0), or_latest=or_latest)
    if each.lower() in given:
        times = parse_numbers(each, given[each.lower()], 0, _TIMES_EXAMPLE)
        return Boundary(each, timestamps=times, or_latest=or_latest)
    return None


def _by_offset(given: UserOptions, name: str, default: str, least: int) -> Boundary:
    text = given.get(name.lower(), default).strip()
    word = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if word is None:
        return Boundary(name, offsets=parse_numbers(name, text, least, _OFFSETS_EXAMPLE))
    if word < least:
        raise SettingError(name, text, "a phase cannot end where it may begin.", "Set latest, or offsets as JSON.")
    return Boundary(name, everywhere=word)


@dataclass(frozen=True, kw_only=True)
class KafkaOptions:
    """Parsed options.

    Raises
    ------
    SettingError
        From `parse`: an option is unknown, missing, malformed or out of bounds.
    """

    topics: Topics = parsed(Topics.parse, Topics)
    may_be_empty: bool = flag("allowEmpty")
    """true: `subscribePattern` may match no topic when the phase begins. false: the query is refused."""
    from_files: bool = switch("startingFrom", ("offsets", "lastFileTimestamp"), "lastFileTimestamp")
    """Where to begin. offsets: as the options below say. lastFileTimestamp: at the first record that is as old as the
    newest row of the files before, minus `startingOverlap`; if there was no row, as the options below say. Records that
    arrive after the first start of the query are read whatever their time."""
    overlap_ms: int = duration("startingOverlap", 0)
    """How long before the files' newest row to begin, for records that came late. `dedupKey` drops the duplicates that
    this causes."""
    dedup_key: tuple[str, ...] = option("dedupKey", _names, (), type="names")
    """Data columns that, together with the files' `timestampColumn`, match a record to a row of the files. A record is
    dropped if it equals a row in all of them, to the microsecond, and is not newer than the files' newest row by the
    record's own timestamp. The same key with another time is another version, and is read. A key that contains NULL is
    never de-duplicated."""
    starting: Boundary = parsed(
        _starting,
        Option(
            "startingOffsets",
            "string or JSON",
            "earliest",
            bounds="earliest, latest, JSON",
            spark="startingOffsets",
            doc='Where to begin: earliest, latest, or an offset for each partition, `{"topic": {"0": 23, "1": -2}}`, '
            "-2 for earliest and -1 for latest. Partitions that are added later are read from their beginning. "
            "Earliest and latest mean those at the query's first start. (Spark's default in streams is latest.)",
        ),
        Option(
            "startingTimestamp",
            "int",
            bounds=">= 0",
            spark="startingTimestamp",
            doc="Begins with the first record of that time or later, milliseconds since 1970. Overrides "
            "`startingOffsetsByTimestamp`, which overrides `startingOffsets`.",
        ),
        Option(
            "startingOffsetsByTimestamp",
            "JSON",
            spark="startingOffsetsByTimestamp",
            doc='The same for each partition: `{"topic": {"0": 1700000000000}}`.',
        ),
        Option(
            "startingOffsetsByTimestampStrategy",
            shown="error",
            choices=_STRATEGIES,
            spark="startingOffsetsByTimestampStrategy",
            doc="For a partition without a record of that time or later. error: stops the query. latest: begins at its "
            "end.",
        ),
    )
    ending: Boundary | None = parsed(
        _ending,
        Option(
            "endingOffsets",
            "string or JSON",
            bounds="latest, JSON",
            spark="endingOffsets",
            doc="Where the phase ends. Without it the phase has no end. latest: the end when the phase begins. "
            "JSON: for each partition the offset after the last one, -1 for latest. The phase waits for offsets "
            "that do not exist yet.",
        ),
        Option(
            "endingTimestamp",
            "int",
            bounds=">= 0",
            spark="endingTimestamp",
            doc="Ends before the first record of that time or later, milliseconds since 1970. Without such a record, "
            "ends at the end when the phase begins. Overrides `endingOffsetsByTimestamp`, which overrides "
            "`endingOffsets`.",
        ),
        Option(
            "endingOffsetsByTimestamp", "JSON", spark="endingOffsetsByTimestamp", doc="The same for each partition."
        ),
    )
    min_partitions: int | None = integer("minPartitions", None, 1, shown="one task a partition", spark="minPartitions")
    """Cuts partitions with many unread records, so that a batch has about this many tasks."""
    fail_on_data_loss: bool = flag("failOnDataLoss", True, spark="failOnDataLoss")
    """true: the query stops if unread records are gone (retention, a topic deleted or created again), also while
    earlier phases are read, or if the topic does not go back to the starting point. false: it warns and goes on with
    the earliest record."""
    include_headers: bool = flag("includeHeaders", spark="includeHeaders")
    """With `valueFormat=raw`, adds a column `headers`."""
    drop_tombstones: bool = switch("tombstones", ("null", "drop"), "drop")
    """What a record without a value becomes. null: a row with NULL in its data columns. drop: no row."""
    thresholds: OffsetThresholds = parsed(
        lambda given: OffsetThresholds(**values(OffsetThresholds, given)), OffsetThresholds
    )
    properties: Properties = parsed(Properties.parse, Properties)
    group_prefix: str = text("groupIdPrefix", "hybrid-kafka", spark="groupIdPrefix")
    """Prefix of the group ids that brokers see for the readers. (Nothing is committed under them.)"""
    poll_timeout_ms: int = integer("kafkaConsumer.pollTimeoutMs", 120_000, 1, spark="kafkaConsumer.pollTimeoutMs")
    """Milliseconds that a task waits for a broker before it fails."""

    @classmethod
    def parse(cls, options: Mapping[str, str], others: Collection[str] = ()) -> Self:
        """Parse the phase's options; names in any case.

        Parameters
        ----------
        options : mapping of str to str
        others : collection of str
            Names of options that others read, such as a decoder.
        """
        for name in options:
            if hint := _ELSEWHERE.get(name.lower()):
                raise SettingError(name, "***", "is not an option of the Kafka phase.", hint)
        known = [*(o.name for o in options_of(cls)), *others]
        names = (name for name in options if not name.lower().startswith("kafka."))
        check_names(names, known, "the Kafka phase has no such option.")
        given = UserOptions(options)
        found = cls(**values(cls, given))
        if given.has("startingOverlap") and not found.from_files:
            raise SettingError(
                "startingOverlap", given.text("startingOverlap"), "has no meaning with startingFrom=offsets.",
                "Set startingFrom=lastFileTimestamp.",
            )  # fmt: skip
        return found
