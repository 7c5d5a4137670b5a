"""The list of a phase's files, in a file that is named by the digest of its content.

So a position with that name fixes every file, however many there are. A damaged list is detected.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backlog_spark.common.stores import Store
from backlog_spark.errors import BacklogError

from .entries import DataFile
from .partitioning import values_in

__all__ = ["Manifest", "digest_of", "read_manifest", "read_named", "write_manifest"]

_SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64()), ("tag", pa.string()), ("below", pa.int32())])


class Manifest(Sequence[DataFile]):
    """The files in reading order. An entry is made at its use."""

    def __init__(self, table: pa.Table) -> None:
        self._columns = [_whole(table.column(name)) for name in _SCHEMA.names]

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each file."""
        found: np.ndarray = self._columns[1].to_numpy(zero_copy_only=False)
        return found

    @overload
    def __getitem__(self, index: int) -> DataFile: ...

    @overload
    def __getitem__(self, index: slice) -> list[DataFile]: ...

    def __getitem__(self, index: int | slice) -> DataFile | list[DataFile]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        path, size, tag, below = (column[index].as_py() for column in self._columns)
        return DataFile(path, size, tag, values_in(path[below:]))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece. `combine_chunks` would copy a single chunk too."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def digest_of(data: bytes) -> str:
    """The name of a content: its digest."""
    return hashlib.sha256(data).hexdigest()[:40]


def write_manifest(store: Store, directory: str, files: pa.Table) -> str:
    """Write the list, a table with the columns of `FOUND`, and return its name. Equal lists have equal names."""
    sink = io.BytesIO()
    pq.write_table(files.select(_SCHEMA.names).cast(_SCHEMA), sink, compression="zstd")
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
    return Manifest(pq.read_table(io.BytesIO(read_named(store, _path(directory, name), name))))


def read_named(store: Store, path: str, digest: str) -> bytes:
    """The content of a file that is named by its digest.

    Raises
    ------
    BacklogError
        If it is gone or damaged.
    """
    hint = (
        "Restore it from a backup, or point metadataLocation to it. Without it the query does not know which files "
        "were read: start again with a new checkpoint."
    )
    try:
        data = store.read(path)
    except FileNotFoundError:
        raise BacklogError(f"The list of files {store.name(path)} is gone.", hint) from None
    if digest_of(data) != digest:
        raise BacklogError(f"The list of files {store.name(path)} is damaged.", hint)
    return data


def _path(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/files-{name}.parquet"
