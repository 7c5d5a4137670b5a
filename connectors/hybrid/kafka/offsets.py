"""Offsets of many partitions, as Spark writes them in JSON: ``{"topic": {"0": 12, "1": -2}}`` (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from backlog_spark.errors import SettingError

__all__ = [
    "EARLIEST",
    "LATEST",
    "Offsets",
    "Partition",
    "from_json",
    "parse_assign",
    "parse_numbers",
    "shown",
    "to_json",
]

Partition: TypeAlias = tuple[str, int]
"""Topic and number."""

Offsets: TypeAlias = Mapping[Partition, int]
"""The next offset to read, for each partition."""

LATEST, EARLIEST = -1, -2
"""Used instead of an offset, as in Spark and in Kafka's protocol."""


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """The form of an offset of Spark's Kafka source: topics by name, partitions by number."""
    found: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def from_json(data: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    """What `to_json` wrote."""
    return {(topic, int(number)): offset for topic, numbers in data.items() for number, offset in numbers.items()}


def shown(partition: Partition) -> str:
    """A partition in a message, as Kafka's own tools write it."""
    return f"{partition[0]}-{partition[1]}"


def parse_numbers(name: str, text: str, least: int, example: str) -> dict[Partition, int]:
    """The JSON of an option that gives a number for each partition.

    Parameters
    ----------
    name, text : str
        The option and its value.
    least : int
        Smallest number that has a meaning.
    example : str
        One that is right, for the error.

    Raises
    ------
    SettingError
        If it is not such JSON.
    """
    data = _object(name, text, example)
    found = {}
    for topic, numbers in data.items():
        if not isinstance(numbers, dict) or not numbers:
            raise SettingError(name, text, f"{topic!r} has no object of partitions.", f"For example {example}.")
        for number, value in numbers.items():
            if not number.isdecimal():
                raise SettingError(name, text, f"{number!r} is not a partition number.", f"For example {example}.")
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SettingError(
                    name,
                    text,
                    f"{value!r} of {topic}-{number} is not an integer >= {least}.",
                    f"For example {example}.",
                )
            found[topic, int(number)] = value
    if not found:
        raise SettingError(name, text, "names no partition.", f"For example {example}.")
    return found


def parse_assign(text: str) -> tuple[Partition, ...]:
    """The JSON of the option ``assign``: ``{"topic": [0, 1]}``."""
    example = '{"orders": [0, 1]}'
    found: list[Partition] = []
    for topic, numbers in _object("assign", text, example).items():
        if not isinstance(numbers, list) or not numbers:
            raise SettingError("assign", text, f"{topic!r} has no list of partitions.", f"For example {example}.")
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise SettingError("assign", text, f"{number!r} is not a partition number.", f"For example {example}.")
            if (topic, number) in found:
                raise SettingError("assign", text, f"names {topic}-{number} twice.", "Name each partition once.")
            found.append((topic, number))
    if not found:
        raise SettingError("assign", text, "names no partition.", f"For example {example}.")
    return tuple(sorted(found))


def _object(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise SettingError(name, text, "is not a JSON object.", f"For example {example}.")
    return data
