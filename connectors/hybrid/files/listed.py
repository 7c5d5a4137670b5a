"""A phase over files that are all known at the query's first start: a directory, or a version of a table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from backlog_spark.common.durations import format_duration
from backlog_spark.common.stored_values import reading_stored
from backlog_spark.common.stores import Store, arguments_for, scheme_of, store_of
from backlog_spark.spi.examination import Finding, Severity

from ..phases import Columns, Limit, Outlook, Phase, Position, Seen, Step
from .entries import DataFile, FilePartition
from .formats import Format
from .layouts import Layout
from .options import ReadOptions
from .phase_handoff import Handover, check_handover
from .planning import FileOffset, Planner
from .reading import Reader

__all__ = ["ListedPhase"]

# For a rough estimate only: compressed files, two cores.
_BYTES_PER_S = 30 << 20


class ListedPhase(Phase):
    """Reads files in a fixed order.

    A position fixes the files as of the query's first start (from `pin`, or from `begin` for the first phase). It also
    has ``files``, their number; ``file``, the number of the next file; and ``offset``, the position in it. Each kind of
    phase adds where the files come from.

    Parameters
    ----------
    name : str
    form : Format
    options : ReadOptions
    """

    is_bounded = True

    def __init__(self, name: str, form: Format, options: ReadOptions) -> None:
        super().__init__(name)
        self.format = form
        self._read = options
        self._columns: Columns | None = None
        self._forget()

    def _forget(self) -> None:
        """Drop cached objects. They are made again when needed."""
        self._opened: Store | None = None
        self._planners: dict[str, Planner] = {}
        self._lists: dict[str, Sequence[DataFile]] = {}

    @property
    @abstractmethod
    def _url(self) -> str:
        """The location of the files."""

    def _open_store(self) -> Store:
        """The store that the files are in."""
        return store_of(self._url, self._storage)[0]

    @property
    def _storage(self) -> dict[str, str]:
        """Arguments of the files' file system. Secret."""
        return arguments_for(self._url, self._read.storage)

    @abstractmethod
    def _fixed(self, position: Position) -> dict[str, Any]:
        """The part of a position that fixes the files."""

    @abstractmethod
    def _list(self, position: Position) -> Sequence[DataFile]:
        """The files of a position, in order."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None, "_planners": {}, "_lists": {}}

    def open(self, columns: Columns) -> None:
        check_handover(self._read, columns.data)
        self._columns = columns

    def pin(self) -> Position:
        return self._begin()

    def begin(self, before: Mapping[str, Any]) -> Position:
        return before.get("pinned") or self._begin()

    @abstractmethod
    def _begin(self) -> Position:
        """The position before the first row of the present data."""

    def examine(self, before: Outlook) -> Seen:
        files = self._present()
        if not files:
            nothing = Finding(Severity.NOTE, f"phase {self.name}", f"there is no file in {self._url}.")
            return Seen(first=[nothing], then=replace(before, last_ms=None, is_sure=True))
        size = sum(file.size for file in files)
        rows = [file.rows for file in files]
        counted = f"{len(files):,} file{'s' if len(files) > 1 else ''}"
        if None not in rows:
            counted += f" with {sum(row or 0 for row in rows):,} rows"
        takes_ms = max(1, size // _BYTES_PER_S) * 1000
        found = Finding(
            Severity.OK, f"phase {self.name}",
            f"{counted}, {size:,} bytes, in {self._url}: roughly {format_duration(takes_ms)} with two cores.",
        )  # fmt: skip
        last, is_sure = None, True
        if self._read.timestamp_column:
            reader = Reader(self.name, self._store(), self.format, Columns(pa.schema([])), self._read.fails_on_loss)
            scan = Handover(files, reader, self.format, Columns(pa.schema([])), self._read)
            last, is_sure = scan.newest()
        return Seen(first=[found], then=Outlook(last, is_sure, before.wait_ms + takes_ms))

    @abstractmethod
    def _present(self) -> Sequence[DataFile]:
        """The files that a query would read if it started now."""

    def first(self, position: Position) -> Position:
        return self._at(position, (0, 0))

    def next(self, start: Position, limit: Limit, now_ms: float) -> Step:
        planner = self._planner(start)
        offset = _offset(start)
        if offset == planner.end:
            return Step(start, 0, is_finished=True, total=planner.total)
        end, rows = planner.next(offset, limit.rows)
        position = start if end == offset else self._at(start, end)
        return Step(position, rows, is_finished=end == planner.end, total=planner.total)

    def partitions(self, start: Position, end: Position) -> list[FilePartition]:
        return self._planner(start).partitions(_offset(start), _offset(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilePartition)
        yield from self._reader().batches(partition.pieces)

    def ended(self, position: Position) -> Mapping[str, Any]:
        if not self._read.timestamp_column:
            return {}
        assert self._columns is not None, "the columns are not known yet"
        handover = Handover(self._files(position), self._reader(), self.format, self._columns, self._read)
        return handover.as_json(self._metadata)

    def close(self) -> None:
        self._forget()

    def _at(self, position: Position, offset: FileOffset) -> Position:
        return {**self._fixed(position), "files": position["files"], "file": offset[0], "offset": offset[1]}

    def _store(self) -> Store:
        if self._opened is None:
            self._opened = self._open_store()
        return self._opened

    def _metadata(self) -> tuple[Store, str]:
        """The store and directory for files that the phase writes."""
        location = self._read.metadata_location
        # Credentials are only given to the file system that they belong to.
        plain = scheme_of(self._url) in (scheme_of(location), "file")
        return store_of(location, arguments_for(location, self._read.storage, plain=plain))

    def _files(self, position: Position) -> Sequence[DataFile]:
        key = repr(self._fixed(position))
        if key not in self._lists:
            self._lists = {key: self._list(position)}
        return self._lists[key]

    def _planner(self, position: Position) -> Planner:
        key = repr(self._fixed(position))
        if key not in self._planners:
            self._planners = {key: self._plan(self._files(position))}
        return self._planners[key]

    def _plan(self, files: Sequence[DataFile]) -> Planner:
        return Planner(
            files,
            self._look,
            self.format.looks,
            self._store().is_remote,
            self._read.max_files,
            self._read.partition_bytes,
            self._read.max_bytes,
        )

    def _look(self, file: DataFile) -> Layout | None:
        return self._reader().use(file, lambda source: self.format.layout(source, file))

    def _reader(self) -> Reader:
        assert self._columns is not None, "the columns are not known yet"
        return Reader(self.name, self._store(), self.format, self._columns, self._read.fails_on_loss)


def _offset(position: Position) -> FileOffset:
    with reading_stored("The position of a phase of files in the checkpoint"):
        file, offset = position["file"], position["offset"]
        if not type(file) is type(offset) is int or min(file, offset) < 0:
            raise ValueError(f"file {file}, offset {offset}")
        return file, offset
