"""The base of all streams: their node, and how an operator makes the next stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from backlog_spark.common.familiar_names import Guided, described
from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from backlog_spark.model.nodes import Node
    from backlog_spark.operators.joins.process import ProcessJoinFunction

__all__ = ["Keyed", "Rows", "Stream", "check_keyed"]

Stream = TypeVar("Stream")
"""The type that operators return: `backlog_spark.BacklogStream`."""

Joined = TypeVar("Joined")
"""The type that an interval join returns: `backlog_spark.api.streams.IntervalJoined`."""


class Rows(Guided, ABC, Generic[Stream, Joined]):
    """A stream of rows. Operators call `then`, so they need not know the class of streams."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @abstractmethod
    def _then(self, node: Node) -> Stream:
        """A stream with another node."""

    @abstractmethod
    def _then_joined(self, joined: Callable[[ProcessJoinFunction | None], Node]) -> Joined:
        """The stream of an interval join. ``joined`` makes its node, with or without a function of the pairs."""


class Keyed(Guided, Generic[Stream, Joined]):
    """Rows grouped by key."""

    def __init__(self, stream: Rows[Stream, Joined], keys: tuple[str, ...], order: str | None) -> None:
        self._stream = stream
        self._keys = keys
        self._order = order


def check_keyed(other: Any, what: str) -> Keyed[Any, Any]:
    """The second stream of an operator with two inputs; it must be keyed.

    Raises
    ------
    BacklogError
        For anything but a keyed stream.
    """
    if not isinstance(other, Keyed):
        raise BacklogError(f"{what} was given {described(other)}.", f'Pass a keyed stream: {what}(b.key_by("id")).')
    return other
