"""The position of a phase of Delta that goes on with later commits (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..live_position import LivePosition

__all__ = ["TablePosition"]


@dataclass(frozen=True, kw_only=True)
class TablePosition(LivePosition):
    """A point between two batches. ``file`` is a number within the version.

    Parameters
    ----------
    table : str
        The table's id.
    first : int
        The version that is read whole.
    files : int
        Its number of files.
    version : int
        ``first`` while that is read. Then the next commit with unread files, or the one that is to come.
    """

    form: ClassVar[str] = "commits of a table"

    table: str
    first: int
    files: int
    version: int

    @property
    def in_first(self) -> bool:
        """Whether files of the first version are unread."""
        return self.version == self.first
