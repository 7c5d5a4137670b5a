"""A task's form of declared state with a TTL: each value has the time at which it was written."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Final

from backlog_spark.operators.process.functions import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from backlog_spark.operators.process.state_ttl import Stamps

__all__ = ["stamped"]


class _Stamped(State):
    """Values that are replaced as a whole."""

    stamps: Stamps

    def _get(self) -> Any:
        found = super()._get()
        if self.stamps.on_read and found is not None:
            self._live_on(found)
        return found

    def _set(self, value: Any) -> None:
        super()._set(value)
        self._live_on(value)

    def _live_on(self, value: Any) -> None:
        self.stamps.here = None if value is None else self.stamps.now


class _StampedValue(_Stamped, ValueState):
    def value(self) -> Any:
        found = self._get()
        return self.default if found is None else found

    def update(self, value: Any) -> None:
        self._set(value)


class _StampedReducing(_Stamped, ReducingState):
    pass


class _StampedAggregating(_Stamped, AggregatingState):
    pass


class _StampedList(_Stamped, ListState):
    def _live_on(self, value: Any) -> None:
        self.stamps.here = [self.stamps.now] * len(value) if value else None

    def add_all(self, values: Iterable[Any]) -> None:
        added, found, stamps = list(values), State._get(self), self.stamps
        if found is None:
            self._set(added)
        else:
            found.extend(added)
            stamps.here = [*(stamps.here or ()), *[stamps.now] * len(added)]


class _StampedMap(_Stamped, MapState):
    # Both dicts have the same keys in the same order.

    def _live_on(self, value: Any) -> None:
        self.stamps.here = dict.fromkeys(value or (), self.stamps.now) or None

    def _map(self) -> dict[Any, Any]:
        found = State._get(self)
        if type(found) is dict:
            return found
        made: dict[Any, Any] = dict(found or ())
        State._set(self, made)
        self.stamps.here = dict(zip(made, self.stamps.here or (), strict=True))
        return made

    def _read(self, *keys: Any) -> dict[Any, Any]:
        found = self._map()
        if self.stamps.on_read:
            self.stamps.here.update((key, self.stamps.now) for key in keys or found if key in found)
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        return self._read(key).get(key, default)

    def contains(self, key: Any) -> bool:
        return key in self._read(key)

    def put(self, key: Any, value: Any) -> None:
        self._map()[key] = value
        self.stamps.here[key] = self.stamps.now

    def put_all(self, pairs: dict[Any, Any]) -> None:
        for key, value in pairs.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        self._map().pop(key, None)
        self.stamps.here.pop(key, None)

    def keys(self) -> list[Any]:
        return list(self._read())

    def values(self) -> list[Any]:
        return list(self._read().values())

    def items(self) -> list[tuple[Any, Any]]:
        return list(self._read().items())


_KINDS: Final[tuple[tuple[type[State], type[_Stamped]], ...]] = (
    (ValueState, _StampedValue),
    (ListState, _StampedList),
    (MapState, _StampedMap),
    (ReducingState, _StampedReducing),
    (AggregatingState, _StampedAggregating),
)


def stamped(declared: State, cursor: list[int]) -> tuple[State, Stamps]:
    """A task's own copy of a state with a ``ttl``, and the times of its values."""
    assert declared.ttl is not None
    made = copy.copy(declared)
    made.__class__ = next(ours for kind, ours in _KINDS if isinstance(declared, kind))
    made.stamps = Stamps(declared.ttl, cursor)  # type: ignore[attr-defined]
    return made, made.stamps  # type: ignore[attr-defined]
