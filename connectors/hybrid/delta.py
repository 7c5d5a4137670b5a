"""The phase of a Delta table: reads one version of it, through the list of files in the table's log."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from backlog_spark.common.stores import FileFound, LocalStore, Store, scheme_of, store_of
from backlog_spark.errors import BacklogError, SettingError

from .files.bitmaps import packed
from .files.columnar import ParquetFormat
from .files.entries import DataFile
from .files.listed import ListedPhase
from .files.options import DeltaOptions
from .files.sparktypes import spark_schema
from .phases import Position
from .table.fields import chars_of, names_of, unsupported

__all__ = ["DeltaPhase"]


class DeltaPhase(ListedPhase):
    """Reads one version of a Delta table, each row once.

    The position has the version, and the version defines the files, so no list of files is kept. A file that VACUUM has
    removed is an error, or is skipped with ``failOnDataLoss=false``. Deletion vectors and column mapping by name are
    supported. Other features are refused by name.

    Parameters
    ----------
    name : str
    options : mapping
        See `backlog_spark.connectors.hybrid.files.options.DeltaOptions`.
    others : collection of str
        Names of options that other modules read.

    Raises
    ------
    SettingError
    """

    def __init__(self, name: str, options: Mapping[str, str], others: Collection[str] = ()) -> None:
        parsed = DeltaOptions.parse(options, others)
        super().__init__(name, ParquetFormat(), parsed.read)
        self.options = parsed

    def schema(self) -> pa.Schema:
        return self._schema_of(self._table(self.options.version, self.options.time))

    def columns_at_hand(self) -> list[pa.Schema] | None:
        return [self.schema()]

    def schema_at(self, position: Position) -> pa.Schema | None:
        try:
            table = self._table(position["version"], None)
        except BacklogError:
            return None  # the query then fails if it must still read the table
        return self._schema_of(table) if table.metadata().id == position["table"] else None

    def _schema_of(self, table: DeltaTable) -> pa.Schema:
        return spark_schema(self.options.path, pa.schema(table.schema().to_arrow()))

    def _begin(self) -> Position:
        table = self._table(self.options.version, self.options.time)
        position = {"table": table.metadata().id, "version": table.version()}
        self._lists = {repr(position): self._files_of(table)}
        return {**position, "files": len(self._files(position)), "file": 0, "offset": 0}

    def _present(self) -> list[DataFile]:
        return self._files_of(self._table(self.options.version, self.options.time))

    def _fixed(self, position: Position) -> dict[str, Any]:
        if "form" in position:
            raise BacklogError(
                f"The checkpoint's position in the phase {self.name} was made with discovery=continuous.",
                "Set discovery=continuous, or start with a new checkpoint.",
            )
        return {"table": position["table"], "version": position["version"]}

    def _list(self, position: Position) -> Sequence[DataFile]:
        table = self._table(position["version"], None)
        if table.metadata().id != position["table"]:
            raise BacklogError(
                f"The Delta table {self.options.path} is not the table of the query's start: its id is "
                f"{table.metadata().id}, and was {position['table']}.",
                "Restore the table, or start again with a new checkpoint.",
            )
        return self._files_of(table)

    @property
    def _url(self) -> str:
        return self.options.path

    def _open_store(self) -> Store:
        if scheme_of(self._url) == "file":
            return LocalStore()
        return _TableStore(self._url, self._storage)

    def _metadata(self) -> tuple[Store, str]:
        location = self._read.metadata_location
        if scheme_of(location) == "file" or scheme_of(location) != scheme_of(self._url):
            return super()._metadata()
        return _TableStore(location, self._storage), ""

    def _table(self, version: int | None, time: datetime | None) -> DeltaTable:
        storage = self._storage
        try:
            table = DeltaTable(self._root(), version=version, storage_options=storage or None)
            if time is not None:
                # Ask for the history first: for a table at an older version the package numbers the commits wrongly.
                commits = {commit["version"]: commit["timestamp"] for commit in table.history()}
                table.load_as_version(time)
        except (DeltaError, OSError) as error:
            words = str(error)
            for secret in storage.values():
                words = words.replace(secret, "***")
            hint = "Check path, versionAsOf and fs.*, and whether the log still has the version."
            if "Failed to parse value" in words:
                hint = (
                    "A partition column may have been widened, which is not supported here: use Spark's own reader "
                    "(bs.hybrid), or rewrite the table."
                )
            wanted = "" if version is None else f" at version {version}"
            raise BacklogError(
                f"The Delta table {self.options.path} cannot be opened{wanted}: {words.strip()}.",
                hint,
            ) from None
        if time is not None and commits.get(table.version(), 0) > time.timestamp() * 1000:
            raise SettingError(
                "timestampAsOf", time.isoformat(), "is before the first version in the table's log.",
                "Set a later time, or versionAsOf.",
            )  # fmt: skip
        self._check_features(table)
        return table

    def _root(self) -> str:
        if scheme_of(self.options.path) == "file":
            return store_of(self.options.path, {})[1]
        return self.options.path

    def _prefix(self) -> str:
        """What the store's paths have before those in the table."""
        return "" if isinstance(self._store(), _TableStore) else self._root().rstrip("/") + "/"

    def _check_features(self, table: DeltaTable) -> None:
        unknown = unsupported(table.protocol().reader_features or (), table.metadata().configuration)
        if unknown:
            raise BacklogError(
                f"The Delta table {self.options.path} has features that are not supported here: {', '.join(unknown)}.",
                "Drop the features from the table, or read a copy without them.",
            )

    def _files_of(self, table: DeltaTable) -> list[DataFile]:
        actions = pa.table(table.get_add_actions(flatten=True))
        fields = json.loads(table.schema().to_json())["fields"]
        names, chars = names_of(fields), chars_of(fields)
        has_deleted = "deletionVectors" in (table.protocol().reader_features or ())
        kept = _kept(table) if has_deleted else {}
        prefix = self._prefix()
        partitions = {
            column: actions.column(f"partition.{column}").cast(pa.string()).to_pylist()
            for column in table.metadata().partition_columns
        }
        found = []
        for i, action in enumerate(actions.select(["path", "size_bytes", "num_records"]).to_pylist()):
            path = unquote(action["path"])
            if path.startswith("/") or "://" in path:
                raise BacklogError(
                    f"The Delta table {self.options.path} has files of another table, such as {path}: it is a shallow "
                    "clone, which is not supported here.",
                    "Read the table that it was cloned from, or a deep clone.",
                )
            mask, rows = kept.pop(path, None), action["num_records"]
            found.append(
                DataFile(
                    prefix + path,
                    action["size_bytes"],
                    values=tuple((column, texts[i]) for column, texts in partitions.items()),
                    rows=rows if mask is None or rows is None else rows - int(np.count_nonzero(~mask)),
                    deleted=b"" if mask is None else packed(mask),
                    names=names,
                    chars=chars,
                )
            )
        if kept:
            raise BacklogError(
                f"The Delta table {self.options.path} has deletion vectors for files that are not its own, such as "
                f"{next(iter(kept))}.",
                "Check the table's log.",
            )
        times = actions.column("modification_time").to_pylist()
        return [file for _, file in sorted(zip(times, found, strict=True), key=lambda pair: (pair[0], pair[1].path))]


def _kept(table: DeltaTable) -> dict[str, npt.NDArray[np.bool_]]:
    """For files with deleted rows: which rows are kept, by the file's path in the table."""
    found = {}
    root = unquote(table.table_uri).rstrip("/") + "/"
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for url, mask in zip(batch.column("filepath"), batch.column("selection_vector"), strict=True):
            values = mask.values.to_numpy(zero_copy_only=False).astype(np.bool_)
            found[unquote(url.as_py()).removeprefix(root)] = values
    return found


class _TableStore(Store):
    """The files of a table, through the client that reads its log. So one set of options serves both."""

    def __init__(self, uri: str, storage: dict[str, str]) -> None:
        self._uri = uri.rstrip("/")
        self._system = pafs.PyFileSystem(DeltaStorageHandler(uri, storage))

    def name(self, path: str) -> str:
        return f"{self._uri}/{path}"

    def stat(self, path: str) -> FileFound | None:
        found = self._system.get_file_info(path)
        if found.type == pafs.FileType.NotFound:
            return None
        return FileFound(path, found.type == pafs.FileType.Directory, found.size or 0, str(found.mtime_ns or ""), 0.0)

    def children(self, path: str) -> list[FileFound]:
        infos = self._system.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return [FileFound(i.path, i.type == pafs.FileType.Directory, i.size or 0, "", 0.0) for i in infos]

    def open(self, path: str) -> pa.NativeFile:
        return self._system.open_input_file(path)

    def read(self, path: str) -> bytes:
        with self.open(path) as source:
            return bytes(source.read())

    def write(self, path: str, data: bytes) -> None:
        with self._system.open_output_stream(path) as sink:
            sink.write(data)
