"""RecordAttributes and OperatorAttributes, how they travel along a plan, and who sorts what (FLIP-309, FLIP-327).

No Spark, no clock, no thread. Wherever inputs are asked for, leave finished ones out: they no longer count (FLIP-147).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from backlog_spark.errors import BacklogError, SettingError

__all__ = [
    "ALL_BACKLOG",
    "OneInputFunction",
    "OperatorAttributes",
    "OperatorAttributesBuilder",
    "RecordAttributes",
    "RecordAttributesBuilder",
    "Sorter",
    "TwoInputFunction",
    "choose_sorter",
    "propagate_join",
    "propagate_map",
    "propagate_union",
    "sorter_is_active",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordAttributes:
    """What holds for all records of one batch of one input (FLIP-327, Public Interfaces 1).

    Parameters
    ----------
    is_backlog : bool
        True if the records are stale and may be buffered until it is false again. Not a bool: SettingError.

    Examples
    --------
    >>> snapshot, binlog = RecordAttributes(is_backlog=True), RecordAttributes(is_backlog=False)
    >>> propagate_union([snapshot, binlog]), propagate_join([snapshot, binlog])
    (RecordAttributes(is_backlog=False), RecordAttributes(is_backlog=True))
    """

    is_backlog: bool

    def __post_init__(self) -> None:
        _check_bool("is_backlog", self.is_backlog)


class RecordAttributesBuilder:
    """Builds what an operator tells downstream (FLIP-327, Public Interfaces 1).

    Parameters
    ----------
    last_record_attributes_of_inputs : iterable of RecordAttributes
        The last ones received from each input; empty for a source. Read once, here; they decide what is not set.
    """

    def __init__(self, last_record_attributes_of_inputs: Iterable[RecordAttributes]) -> None:
        self._inputs = _flags(last_record_attributes_of_inputs)
        self._backlog: bool | None = None

    def set_backlog(self, backlog: bool) -> Self:
        """Set the flag whatever the inputs say; the last call wins. Not a bool: SettingError."""
        self._backlog = _check_bool("backlog", backlog)
        return self

    def build(self) -> RecordAttributes:
        """Return the attributes; if backlog is not set, it is true if any input's is, and DEBUG says so."""
        if self._backlog is not None:
            return RecordAttributes(self._backlog)
        default = any(self._inputs)
        _log.debug("backlog is not set: %s by default, from inputs %s", default, self._inputs)
        return RecordAttributes(default)


def propagate_map(attributes: RecordAttributes) -> RecordAttributes:
    """Attributes of a one-input operator's output: those of its input (FLIP-309, High-level Overview)."""
    _flags([attributes])
    return attributes


def propagate_union(attributes: Iterable[RecordAttributes]) -> RecordAttributes:
    """Attributes of a union: backlog only if all inputs are, for a fresh record may come from any (FLIP-309).

    Without any input: false, FLIP-309's default. Flink's runtime merges channels by *any*, unlike the FLIP.
    """
    flags = _flags(attributes)
    return RecordAttributes(bool(flags) and all(flags))


def propagate_join(attributes: Iterable[RecordAttributes]) -> RecordAttributes:
    """Attributes of a join: backlog if any input is, for a joined row is as stale as its stalest part (FLIP-309)."""
    return RecordAttributes(any(_flags(attributes)))


ALL_BACKLOG: Final = 0b11
"""For `TwoInputFunction.take_attributes` and `OneInputFunction.take_attributes`: the rows of all inputs are backlog."""


class _Emitter:
    """The part of a function that tells the operators behind it what holds for its rows (FLIP-327, ``Output``)."""

    _emitted: RecordAttributes | None = None

    def emit_record_attributes(self, attributes: RecordAttributes) -> None:
        """Tell the operators behind what holds for the rows that follow (FLIP-327, ``emitRecordAttributes``).

        To be called while attributes are processed; the last call counts. Without one they are told the default of
        `RecordAttributesBuilder`: backlog if any input's rows are.
        """
        _flags([attributes])
        self._emitted = attributes


class OneInputFunction(_Emitter):
    """What a function of one input overrides to learn of record attributes."""

    def process_record_attributes(self, attributes: RecordAttributes) -> None:
        """Told what holds for the rows that follow (FLIP-327, ``processRecordAttributes``).

        Called on the worker before the rows of each key group and batch, and on the driver to learn what holds for the
        output; so it must depend on nothing but its argument.
        """

    def take_attributes(self, backlog: int) -> None:
        """Called by the operator; ``backlog`` is not 0 if the rows of any input are backlog."""
        self.process_record_attributes(RecordAttributes(backlog != 0))

    def attributes_of_output(self, attributes: RecordAttributes) -> RecordAttributes:
        """What the operators behind are told when the input has these attributes."""
        self._emitted = None
        self.process_record_attributes(attributes)
        return self._emitted or RecordAttributesBuilder([attributes]).build()


class TwoInputFunction(_Emitter):
    """What a function of two inputs overrides to learn of record attributes."""

    def process_record_attributes1(self, attributes: RecordAttributes) -> None:
        """Told what holds for the rows of the first input (FLIP-327, ``processRecordAttributes1``)."""

    def process_record_attributes2(self, attributes: RecordAttributes) -> None:
        """Told what holds for the rows of the second input (FLIP-327, ``processRecordAttributes2``)."""

    def take_attributes(self, backlog: int) -> None:
        """Called by the operator; bit 0 of ``backlog`` is set if the first input's rows are, bit 1 the second's."""
        self.process_record_attributes1(RecordAttributes(backlog & 1 != 0))
        self.process_record_attributes2(RecordAttributes(backlog & 2 != 0))

    def attributes_of_output(self, first: RecordAttributes, second: RecordAttributes) -> RecordAttributes:
        """What the operators behind are told when the inputs have these attributes."""
        self._emitted = None
        self.process_record_attributes1(first)
        self.process_record_attributes2(second)
        return self._emitted or RecordAttributesBuilder([first, second]).build()


@dataclass(frozen=True)
class OperatorAttributes:
    """What an operator tells the planner about itself (FLIP-327, Public Interfaces 4).

    Parameters
    ----------
    internal_sorter_supported : bool
        True if, at interval during backlog 0, the operator itself sorts its inputs by key while any of them is in
        backlog; they are not sorted in front of it. Anything but a bool raises SettingError.
    """

    internal_sorter_supported: bool

    def __post_init__(self) -> None:
        _check_bool("internal_sorter_supported", self.internal_sorter_supported)


class OperatorAttributesBuilder:
    """Builds OperatorAttributes; what is not set gets FLIP-327's default (Public Interfaces 4)."""

    def __init__(self) -> None:
        self._internal_sorter_supported: bool | None = None

    def set_internal_sorter_supported(self, internal_sorter_supported: bool) -> Self:
        """Say whether the operator sorts its inputs itself; the last call wins. Not a bool: SettingError."""
        self._internal_sorter_supported = _check_bool("internal_sorter_supported", internal_sorter_supported)
        return self

    def build(self) -> OperatorAttributes:
        """Return the attributes; internal_sorter_supported is false if it is not set, and DEBUG says so."""
        if self._internal_sorter_supported is None:
            _log.debug("internal_sorter_supported is not set: False by default")
        return OperatorAttributes(self._internal_sorter_supported or False)


class Sorter(StrEnum):
    """Who sorts an operator's input by key during backlog: the plan in front of it, the operator, or nobody."""

    EXTERNAL = "external"
    INTERNAL = "internal"
    NONE = "none"


def choose_sorter(
    attributes: OperatorAttributes, *, keyed: bool, input_count: int, interval_during_backlog_ms: int | None
) -> Sorter:
    """Decide once, when the plan is made, who sorts an operator's input (FLIP-327, Proposed Changes 4).

    A value of another type or out of bounds raises SettingError.

    Parameters
    ----------
    attributes : OperatorAttributes
        What the operator says of itself. An internal sorter is taken at its word, keyed or not.
    keyed : bool
        Whether the input is keyed: no other is sorted for an operator.
    input_count : int
        Inputs of the operator, 1 or more; a union in front of it is one. Several are never sorted for it.
    interval_during_backlog_ms : int or None
        Only 0 lets anything be sorted. Positive, and None (feature off), mean plain stream mode.
    """
    _check_bool("keyed", keyed)
    # By exact type: False == 0 would switch sorting on.
    if type(input_count) is not int or input_count < 1:
        raise SettingError("input_count", input_count, "must be a whole number, 1 or more.")
    interval = interval_during_backlog_ms
    if interval is not None and (type(interval) is not int or interval < 0):
        raise SettingError("interval_during_backlog_ms", interval, "must be milliseconds, 0 or more, or None (off).")
    if interval == 0 and attributes.internal_sorter_supported:
        return Sorter.INTERNAL
    return Sorter.EXTERNAL if interval == 0 and keyed and input_count == 1 else Sorter.NONE


def sorter_is_active(sorter: Sorter, inputs: Iterable[RecordAttributes]) -> bool:
    """Whether an operator's sorter is at work on records with these attributes, by FLIP-327's rule.

    The external sorter works while its one input is in backlog, an internal one while any of its inputs is. Our
    runner chooses per query, not per operator: what it really sorts it decides itself. An external sorter that is
    given several inputs raises BacklogError.
    """
    flags = _flags(inputs)
    if sorter is Sorter.EXTERNAL and len(flags) > 1:
        raise BacklogError(f"An external sorter has one input, not {len(flags)}.", "Combine them: propagate_union.")
    return sorter is not Sorter.NONE and any(flags)


def _check_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise SettingError(name, value, "must be True or False.", "Convert it where it is read: bool('false') is True.")
    return value


def _flags(attributes: Iterable[object]) -> list[bool]:
    flags = []
    for number, each in enumerate(attributes):
        if not isinstance(each, RecordAttributes):
            raise BacklogError(f"Input {number} is of type {type(each).__name__}.", "Pass RecordAttributes.")
        flags.append(each.is_backlog)
    return flags
