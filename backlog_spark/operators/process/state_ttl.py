"""State TTL: how long a function's state lives after it was last written, and the times that are kept for it.

The time is that of the batch in Spark's offset log, so in a repeated batch the same values are expired. In backlog at
an interval of 0 the time stands still: values that are written there count from the first batch of the stream on.

Source: PyFlink's ``pyflink.datastream.state.StateTtlConfig``; Flink's ``TtlValueState``, ``TtlListState`` and
``TtlMapState``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.common.durations import parse_duration
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.state.store import AT_EVERY_TICK, NEVER

__all__ = ["Stamps", "StateTtlConfig", "due_of_stamps", "state_column", "times_column", "with_times"]

# Expired values are never seen. They are removed in steps, since each step is a batch that wakes the query.
_STEPS: Final = 8
_SHORTEST_STEP_MS: Final = 1_000


@dataclass(frozen=True)
class StateTtlConfig:
    """How long state lives; made by ``StateTtlConfig.new_builder("1 hour").build()``.

    Each entry of a `MapState` and each element of a `ListState` has its own time, as in Flink. Expired values are never
    returned.

    Parameters
    ----------
    ttl_ms : int
        Milliseconds.
    on_read : bool
        Whether reading a value also renews its time.
    """

    ttl_ms: int
    on_read: bool = False

    @staticmethod
    def new_builder(ttl: str | timedelta) -> StateTtlConfigBuilder:
        """A builder.

        Parameters
        ----------
        ttl : str or timedelta
            For example ``"1 hour"``; longer than 0.

        Raises
        ------
        SettingError
            If ``ttl`` is not a duration, or not longer than 0.
        """
        found = parse_duration(ttl, "state TTL")
        if found <= 0:
            raise SettingError("state TTL", ttl, "must be longer than 0.", 'For example "1 hour".')
        return StateTtlConfigBuilder(StateTtlConfig(found))

    @property
    def step_ms(self) -> int:
        """Milliseconds between the times at which expired values are removed."""
        return max(_SHORTEST_STEP_MS, self.ttl_ms // _STEPS)


@dataclass(frozen=True)
class StateTtlConfigBuilder:
    """Builds a `StateTtlConfig`. By default only writing a value renews its time."""

    _made: StateTtlConfig

    def update_ttl_on_create_and_write(self) -> StateTtlConfigBuilder:
        """Writing a value renews its time. This is the default."""
        return StateTtlConfigBuilder(replace(self._made, on_read=False))

    def update_ttl_on_read_and_write(self) -> StateTtlConfigBuilder:
        """Reading a value also renews its time."""
        return StateTtlConfigBuilder(replace(self._made, on_read=True))

    def never_return_expired(self) -> StateTtlConfigBuilder:
        """Changes nothing: this is the only visibility."""
        return self

    def use_processing_time(self) -> StateTtlConfigBuilder:
        """Changes nothing: the time is always that of the batch."""
        return self

    def return_expired_if_not_cleaned_up(self) -> StateTtlConfigBuilder:
        """Refused: a repeated batch might see other values, depending on what had been removed before.

        Raises
        ------
        BacklogError
        """
        raise BacklogError(
            "return_expired_if_not_cleaned_up: a repeated batch might see other values than before, depending on what "
            "has been cleaned up.",
            "Leave it out: expired values are never returned.",
        )

    def build(self) -> StateTtlConfig:
        """The configuration."""
        return self._made


class Stamps:
    """When the values of one declared state were written, with one entry for each key.

    A value has one time, or None. A list has a list of times. A map has a dict of times, or a list while the map itself
    is a list of pairs. None instead of a time: written in backlog, so the time is that of the stream's first batch.

    Parameters
    ----------
    config : StateTtlConfig
    cursor : list of int
        The index of the present key.
    """

    def __init__(self, config: StateTtlConfig, cursor: list[int]) -> None:
        self.on_read = config.on_read
        self.now: int | None = None
        self._ttl = config.ttl_ms
        self._cursor = cursor
        self._times: list[Any] = []

    def bind(self, times: list[Any]) -> None:
        """Set the times of the loaded keys. The list is changed."""
        self._times = times

    @property
    def here(self) -> Any:
        """The times of the present key."""
        return self._times[self._cursor[0]]

    @here.setter
    def here(self, times: Any) -> None:
        self._times[self._cursor[0]] = times

    def expire(self, values: list[Any]) -> None:
        """Drop expired values, and give values that were written in backlog their time. Call before processing keys.

        Parameters
        ----------
        values : list
            The values of the same keys, in Arrow's form. The list is changed.
        """
        now = self.now
        if now is None:
            return
        oldest, times = now - self._ttl, self._times
        for index, value in enumerate(values):
            if value is None:
                continue
            found = times[index]
            if type(found) is not list:
                if found is None:
                    times[index] = now
                elif found <= oldest:
                    values[index] = times[index] = None
                continue
            known = [now if time is None else time for time in found]
            if min(known) <= oldest:
                kept = [i for i, time in enumerate(known) if time > oldest]
                values[index] = [value[i] for i in kept] or None
                known = [known[i] for i in kept]
            times[index] = known or None


def state_column(name: str) -> str:
    """Name of a declared state's column in rows of state."""
    return f"s_{name}"


def times_column(name: str) -> str:
    """Name of the column with the times of its values."""
    return f"w_{name}"


def due_of_stamps(values: pa.Array, times: pa.Array, config: StateTtlConfig) -> np.ndarray:
    """When to process each row of state because values have expired. A value without a time yet gets one at a tick."""
    found = np.full(len(times), NEVER, dtype=np.int64)
    counts = _counts(values, times)
    has = np.flatnonzero(counts)
    if not len(has):
        return found
    flat = pc.list_flatten(times) if pa.types.is_list(times.type) else times.take(pa.array(has))
    step = config.step_ms
    later = -(-(np.asarray(pc.fill_null(flat, 0), dtype=np.int64) + config.ttl_ms) // step) * step
    later = np.where(flat.is_valid().to_numpy(zero_copy_only=False), later, AT_EVERY_TICK)
    found[has] = np.minimum.reduceat(later, np.concatenate(([0], np.cumsum(counts[has])[:-1])))
    return found


def with_times(values: pa.Array, times: pa.Array, now: int) -> pa.Array:
    """The times of rows of state, with ``now`` for values that were written in backlog."""
    if not pa.types.is_list(times.type):
        return pc.if_else(values.is_valid(), pc.fill_null(times, now), times)
    ends = np.concatenate(([0], np.cumsum(_counts(values, times))))
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pc.fill_null(pc.list_flatten(times), now), mask=times.is_null()
    ).cast(times.type)


def _counts(values: pa.Array, times: pa.Array) -> np.ndarray:
    """How many values with a time each row has."""
    if pa.types.is_list(times.type):
        return np.asarray(pc.fill_null(pc.list_value_length(times), 0), dtype=np.int64)
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False), dtype=np.int64)
