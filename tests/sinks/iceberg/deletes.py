"""Deletes rows of an Iceberg table by position or by value, as Spark and Flink do; pyiceberg writes no such files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

_FIELDS = {"file_path": (pa.string(), 2147483546), "pos": (pa.int64(), 2147483545)}


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deletion(_FastAppendFiles):
    file: DataFile

    def _manifests(self) -> list[ManifestFile]:
        spec, schema = self._transaction.table_metadata.spec(), self.schema()
        output = self.new_manifest_output()
        with _DeleteManifest(spec, schema, output, self._snapshot_id, self._compression) as writer:
            entry: dict[str, Any] = {"sequence_number": None, "file_sequence_number": None, "data_file": self.file}
            writer.add(
                ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, **entry)
            )
        return [writer.to_manifest_file(), *self._existing_manifests()]


def delete_positions(table: Table, path: str, positions: list[int]) -> None:
    """Delete rows of one data file of an unpartitioned table."""
    columns = [pa.array([path] * len(positions)), pa.array(positions)]
    fields = [
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
        for name, (kind, number) in _FIELDS.items()
    ]
    location = f"{table.location()}/data/deletes-{positions[0]}.parquet"
    with table.io.new_output(location).create() as out:
        pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), out)
    _commit(table, DataFileContent.POSITION_DELETES, location, len(positions))


def delete_keys(table: Table, column: str, values: list[int]) -> str:
    """Delete rows of an unpartitioned table whose column has these values. Returns the path of the file."""
    number = table.schema().find_field(column).field_id
    field = pa.field(column, pa.int64(), metadata={"PARQUET:field_id": str(number)})
    location = f"{table.location()}/data/equality-deletes-{values[0]}.parquet"
    with table.io.new_output(location).create() as out:
        pq.write_table(pa.Table.from_arrays([pa.array(values)], schema=pa.schema([field])), out)
    _commit(table, DataFileContent.EQUALITY_DELETES, location, len(values), equality_ids=[number])
    return location


def _commit(table: Table, content: DataFileContent, location: str, rows: int, **more: Any) -> None:
    transaction = table.transaction()
    deletion = _Deletion(Operation.DELETE, transaction, table.io)
    deletion.file = DataFile.from_args(
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=len(table.io.new_input(location)),
        spec_id=0,
        **more,
    )
    deletion.commit()
    transaction.commit_transaction()
