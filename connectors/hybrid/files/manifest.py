"""The list of a phase's files, in a file that is named by the digest of its content.

So a position with that name fixes every file, however many there are. A damaged list is detected.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import overload

import pyarrow as pa
import pyarrow.parquet as pq

from backlog_spark.errors import BacklogError

from .entries import DataFile
from .listing import Listed
from .partitioning import values_in
from .stores import Store

__all__ = ["Manifest", "digest_of", "read_manifest", "write_manifest"]

_SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64()), ("tag", pa.string()), ("below", pa.int32())])


class Manifest(Sequence[DataFile]):
    """The files in reading order. An entry is made at its first use."""

    def __init__(self, table: pa.Table) -> None:
        self._columns = [table.column(name).to_pylist() for name in _SCHEMA.names]

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, index: int) -> DataFile: ...

    @overload
    def __getitem__(self, index: slice) -> list[DataFile]: ...

    def __getitem__(self, index: int | slice) -> DataFile | list[DataFile]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        path, size, tag, below = (column[index] for column in self._columns)
        return DataFile(path, size, tag, values_in(path[below:]))


def digest_of(data: bytes) -> str:
    """The name of a content: its digest."""
    return hashlib.sha256(data).hexdigest()[:40]


def write_manifest(store: Store, directory: str, files: Sequence[Listed]) -> str:
    """Write the list and return its name. Equal lists have equal names."""
    columns = [
        pa.array([file.found.path for file in files], pa.string()),
        pa.array([file.found.size for file in files], pa.int64()),
        pa.array([file.found.tag for file in files], pa.string()),
        pa.array([file.below for file in files], pa.int32()),
    ]
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=_SCHEMA), sink, compression="zstd")
    data = sink.getvalue()
    name = digest_of(data)
    store.write(_path(directory, name), data)
    return name


def read_manifest(store: Store, directory: str, name: str) -> Manifest:
    """Read a list that `write_manifest` wrote.

    Raises
    ------
    BacklogError
        If it is gone or damaged.
    """
    path = _path(directory, name)
    hint = (
        "Restore it from a backup, or point metadataLocation to it. Without it the query does not know which files "
        "were read: start again with a new checkpoint."
    )
    try:
        data = store.read(path)
    except FileNotFoundError:
        raise BacklogError(f"The list of files {store.name(path)} is gone.", hint) from None
    if digest_of(data) != name:
        raise BacklogError(f"The list of files {store.name(path)} is damaged.", hint)
    return Manifest(pq.read_table(io.BytesIO(data)))


def _path(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/files-{name}.parquet"
