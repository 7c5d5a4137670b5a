"""The offset of ``hybrid``: which phase, and where in it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backlog_spark.errors import BacklogError

from .phases import Position

__all__ = ["HybridOffset"]

_VERSION = 1


@dataclass(frozen=True)
class HybridOffset:
    """All that fixes what has been read.

    Parameters
    ----------
    phases : tuple of str
        The source's phases, each ``name:kind``.
    phase : int
        The present one.
    position : dict or None
        Where in it; None before anything was planned.
    ended : tuple of dict
        The last positions of the phases before.
    is_backlog : bool
        Of the batch that ends here.
    is_processing_backlog : bool
        From here on.
    is_finished : bool
        Nothing follows.
    rows, rows_before : int
        Rows up to here, and up to the phase's beginning, as far as known; never for reading.
    total : int or None
        Rows of the whole backlog, if there is an estimate.
    pinned : mapping of str to dict
        By number of the phase: what a phase that has not begun found when the query first started.
    fixed_ms : int or None
        When all of them had, milliseconds since 1970; None when all have begun.
    """

    phases: tuple[str, ...]
    phase: int = 0
    position: Position | None = None
    ended: tuple[Position, ...] = ()
    is_backlog: bool = False
    is_processing_backlog: bool = False
    is_finished: bool = False
    rows: int = 0
    rows_before: int = 0
    total: int | None = None
    pinned: Mapping[str, Position] = field(default_factory=dict)
    fixed_ms: int | None = None

    def last_of(self, phase: int) -> Position:
        """The last position in a phase that was read from, up to this offset."""
        position = self.ended[phase] if phase < self.phase else self.position
        assert position is not None, "asked of phases that were begun"
        return position

    def to_json(self) -> dict[str, Any]:
        """As Spark logs it; equal offsets have equal texts."""
        return {
            "version": _VERSION,
            "phases": list(self.phases),
            "phase": self.phase,
            "position": self.position,
            "ended": list(self.ended),
            "rows": self.rows,
            "rowsBefore": self.rows_before,
            **({} if self.total is None else {"total": self.total}),
            **({"pinned": dict(self.pinned)} if self.pinned else {}),
            **({} if self.fixed_ms is None else {"fixedAt": self.fixed_ms}),
            "isBacklog": self.is_backlog,
            "isProcessingBacklog": self.is_processing_backlog,
            "isFinished": self.is_finished,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> HybridOffset:
        """From `to_json`.

        Raises
        ------
        BacklogError
            For another version.
        """
        if data.get("version") != _VERSION:
            raise BacklogError(
                f"The checkpoint has offsets of version {data.get('version')} of hybrid; this is version {_VERSION}.",
                "Use the release that made it, or start with a new checkpoint.",
            )
        return cls(
            tuple(data["phases"]),
            data["phase"],
            data["position"],
            tuple(data["ended"]),
            data["isBacklog"],
            data["isProcessingBacklog"],
            data["isFinished"],
            data["rows"],
            data["rowsBefore"],
            data.get("total"),
            data.get("pinned", {}),
            data.get("fixedAt"),
        )
