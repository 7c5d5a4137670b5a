"""Plans where batches of files end, and which task reads what (no I/O except through `look`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .entries import DataFile, FilePartition, Piece
from .layouts import Layout
from .manifest import Manifest

__all__ = ["FileOffset", "Planner"]

#: Number of a file, and the next offset in it; 0 for its beginning.
FileOffset = tuple[int, int]

# The cost of opening a file, as bytes that could be read instead: 1 ms locally, some 30 ms in an object store.
_OPEN_BYTES = 512 << 10
# A task costs about 45 ms beside its rows: a query that reads 1.2 GB twice takes 100 tasks of 32 MB 7.2 s, and 20 of
# 128 MB 5.7 s, on two cores. Smaller batches need the tasks for the cores of a cluster.
_LEAST_BYTES, _MOST_BYTES, _TASKS = 32 << 20, 128 << 20, 16
# Parallel requests, if a look takes one.
_THREADS = 16


class Planner:
    """Plans over a fixed sequence of files.

    Parameters
    ----------
    files : sequence of DataFile
    look : callable
        Gives the layout of a file; None for a file that is skipped.
    looks : int
        The most files to look into for one batch (see `Format.looks`).
    is_remote : bool
        Whether a look takes long, so that several run in parallel.
    max_files : int or None
        The most files of a batch.
    partition_bytes : int or None
        Approximate bytes of one task. None: it depends on the bytes of the batch.
    max_bytes : int or None
        The most bytes of the files of a batch, unless it has one file.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        look: Callable[[DataFile], Layout | None],
        looks: int,
        is_remote: bool,
        max_files: int | None,
        partition_bytes: int | None,
        max_bytes: int | None = None,
    ) -> None:
        self._files = files
        self._look = look
        self._looks = looks
        self._threads = _THREADS if is_remote else 1
        self._max_files = max_files
        self._given = partition_bytes
        self._large = partition_bytes or _LEAST_BYTES  # a file that is split
        self._layouts: dict[int, Layout | None] = {}
        self._max_bytes = max_bytes
        # Total bytes before each file, and of all files.
        sizes = files.sizes if isinstance(files, Manifest) else np.array([file.size for file in files], np.int64)
        self._before = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        # Rows of all files, if known for each.
        self._known: int | None = None if isinstance(files, Manifest) and len(files) else 0
        if self._known is not None:
            for file in files:
                self._known = None if self._known is None or file.rows is None else self._known + file.rows
        self._seen_rows = 0.0
        self._seen_bytes = 0

    @property
    def end(self) -> FileOffset:
        return len(self._files), 0

    @property
    def total(self) -> int | None:
        """Rows of all files. Estimated from the files seen so far if unknown; None before that."""
        if self._known is not None:
            return self._known
        if not self._seen_bytes:
            return None
        return round(int(self._before[-1]) * self._seen_rows / self._seen_bytes)

    def rows_after(self, offset: FileOffset) -> int:
        """Rows of all files from an offset on, estimated from the files seen so far."""
        if not self._seen_bytes:
            return 0
        left = int(self._before[-1] - self._before[offset[0]])
        return round(left * self._seen_rows / self._seen_bytes)

    def next(self, start: FileOffset, wanted: int | None, until: int | None = None) -> tuple[FileOffset, int]:
        """The end of the next batch, and its approximate number of rows.

        Parameters
        ----------
        start : tuple of (int, int)
        wanted : int or None
            Least number of rows; None for all. The limits on files and bytes have priority.
        until : int or None
            The batch ends before this file.
        """
        self._layouts = {i: layout for i, layout in self._layouts.items() if i >= start[0]}
        last = self._last(start[0], len(self._files) if until is None else until)
        if wanted is None:
            return (last, 0), self._rows_until(start, last)
        if wanted <= 0:
            return start, 0
        index, offset = start
        looks, counted = self._looks, 0.0
        while index < last and counted < wanted:
            file = self._files[index]
            if offset == 0 and file.rows is not None and file.rows <= wanted - counted:
                counted += file.rows
            elif index in self._layouts or looks > 0 or not self._seen_rows or file.size > self._large:
                looks -= 0 if index in self._layouts else self._look_ahead(index, min(last, index + max(1, looks)))
                layout = self._layouts[index]
                if layout is not None:
                    at, rows = layout.advance(offset, wanted - counted)
                    counted += rows
                    if at is not None:
                        return (index, at), round(counted)
            else:
                counted += file.size * self._seen_rows / max(1, self._seen_bytes)
            index, offset = index + 1, 0
        return (index, 0), round(counted)

    def _last(self, first: int, end: int) -> int:
        """The end of the files that may be in a batch."""
        if self._max_files is not None:
            end = min(end, first + self._max_files)
        if self._max_bytes is not None:
            whole = int(np.searchsorted(self._before, self._before[first] + self._max_bytes, "right")) - 1
            end = min(end, max(first + 1, whole))
        return end

    def _rows_until(self, start: FileOffset, last: int) -> int:
        if start == (0, 0) and last == len(self._files) and self._known is not None:
            return self._known
        if start[0] >= last:
            return 0
        if not self._seen_rows:
            self._look_ahead(start[0], start[0] + 1)
        rows = int(self._before[last] - self._before[start[0]]) * self._seen_rows / max(1, self._seen_bytes)
        layout = self._layouts.get(start[0])
        return round(rows - (layout.rows(0, start[1]) if layout is not None and start[1] else 0))

    def _look_ahead(self, index: int, end: int) -> int:
        """Look into a file, and into the files after it if looks take long. Returns how many files that were."""
        wanted = [i for i in range(index, min(end, index + self._threads)) if i not in self._layouts]
        if len(wanted) > 1:
            with ThreadPoolExecutor(self._threads) as pool:
                found = list(pool.map(self._look, [self._files[i] for i in wanted]))
        else:
            found = [self._look(self._files[i]) for i in wanted]
        for i, layout in zip(wanted, found, strict=True):
            self._layouts[i] = layout
            if layout is not None:
                self._seen_rows += layout.rows(0, None)
                self._seen_bytes += self._files[i].size
        return len(wanted)

    def partitions(self, start: FileOffset, end: FileOffset) -> list[FilePartition]:
        """The pieces that tasks read between two offsets. Depends only on the files, not on earlier planning."""
        found: list[FilePartition] = []
        pieces: list[Piece] = []
        taken = 0
        most = self._given or min(max(self._bytes(start, end) // _TASKS, _LEAST_BYTES), _MOST_BYTES)
        for piece, size in self._pieces(start, end, most):
            if pieces and taken + size > most:
                found.append(FilePartition(pieces))
                pieces, taken = [], 0
            pieces.append(piece)
            taken += size + _OPEN_BYTES
        return [*found, FilePartition(pieces)] if pieces else found

    def _bytes(self, start: FileOffset, end: FileOffset) -> int:
        """Of all files between two offsets."""
        return int(self._before[min(end[0] + 1, len(self._files))] - self._before[start[0]])

    def _pieces(self, start: FileOffset, end: FileOffset, most: int) -> Iterator[tuple[Piece, int]]:
        for index in range(start[0], min(end[0] + 1, len(self._files))):
            file = self._files[index]
            first = start[1] if index == start[0] else 0
            last = None if index < end[0] else end[1]
            if last == first == 0 or last == first:
                continue
            layout = None
            if first or last is not None or file.size > most:
                if index not in self._layouts:
                    self._look_ahead(index, index + 1)
                layout = self._layouts[index]
            if layout is None:
                yield Piece(file, first, last), file.size
            else:
                yield from ((Piece(file, a, b), size) for a, b, size in layout.cuts(first, last, most))
