"""Decides where a phase of Spark's own Kafka source begins, so that no record between it and earlier phases is missed.

Spark's source looks at the topics only when its phase begins, which may be days after the query's first start. It does
not notice what retention has removed by then, or what ``latest`` skips. So the offsets at the first start are kept and
become explicit ``startingOffsets``, by the same rules as in the source ``hybrid``. The source's own Kafka client, with
the source's options, asks the brokers for them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from backlog_spark.errors import BacklogError
from backlog_spark.spi.kafka_admin import AdminError, KafkaAdmin

from .client import Lookups, Topic, TopicGone, Unreachable
from .offsets import EARLIEST, Partition, to_json
from .options import KafkaOptions
from .pinned_offsets import Pin
from .planner import Planner
from .properties import Properties

__all__ = ["SPARKS_DEFAULTS", "SPARKS_OPTIONS", "STARTING_OPTIONS", "failed", "pinned", "starting_offsets"]

STARTING_OPTIONS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
"""Options of Spark's Kafka source that say where it begins, in lower case."""

SPARKS_OPTIONS = (
    *STARTING_OPTIONS, "subscribe", "subscribepattern", "assign", "startingoffsetsbytimestampstrategy",
    "failondataloss", "kafka.bootstrap.servers", "kafka.isolation.level",
)  # fmt: skip
"""Its options that the planner needs, in lower case."""

SPARKS_DEFAULTS = {"startingoffsets": "latest", "kafka.isolation.level": "read_uncommitted"}
"""Defaults that differ from those of the source ``hybrid``."""


def pinned(admin: KafkaAdmin, options: Mapping[str, str]) -> dict[str, Any]:
    """The state of the topics now, to be kept for later.

    Parameters
    ----------
    admin : KafkaAdmin
    options : mapping of str to str
        Options of the Kafka source, names in lower case.

    Raises
    ------
    BacklogError
        Brokers or topics do not exist.
    """
    parsed = _parsed(options)
    return Planner(parsed, _Lookups(admin, parsed.properties, options)).pin(time.time() * 1000).to_json()


def starting_offsets(
    admin: KafkaAdmin,
    options: Mapping[str, str],
    pin: Mapping[str, Any] | None,
    reached_ms: int | None,
    listed: Mapping[str, Any] | None = None,
) -> str:
    """The ``startingOffsets`` of a phase that begins now; "" if there is no partition yet.

    Parameters
    ----------
    admin : KafkaAdmin
    options : mapping of str to str
        As for `pinned`.
    pin : mapping or None
        The result of `pinned` when the query first started; None if it starts now.
    reached_ms : int or None
        Time of the newest row of the phases before, milliseconds since 1970, if it is known.
    listed : mapping or None
        The result of `pinned` just before the files with that row were listed, which may be long after the first start.

    Raises
    ------
    BacklogError
        Records are missing, unless ``failOnDataLoss`` is false.
    """
    parsed = _parsed(options)
    found = _Lookups(admin, parsed.properties, options)
    if reached_ms is not None and parsed.starting.timestamp is not None:
        # The phase should begin where the rows before end, or earlier by this overlap.
        parsed = replace(parsed, from_files=True, overlap_ms=reached_ms - parsed.starting.timestamp)
    then, later = (None if each is None else Pin.from_json(each) for each in (pin, listed))
    begin = Planner(parsed, found).begin(reached_ms, "", time.time() * 1000, then, later)
    return json.dumps(to_json(begin.offsets)) if begin.offsets else ""


def failed(options: Mapping[str, str], error: AdminError) -> BacklogError:
    """The error for a failed question to the brokers, without the values of secret options."""
    return _error(_parsed(options).properties, options, error)


def _parsed(options: Mapping[str, str]) -> KafkaOptions:
    known = {name: value for name, value in options.items() if name in SPARKS_OPTIONS}
    return KafkaOptions.parse({**SPARKS_DEFAULTS, **known})


def _error(properties: Properties, options: Mapping[str, str], error: AdminError) -> BacklogError:
    text = error.text
    for name, value in options.items():
        if value and ("password" in name or "jaas" in name or name.endswith(".key")):
            text = text.replace(value, "***")
    kind = Unreachable if error.is_timeout else BacklogError
    return kind(
        f"{properties} could not be asked where the phase begins: {text}.",
        "Check the options kafka.* and that the driver reaches every broker under the address that it advertises.",
    )


class _Lookups(Lookups):
    """The planner's questions, asked of Kafka's own client."""

    def __init__(self, admin: KafkaAdmin, properties: Properties, options: Mapping[str, str]) -> None:
        super().__init__(properties)
        self._admin = admin
        self._options = options

    def names(self) -> list[str]:
        try:
            return self._admin.names()
        except AdminError as error:
            raise self._failed(error) from None

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        try:
            return {name: Topic(*topic) for name, topic in self._admin.topics(names).items()}
        except AdminError as error:
            raise self._failed(error) from None

    def offsets(self, partitions: Collection[Partition], at: int, *, committed: bool) -> dict[Partition, int]:
        try:
            return self._admin.offsets(partitions, earliest=at == EARLIEST, committed=committed)
        except AdminError as error:
            raise self._failed(error) from None

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        try:
            found = self._admin.offsets_for_times(times, committed=self.properties.read_committed)
        except AdminError as error:
            raise self._failed(error) from None
        return {partition: None if record is None else record[0] for partition, record in found.items()}

    def first_time(self, partition: Partition, first: int, until: int) -> int | None:
        try:
            record = self._admin.offsets_for_times({partition: 0}, committed=False)[partition]
        except AdminError as error:
            raise self._failed(error) from None
        return None if record is None else record[1]

    def _failed(self, error: AdminError) -> Exception:
        return TopicGone(error.text) if error.is_gone else _error(self.properties, self._options, error)
