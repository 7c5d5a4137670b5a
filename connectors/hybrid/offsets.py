"""The offset of ``hybrid``: the phase, and the position in it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backlog_spark.common.stored_values import check_version, checked, reading_stored
from backlog_spark.spi.offset_flags import NO_ROWS_YET

from .phases import Position

__all__ = ["HybridOffset"]

_VERSION = 1


@dataclass(frozen=True)
class HybridOffset:
    """Everything that defines what has been read.

    Parameters
    ----------
    phases : tuple of str
        The source's phases, each ``name:kind``.
    phase : int
        The present phase.
    position : dict or None
        The position in it; None before anything was planned.
    ended : tuple of dict
        The last positions of the earlier phases.
    is_backlog : bool
        Whether the batch that ends here is backlog.
    is_processing_backlog : bool
        Whether the source is processing backlog from here on.
    is_finished : bool
        Whether nothing follows.
    rows, rows_before : int
        Rows up to here, and up to the start of the phase, as far as known. For display only.
    total : int or None
        Rows of the whole backlog, if there is an estimate.
    pinned : mapping of str to dict
        For phases that have not begun: their state when the query first started, by phase number.
    fixed_ms : int or None
        When all of them had been pinned, in milliseconds since 1970; None when all have begun.
    no_rows_yet : bool
        No row has been given up to here. Only a source of one phase without an end says so.
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
    no_rows_yet: bool = False

    def last_of(self, phase: int) -> Position:
        """The last position in a phase, up to this offset."""
        position = self.ended[phase] if phase < self.phase else self.position
        assert position is not None, "only for phases that have begun"
        return position

    def to_json(self) -> dict[str, Any]:
        """The form in Spark's log. Equal offsets have equal texts."""
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
            **({NO_ROWS_YET: True} if self.no_rows_yet else {}),
            "isBacklog": self.is_backlog,
            "isProcessingBacklog": self.is_processing_backlog,
            "isFinished": self.is_finished,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> HybridOffset:
        """The inverse of `to_json`.

        Raises
        ------
        BacklogError
            For an offset of another version, or a damaged one.
        """
        check_version("The offset of hybrid in the checkpoint", data.get("version"), _VERSION)
        with reading_stored("The offset of hybrid in the checkpoint"):
            found = cls(
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
                data.get(NO_ROWS_YET) is True,
            )
            if len(found.ended) != found.phase or not 0 <= found.phase < len(found.phases):
                raise ValueError(f"{len(found.ended)} phases have ended before phase {found.phase}")
            return checked(found)
