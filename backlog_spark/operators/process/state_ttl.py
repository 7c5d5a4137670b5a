"""How long a function's state lives after it was last written, and the declared state that keeps the time of it.

The time is the batch's own, as it is in Spark's offset log: a batch that is repeated finds the same values expired. It
stands still in backlog at an interval of 0; what was written there counts from the first batch of the stream on.

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

__all__ = ["Stamps", "StateTtlConfig", "due_of_stamps", "state_column", "times_column", "with_times"]

# Values that expired are never seen, but what they take is given back in steps: each is a batch that wakes the query.
_STEPS: Final = 8
_SHORTEST_STEP_MS: Final = 1_000


@dataclass(frozen=True)
class StateTtlConfig:
    """How long state lives; made by ``StateTtlConfig.new_builder("1 hour").build()``.

    An entry of a `MapState` and an element of a `ListState` has a time of its own, as in Flink. Expired values are
    never returned.

    Parameters
    ----------
    ttl_ms : int
        Milliseconds.
    on_read : bool
        Whether reading a value makes it live on too.
    """

    ttl_ms: int
    on_read: bool = False

    @staticmethod
    def new_builder(ttl: str | timedelta) -> StateTtlConfigBuilder:
        """A builder.

        Parameters
        ----------
        ttl : str or timedelta
            Such as ``"1 hour"``; longer than 0.

        Raises
        ------
        SettingError
            For what is no duration, or none longer than 0.
        """
        found = parse_duration(ttl, "state TTL")
        if found <= 0:
            raise SettingError("state TTL", ttl, "must be longer than 0.", 'For example "1 hour".')
        return StateTtlConfigBuilder(StateTtlConfig(found))

    @property
    def step_ms(self) -> int:
        """How far apart the times are at which expired values are given up."""
        return max(_SHORTEST_STEP_MS, self.ttl_ms // _STEPS)


@dataclass(frozen=True)
class StateTtlConfigBuilder:
    """Builds a `StateTtlConfig`; by default values live on when they are written."""

    _made: StateTtlConfig

    def update_ttl_on_create_and_write(self) -> StateTtlConfigBuilder:
        """A value lives on when it is written: the default."""
        return StateTtlConfigBuilder(replace(self._made, on_read=False))

    def update_ttl_on_read_and_write(self) -> StateTtlConfigBuilder:
        """A value lives on when it is read, too."""
        return StateTtlConfigBuilder(replace(self._made, on_read=True))

    def never_return_expired(self) -> StateTtlConfigBuilder:
        """The only visibility there is."""
        return self

    def use_processing_time(self) -> StateTtlConfigBuilder:
        """The only time there is: that of the batch."""
        return self

    def return_expired_if_not_cleaned_up(self) -> StateTtlConfigBuilder:
        """Refused: what a repeated batch sees would depend on what had been given up before.

        Raises
        ------
        BacklogError
        """
        raise BacklogError(
            "return_expired_if_not_cleaned_up: a batch that is repeated after a failure might see other values than "
            "before, as it depends on what has been cleaned up.",
            "Leave it out: expired values are never returned.",
        )

    def build(self) -> StateTtlConfig:
        """The configuration."""
        return self._made


class Stamps:
    """When the values of one declared state were written, a place a key.

    A value has one time, or None; a list has a list of them; a map has a dict, or a list as long as it is one of pairs.
    None in the place of a time: written in backlog, and so with the first batch of the stream.

    Parameters
    ----------
    config : StateTtlConfig
    cursor : list of int
        The place of the present key.
    """

    def __init__(self, config: StateTtlConfig, cursor: list[int]) -> None:
        self.on_read = config.on_read
        self.now: int | None = None
        self._ttl = config.ttl_ms
        self._cursor = cursor
        self._times: list[Any] = []

    def bind(self, times: list[Any]) -> None:
        """Take the times of the keys that are worked on, which are changed in place."""
        self._times = times

    @property
    def here(self) -> Any:
        """Those of the present key."""
        return self._times[self._cursor[0]]

    @here.setter
    def here(self, times: Any) -> None:
        self._times[self._cursor[0]] = times

    def expire(self, values: list[Any]) -> None:
        """Leave out what has expired, and give what was written in backlog its time. Before keys are worked on.

        Parameters
        ----------
        values : list
            Those of the same places, as Arrow gives them; changed in place.
        """
        now = self.now
        if now is None:
            return
        oldest, times = now - self._ttl, self._times
        for place, value in enumerate(values):
            if value is None:
                continue
            found = times[place]
            if type(found) is not list:
                if found is None:
                    times[place] = now
                elif found <= oldest:
                    values[place] = times[place] = None
                continue
            known = [now if time is None else time for time in found]
            if min(known) <= oldest:
                kept = [i for i, time in enumerate(known) if time > oldest]
                values[place] = [value[i] for i in kept] or None
                known = [known[i] for i in kept]
            times[place] = known or None


def state_column(name: str) -> str:
    """What the column of a declared state is called in rows of state."""
    return f"s_{name}"


def times_column(name: str) -> str:
    """What the column of its values' times is called."""
    return f"w_{name}"


def due_of_stamps(values: pa.Array, times: pa.Array, config: StateTtlConfig, unknown: int, never: int) -> np.ndarray:
    """When each row of state is to be looked at, as values of it have expired.

    Parameters
    ----------
    values, times : pyarrow.Array
    config : StateTtlConfig
    unknown, never : int
        For rows with a value that has no time yet, and for rows without any.
    """
    found = np.full(len(times), never, dtype=np.int64)
    counts = _counts(values, times)
    has = np.flatnonzero(counts)
    if not len(has):
        return found
    flat = pc.list_flatten(times) if pa.types.is_list(times.type) else times.take(pa.array(has))
    step = config.step_ms
    later = -(-(np.asarray(pc.fill_null(flat, 0), dtype=np.int64) + config.ttl_ms) // step) * step
    later = np.where(flat.is_valid().to_numpy(zero_copy_only=False), later, unknown)
    found[has] = np.minimum.reduceat(later, np.concatenate(([0], np.cumsum(counts[has])[:-1])))
    return found


def with_times(values: pa.Array, times: pa.Array, now: int) -> pa.Array:
    """The times of rows of state that were written in backlog, which are to count from now on."""
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
