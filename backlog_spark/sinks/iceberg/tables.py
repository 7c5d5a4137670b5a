"""Creates an Iceberg table for a stream, or makes an existing one fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.iceberg.columns import check_table, new_schema, widened
from backlog_spark.sinks.iceberg.partitions import Partition, check_transform, spec_of

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql.types import StructField

    from backlog_spark.sinks.iceberg.catalogs import CatalogAccess

__all__ = ["create", "fitted", "refuse_equality_deletes"]

_WRITABLE = 2


def create(
    access: CatalogAccess,
    table: str,
    stored: Sequence[StructField],
    partition_by: Sequence[Partition],
    properties: Mapping[str, str],
) -> None:
    """Create a table and its namespace, unless another query does so first.

    Raises
    ------
    BacklogError
        Iceberg has no type for a column, the columns do not fit the partitions, or the catalog refuses.
    """
    from pyiceberg.exceptions import TableAlreadyExistsError

    schema = new_schema(stored)
    partitions = spec_of(schema, partition_by)
    with access.readable():
        try:
            access.catalog.create_namespace_if_not_exists(table.rpartition(".")[0])
            access.catalog.create_table(table, schema, partition_spec=partitions, properties=dict(properties))
        except TableAlreadyExistsError:
            pass


def fitted(
    place: str, table: Table, stored: Sequence[StructField], keys: Collection[str], *, merge_schema: bool
) -> None:
    """Check that a table fits a stream. With ``merge_schema`` it gets new and wider columns first.

    Raises
    ------
    BacklogError
        It does not fit, or pyiceberg cannot write it.
    """
    version = table.metadata.format_version
    if version > _WRITABLE:
        raise BacklogError(
            f"The Iceberg table {place} has format version {version}, which pyiceberg cannot write.",
            "Name another table: the sink creates one of version 2.",
        )
    stream = new_schema(stored)
    if merge_schema:
        _widen(table, stream, keys)
    check_table(place, table.schema(), stream, keys)
    for field in table.spec().fields:
        try:
            check_transform(field.transform, table.schema().find_field(field.source_id).field_type)
        except BacklogError as error:
            raise BacklogError(
                f"The Iceberg table {place} cannot be written: {error.problem}",
                f"{error.hint} Or name a table with other partitions.",
            ) from None


def refuse_equality_deletes(place: str, table: Table) -> None:
    """Refuse a table whose rows pyiceberg cannot read, as another engine has left equality deletes in it.

    Raises
    ------
    BacklogError
    """
    from pyiceberg.manifest import DataFileContent, ManifestContent

    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        if manifest.content != ManifestContent.DELETES:
            continue
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                raise BacklogError(
                    f"Another engine has left equality deletes in the Iceberg table {place}, which pyiceberg cannot "
                    f"read: {entry.data_file.file_path}.",
                    "Let Spark rewrite the files: CALL <catalog>.system.rewrite_data_files(table => '<table>', options "
                    "=> map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')), and let other writers "
                    "use copy-on-write or position deletes. Or name another table.",
                )


def _widen(table: Table, stream: Schema, keys: Collection[str]) -> None:
    new, wider = widened(table.schema(), stream)
    if table.current_snapshot() is not None:
        new = [field for field in new if field.name not in keys]  # it would be NULL in the rows that are there
    if new or wider:
        with table.update_schema() as update:
            for field in new:
                update.add_column((field.name,), field.field_type)
            for field in wider:
                update.update_column((field.name,), field.field_type)
