"""The position of a phase of files that goes on to find new ones (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..live_position import LivePosition

__all__ = ["FilesPosition"]


@dataclass(frozen=True, kw_only=True)
class FilesPosition(LivePosition):
    """A point between two batches. ``file`` is a number among all files.

    Parameters
    ----------
    id : str
        Name of the directory with the lists.
    began, head : str
        The head of the first listing, and the present one.
    first, files : int
        Files of the first listing, and of all up to now.
    """

    form: ClassVar[str] = "lists of files"

    id: str
    began: str
    head: str
    first: int
    files: int

    @property
    def in_first(self) -> bool:
        """Whether files of the first listing are unread."""
        return self.file < self.first
