"""RecordAttributes: how they propagate along a plan, and how functions get them (FLIP-309, FLIP-327).

No Spark, no clock, no thread. Callers leave out finished inputs: these no longer count (FLIP-147).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.errors import BacklogError, SettingError

__all__ = [
    "ALL_BACKLOG",
    "STANDS_STILL",
    "OneInputFunction",
    "RecordAttributes",
    "RecordAttributesBuilder",
    "TwoInputFunction",
    "as_bits",
    "propagate_join",
    "propagate_map",
    "propagate_union",
]

_log = logging.getLogger(__name__)


@checked_arguments
@dataclass(frozen=True)
class RecordAttributes:
    """Attributes of all records of one batch of one input (FLIP-327, Public Interfaces 1).

    Parameters
    ----------
    is_backlog : bool or None
        True if the records are stale and may be buffered until it is false again. None: unknown, as for streaming
        DataFrames without a rule; treat it as false. Anything else: SettingError.

    Examples
    --------
    >>> snapshot, binlog = RecordAttributes(is_backlog=True), RecordAttributes(is_backlog=False)
    >>> propagate_union([snapshot, binlog]), propagate_join([snapshot, binlog])
    (RecordAttributes(is_backlog=False), RecordAttributes(is_backlog=True))
    """

    is_backlog: bool | None = None

    def __post_init__(self) -> None:
        if self.is_backlog is not None:
            _check_bool("is_backlog", self.is_backlog)


class RecordAttributesBuilder:
    """Builds the attributes that an operator sends downstream (FLIP-327, Public Interfaces 1).

    Parameters
    ----------
    last_record_attributes_of_inputs : iterable of RecordAttributes
        The last attributes of each input; empty for a source. Read once, here. They give the defaults.
    """

    @checked_arguments
    def __init__(self, last_record_attributes_of_inputs: Iterable[RecordAttributes]) -> None:
        self._inputs = _flags(last_record_attributes_of_inputs)  # unknown ones do not make the default true
        self._backlog: bool | None = None

    def set_backlog(self, backlog: bool) -> Self:
        """Set the flag, whatever the inputs have; the last call wins. Not a bool: SettingError."""
        self._backlog = _check_bool("backlog", backlog)
        return self

    def build(self) -> RecordAttributes:
        """Return the attributes. Without `set_backlog` the flag is true if any input's is; DEBUG logs that."""
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
    """Attributes of a union: backlog only if all inputs are, because a fresh record may come from any (FLIP-309).

    Unknown if no input is fresh and one is unknown. Without any input: false, FLIP-309's default. Flink's runtime
    merges channels by *any*, unlike the FLIP.
    """
    flags = _flags(attributes)
    return RecordAttributes(None if None in flags and False not in flags else bool(flags) and all(flags))


def propagate_join(attributes: Iterable[RecordAttributes]) -> RecordAttributes:
    """Attributes of a join: backlog if any input is. A joined row is as stale as its stalest part (FLIP-309).

    Unknown if no input is backlog and one is unknown.
    """
    flags = _flags(attributes)
    return RecordAttributes(None if None in flags and True not in flags else any(flags))


ALL_BACKLOG: Final = 0b11
"""For `_take_attributes` of both classes below: the rows of all inputs are backlog."""


STANDS_STILL: Final = 0b100
"""Another bit: the query is in backlog and commits nothing before its end, so time stands still (FLIP-327)."""

_UNKNOWN: Final = 3  # the two bits from here on: whether the rows of an input are backlog is not known


class _Emitter:
    """The part of a function that sends record attributes to the next operators (FLIP-327, ``Output``)."""

    _emitted: RecordAttributes | None = None
    _is_informed = False

    def emit_record_attributes(self, attributes: RecordAttributes) -> None:
        """Send the attributes of the following rows to the next operators (FLIP-327, ``emitRecordAttributes``).

        Call it while attributes are processed; the last call counts. Without a call the default of
        `RecordAttributesBuilder` is sent: backlog if any input's rows are.

        Raises
        ------
        BacklogError
            If it is called from anywhere else, such as ``process_element``.
        """
        _flags([attributes])
        if not self._is_informed:
            raise BacklogError(
                f"{type(self).__name__} called emit_record_attributes outside of process_record_attributes. Record "
                "attributes hold for a whole batch and for all keys, so they must be set before its first row.",
                "Move the call to process_record_attributes (or …1, …2 with two inputs).",
            )
        self._emitted = attributes

    @contextmanager
    def _telling(self) -> Iterator[None]:
        self._emitted, self._is_informed = None, True
        try:
            yield
        finally:
            self._is_informed = False


class OneInputFunction(_Emitter):
    """Base of functions of one input that get record attributes."""

    def process_record_attributes(self, attributes: RecordAttributes) -> None:
        """Get the attributes of the following rows (FLIP-327, ``processRecordAttributes``).

        Called on the worker before the rows of each key group and batch, and on the driver to compute the attributes
        of the output. So it must depend only on its argument.
        """

    def _take_attributes(self, backlog: int) -> None:
        """Called by the operator; a bit of `ALL_BACKLOG` is set in ``backlog`` if the rows of any input are backlog."""
        with self._telling():
            self.process_record_attributes(propagate_join(_attributes(backlog)))

    def _attributes_of_output(self, attributes: RecordAttributes) -> RecordAttributes:
        """The attributes for the next operators, if the input has these."""
        with self._telling():
            self.process_record_attributes(attributes)
        return self._emitted or RecordAttributesBuilder([attributes]).build()


class TwoInputFunction(_Emitter):
    """Base of functions of two inputs that get record attributes."""

    def process_record_attributes1(self, attributes: RecordAttributes) -> None:
        """Get the attributes of the first input's rows (FLIP-327, ``processRecordAttributes1``)."""

    def process_record_attributes2(self, attributes: RecordAttributes) -> None:
        """Get the attributes of the second input's rows (FLIP-327, ``processRecordAttributes2``)."""

    def _take_attributes(self, backlog: int) -> None:
        """Called by the operator; bit 0 of ``backlog`` is set if the first input's rows are, bit 1 the second's."""
        with self._telling():
            first, second = _attributes(backlog)
            self.process_record_attributes1(first)
            self.process_record_attributes2(second)

    def _attributes_of_output(self, first: RecordAttributes, second: RecordAttributes) -> RecordAttributes:
        """The attributes for the next operators, if the inputs have these."""
        with self._telling():
            self.process_record_attributes1(first)
            self.process_record_attributes2(second)
        return self._emitted or RecordAttributesBuilder([first, second]).build()


def as_bits(inputs: Iterable[RecordAttributes]) -> int:
    """The attributes of an operator's inputs as bits: bit 0 is set if the first input's rows are backlog."""
    return sum(1 << at + _UNKNOWN if flag is None else flag << at for at, flag in enumerate(_flags(inputs)))


def _attributes(bits: int) -> list[RecordAttributes]:
    """The attributes of two inputs, from `as_bits`."""
    return [RecordAttributes(None if bits >> at + _UNKNOWN & 1 else bits >> at & 1 != 0) for at in (0, 1)]


def _check_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise SettingError(name, value, "must be True or False.", "Convert it explicitly: bool('false') is True.")
    return value


def _flags(attributes: Iterable[object]) -> list[bool | None]:
    flags: list[bool | None] = []
    for number, each in enumerate(attributes):
        if not isinstance(each, RecordAttributes):
            raise BacklogError(f"Input {number} is of type {type(each).__name__}.", "Pass RecordAttributes.")
        flags.append(each.is_backlog)
    return flags
