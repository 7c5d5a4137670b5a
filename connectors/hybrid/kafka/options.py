"""The options of the Kafka phase, parsed and checked (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.user_options import UserOptions, unknown_option

from .backlog import Thresholds
from .catalogue import OPTIONS
from .offsets import EARLIEST, LATEST, Partition, parse_assign, parse_numbers
from .properties import Properties

__all__ = ["Boundary", "KafkaOptions", "Topics"]

_KNOWN = {o.name.lower(): o.name for o in OPTIONS if o.name != "kafka.*"}
# Options of Spark's source that are set elsewhere here, or do not exist.
_ELSEWHERE = {
    "maxoffsetspertrigger": "Set it for the stream, not for one phase.",
    "minoffsetspertrigger": "Batches do not wait here: set the trigger's interval instead.",
    "maxtriggerdelay": "Batches do not wait here: set the trigger's interval instead.",
    "maxrecordsperpartition": "Set minPartitions.",
    "fetchoffset.numretries": "Set kafka.default.api.timeout.ms: requests are repeated for this time.",
    "fetchoffset.retryintervalms": "Set kafka.default.api.timeout.ms: requests are repeated for this time.",
}
_OFFSETS_EXAMPLE = '{"orders": {"0": 23, "1": -2}}'
_TIMES_EXAMPLE = '{"orders": {"0": 1700000000000, "1": 1700000000000}}'


@dataclass(frozen=True)
class Topics:
    """What to read. Exactly one of the three is given.

    Parameters
    ----------
    names : tuple of str
    pattern : str
        Regular expression that must match a topic's whole name.
    partitions : tuple of (str, int)
    """

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[Partition, ...] = ()

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


@dataclass(frozen=True)
class KafkaOptions:
    """Parsed options.

    Parameters
    ----------
    properties : Properties
        How to connect to the brokers.
    topics : Topics
    starting : Boundary
    ending : Boundary or None
        None for a phase without an end.
    from_files : bool
        Whether to begin at the time of the files' newest row.
    overlap_ms : int
        How much earlier than that to begin.
    dedup_key : tuple of str
        Columns that identify rows of the files.
    min_partitions : int or None
    fail_on_data_loss, include_headers, drop_tombstones : bool
    may_be_empty : bool
        Whether the pattern may match no topic.
    thresholds : Thresholds
        When the topic counts as backlog.
    group_prefix : str
    poll_timeout_ms : int
        How long a task waits for a broker that does not answer.

    Raises
    ------
    SettingError
        From `parse`: an option is unknown, missing, malformed or out of bounds.
    """

    properties: Properties
    topics: Topics
    starting: Boundary
    ending: Boundary | None = None
    from_files: bool = False
    overlap_ms: int = 0
    dedup_key: tuple[str, ...] = ()
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    drop_tombstones: bool = False
    may_be_empty: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    group_prefix: str = "hybrid-kafka"
    poll_timeout_ms: int = 120_000

    @classmethod
    def parse(cls, options: Mapping[str, str], others: Collection[str] = ()) -> Self:
        """Parse the phase's options; names in any case.

        Parameters
        ----------
        options : mapping of str to str
        others : collection of str
            Names of options that others read, such as a decoder.
        """
        given = UserOptions(options)
        _check_names(options, {name.lower() for name in others})
        from_files = given.choice("startingFrom", ("offsets", "lastFileTimestamp")) == "lastFileTimestamp"
        if "startingoverlap" in given and not from_files:
            raise SettingError(
                "startingOverlap", given["startingoverlap"], "has no meaning with startingFrom=offsets.",
                "Set startingFrom=lastFileTimestamp.",
            )  # fmt: skip
        return cls(
            properties=Properties.parse(options),
            topics=_topics(given),
            starting=_starting(given),
            ending=_ending(given),
            from_files=from_files,
            overlap_ms=given.duration("startingOverlap", 0),
            dedup_key=_names(given, "dedupKey"),
            min_partitions=given.integer("minPartitions", None, 1),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            include_headers=given.flag("includeHeaders", False),
            drop_tombstones=given.choice("tombstones", ("null", "drop")) == "drop",
            may_be_empty=given.flag("allowEmpty", False),
            thresholds=_thresholds(given),
            group_prefix=given.get("groupidprefix", cls.group_prefix),
            poll_timeout_ms=given.integer("kafkaConsumer.pollTimeoutMs", cls.poll_timeout_ms, 1),
        )


def _check_names(options: Mapping[str, str], others: Collection[str]) -> None:
    for name in options:
        lower = name.lower()
        if lower in _KNOWN or lower in others or lower.startswith("kafka."):
            continue
        if lower in _ELSEWHERE:
            raise SettingError(name, "***", "is not an option of the Kafka phase.", _ELSEWHERE[lower])
        raise unknown_option(name, [*_KNOWN.values(), "kafka.*"], "the Kafka phase has no such option.")


def _topics(given: UserOptions) -> Topics:
    there = [name for name in ("subscribe", "subscribePattern", "assign") if given.get(name.lower(), "").strip()]
    if len(there) != 1:
        raise SettingError(
            there[1] if there else "subscribe", given[there[1].lower()] if there else None,
            f"{there[0]} is given as well." if there else "the Kafka phase needs this, subscribePattern or assign.",
            "Give one of subscribe, subscribePattern and assign.",
        )  # fmt: skip
    text = given[there[0].lower()].strip()
    if there[0] == "assign":
        return Topics(partitions=parse_assign(text))
    if there[0] == "subscribe":
        return Topics(names=tuple(sorted(_names(given, "subscribe"))))
    return Topics(pattern=given.pattern("subscribePattern", r'For example "orders_\d+".').strip())


def _starting(given: UserOptions) -> Boundary:
    strategy = given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
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


def _thresholds(given: UserOptions) -> Thresholds:
    lag = given.duration("backlogLagThreshold", None)
    offsets = given.integer("backlogOffsetsThreshold", None, 1)
    lag_leave = given.duration("backlogLagLeaveThreshold", None)
    offsets_leave = given.integer("backlogOffsetsLeaveThreshold", None, 0)
    if lag == 0:
        raise SettingError("backlogLagThreshold", given["backloglagthreshold"], "must be above 0.", 'Such as "5 min".')
    for enter, leave, name in (
        (lag, lag_leave, "backlogLagThreshold"),
        (offsets, offsets_leave, "backlogOffsetsThreshold"),
    ):
        leave_name = name.replace("Threshold", "LeaveThreshold")
        if leave is not None and (enter is None or leave > enter):
            problem = f"has no meaning without {name}." if enter is None else f"is above {name}."
            raise SettingError(leave_name, given[leave_name.lower()], problem, f"Set {name}, and this to at most that.")
    return Thresholds(
        lag_ms=lag,
        lag_leave_ms=(lag or 0) // 2 if lag_leave is None else lag_leave,
        offsets=offsets,
        offsets_leave=(offsets or 0) // 2 if offsets_leave is None else offsets_leave,
        min_stay_ms=given.duration("backlogMinStay", 0),
    )


def _names(given: UserOptions, name: str) -> tuple[str, ...]:
    text = given.get(name.lower(), "")
    found = [part.strip() for part in text.split(",")] if text.strip() else []
    for part in found:
        if not part:
            raise SettingError(name, text, "has an empty name.", "Separate names by commas.")
        if found.count(part) > 1:
            raise SettingError(name, text, f"names {part} twice.", "Name each once.")
    return tuple(found)
