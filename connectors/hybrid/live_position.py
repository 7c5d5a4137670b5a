"""The position of a phase without an end, as far as all such phases have the same (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from backlog_spark.common.stored_values import checked, reading_stored
from backlog_spark.errors import BacklogError

from .hysteresis import Flag
from .phases import Position

__all__ = ["LivePosition"]


@dataclass(frozen=True, kw_only=True)
class LivePosition:
    """A point between two batches.

    Parameters
    ----------
    file, offset : int
        Number of the next file, and the position in it.
    rows : int
        Rows up to here, as far as known.
    is_backlog : bool
    since : int
        As in `Flag`.
    began_since : int
        The same when the phase began.
    """

    form: ClassVar[str]
    """Tells positions of this class from others in a checkpoint."""

    file: int
    offset: int
    rows: int
    is_backlog: bool
    since: int
    began_since: int

    @property
    def flag(self) -> Flag:
        return Flag(self.is_backlog, self.since)

    def to_json(self) -> Position:
        return {"form": self.form, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`.

        Raises
        ------
        BacklogError
            If it has another form, or is damaged.
        """
        if data.get("form") != cls.form:
            raise BacklogError(
                f"The checkpoint has no position in {cls.form}: it was made with another value of "
                "discovery, or by another release.",
                "Set discovery as it was, or start with a new checkpoint.",
            )
        with reading_stored(f"The position in {cls.form} in the checkpoint"):
            return checked(cls(**{name: value for name, value in data.items() if name != "form"}))
