"""A sink's Iceberg table, for ``bs.verify``: snapshots with the query's batches, their rows, and repairs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.iceberg.columns import new_schema, promotes
from backlog_spark.sinks.iceberg.commits import commit_repaired, conflicts, delete_files
from backlog_spark.sinks.iceberg.files import TableFiles, read_rows
from backlog_spark.sinks.iceberg.large_merge import FileMerge
from backlog_spark.sinks.iceberg.marks import IcebergState, Mark
from backlog_spark.spark.plan.batch_frames import kept
from backlog_spark.verification.merge_target import MergeTarget, OneTable
from backlog_spark.verification.targets import TargetVersion, no_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from backlog_spark.sinks.iceberg.sink import IcebergSink

__all__ = ["IcebergTarget"]


class IcebergTarget(MergeTarget):
    """The table of an `IcebergUpsert` or `IcebergAppend`, or one of an `IcebergTables`.

    Parameters
    ----------
    sink : IcebergSink
    app_id, one
        As of `MergeTarget`.
    """

    kind = "Iceberg table"

    def __init__(self, sink: IcebergSink, app_id: str, one: OneTable | None = None) -> None:
        super().__init__(sink, app_id, sink.table, one)
        self._access = sink._access.copy()

    def _newest(self, place: str) -> TargetVersion:
        access = self._access.of(place)
        table = access.load()
        mark = None if table is None else Mark.of(table.metadata.properties, self._app_id)
        if table is None or mark is None:
            raise no_batch(self.kind, access.place, is_there=table is not None)
        state = IcebergState(table, mark)
        return TargetVersion(access.place, state.head or 0, mark.batch, state)

    def names(self, spark: SparkSession, version: TargetVersion, keys: Sequence[str]) -> Sequence[str]:
        return [field.name for field in version.state.table.schema().fields]

    def rows(self, spark: SparkSession, version: TargetVersion, names: Sequence[str], keys: Sequence[str]) -> DataFrame:
        table, form = version.state.table, self._form
        there = self.names(spark, version, keys)
        with self._access.readable():
            files = list(table.scan().plan_files())
        columns = [name for name in there if form is None or name in (*names, *form.names)]
        found = read_rows(spark, TableFiles.of(table), files, columns)
        return self._counted(found, version, keys)

    def widens(self, source: DataType, target: DataType) -> bool:
        from pyspark.sql.types import StructField

        one, other = (new_schema([StructField("c", kind)]).fields[0].field_type for kind in (source, target))
        return bool(one == other) or promotes(one, other)

    def repair(self, version: TargetVersion, steps: DataFrame, keys: Sequence[str]) -> None:
        state: IcebergState = version.state
        with contextlib.ExitStack() as until_written:

            def begin(source: DataFrame, on: str, same: str, named: Mapping[str, str]) -> FileMerge:
                source = until_written.enter_context(kept(source))
                return FileMerge(state.table, source, on, F.expr(same), named, self._form.names if self._form else ())

            merge: FileMerge = self._repaired(steps, keys, begin)
            changes = merge.execute()
        if not changes:
            return
        try:
            with self._access.readable(*conflicts()):
                commit_repaired(state, changes)
        except conflicts() as error:
            if isinstance(error, conflicts()[0]):
                delete_files(state.table.io, changes.added)
            raise BacklogError(
                f"The repair of the Iceberg table {version.place} may not be written: another writer was faster, or "
                "the answer of the catalog's server was lost.",
                "Stop other writers, then verify with repair=True again.",
            ) from None

    def gone(self, text: str, version: TargetVersion) -> BacklogError | None:
        if "FileNotFoundError" not in text and "NoSuchKey" not in text:
            return None
        return BacklogError(
            f"Files of the snapshot {version.version} of the Iceberg table {version.place} are gone.",
            "The snapshot has expired. Verify again: verify then uses the newest one. Let snapshots live longer than a "
            "verification takes (expire_snapshots).",
        )

    def scrubbed(self, text: str) -> str:
        return self._access.scrubbed(text)
