"""Deletes or archives files whose rows are committed (``cleanSource``).

A mark says up to which file that was done. It is written after the files were moved, so a crash between means that they
are looked at again. A file is only touched while it has the size and tag that were read.
"""

from __future__ import annotations

import json
import logging
import time

from backlog_spark.common.stores import Store
from backlog_spark.errors import BacklogError

from .entries import DataFile
from .ledger import Window
from .manifest import digest_of

__all__ = ["Cleaner"]

_log = logging.getLogger(__name__)

# So many files at a time, because the query waits meanwhile: seconds in an object store. The rest follows with the next
# calls, also while the query is idle.
_AT_ONCE = 1_000
# After a failure, so that an idle query does not warn several times a second.
_RETRY_S = 60.0


class Cleaner:
    """Cleans the files of one phase.

    Parameters
    ----------
    store : Store
        The files'.
    archive : str
        Directory in it for the files; "" deletes them.
    metadata : Store
    mark : str
        Path of the mark in it.
    """

    def __init__(self, store: Store, archive: str, metadata: Store, mark: str) -> None:
        self._store = store
        self._archive = archive.rstrip("/")
        self._metadata = metadata
        self._mark = mark
        self._done: int | None = None
        self._failed: float | None = None

    @property
    def done(self) -> int:
        """Files before this number are cleaned."""
        if self._done is None:
            try:
                self._done = int(json.loads(self._metadata.read(self._mark))["file"])
            except FileNotFoundError:
                self._done = 0
        return self._done

    def clean(self, window: Window, end: int) -> None:
        """Clean files up to a number, or the first of them. Files that cannot be cleaned are tried again later.

        Parameters
        ----------
        window : Window
            The files from `done` on. Earlier ones were cleaned.
        end : int
            All rows before this file are committed.
        """
        first = max(self.done, window.base)
        until = min(end, first + _AT_ONCE)
        now = time.monotonic()
        if first >= until or (self._failed is not None and now - self._failed < _RETRY_S):
            return
        try:
            self._store.each(self._one, window.files[first - window.base : until - window.base])
        except (BacklogError, OSError) as error:
            self._failed = now
            _log.warning("cleanSource: a file cannot be cleaned, and will be tried again: %s", error)
            return
        self._metadata.write(self._mark, json.dumps({"file": until}).encode())
        self._done = until

    def _one(self, file: DataFile) -> None:
        found = self._store.stat(file.path)
        if found is None or not _is_same(file, found.size, found.tag):
            return  # done before, or another file by now
        if not self._archive:
            self._store.delete(file.path)
            return
        to = f"{self._archive}/{file.path.lstrip('/')}"
        there = self._store.stat(to)
        if there is not None and _is_same(file, there.size, there.tag):
            self._store.delete(file.path)  # copied before, but not deleted
            return
        # An earlier content of the same name stays.
        self._store.move(file.path, to if there is None else f"{to}.{digest_of(file.tag.encode())[:8]}")


def _is_same(file: DataFile, size: int, tag: str) -> bool:
    return size == file.size and (not file.tag or tag == file.tag)
