"""Which query ``bs.verify`` is about: its source, sink and checkpoint, and the Delta table of one of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.api.streams import BacklogStream
from backlog_spark.common.familiar_names import described
from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.nodes import Node, SourceNode, SourceSpec
from backlog_spark.runner.query import BacklogQuery
from backlog_spark.sinks.delta.sink import DeltaSink
from backlog_spark.sinks.delta.tables import DeltaTables
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm.session import check_session, register, session_copy
from backlog_spark.verification.delta_rows import TargetVersion, newest_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CopyingQuery", "query_of"]

_IDENTITY: Final = "identity"


@dataclass(frozen=True)
class CopyingQuery:
    """A query that copies a source.

    Parameters
    ----------
    spark : SparkSession
        A session of our own.
    spec : SourceSpec
    sink : DeltaSink or DeltaTables
    location : str
        Of the checkpoint.
    files : Checkpoint
    app_id : str
        Of the query's transactions.
    """

    spark: SparkSession
    spec: SourceSpec
    sink: DeltaSink | DeltaTables
    location: str
    files: Checkpoint
    app_id: str

    def committed(self) -> int:
        """The newest batch of which all tables have their rows."""
        found = self.files.latest_committed()
        if found is None:
            raise BacklogError(f"The query of {self.location} has committed no batch yet.", "Verify again later.")
        return found

    def newest(self, table: str) -> tuple[TargetVersion, Mapping[str, Any]]:
        """The newest version of the target, and the offset up to which it has the source's rows.

        Parameters
        ----------
        table : str
            For `DeltaTables`: one of them. Its version is -1 if the query has not begun it.
        """
        if isinstance(self.sink, DeltaTables):
            target = self._of_table(self.sink, table)
        else:
            target = newest_target(self.spark, self.sink.path, self.app_id)
        return target, self.offset(target)

    def _of_table(self, sink: DeltaTables, table: str) -> TargetVersion:
        # Looked up before the version: the version then has at least this batch.
        committed = self.committed()
        mark = sink._begun(self.spark, self.app_id).get(table)
        if mark is None or mark.batch > committed:
            return TargetVersion(sink.path_of(*TableName.parse(table)), -1, committed)
        found = newest_target(self.spark, mark.path, sink._app_id_of(self.app_id, table))
        # Later batches had no rows of the table.
        return replace(found, batch=max(found.batch, committed))

    def offset(self, target: TargetVersion) -> Mapping[str, Any]:
        """The source's offset at the end of the target's newest batch."""
        offsets = [o for o in self.files.offsets(target.batch) or () if o is not None]
        if len(offsets) != 1:
            raise BacklogError(
                f"The offset log of {self.location} has no batch {target.batch}, the newest one in {target.path}.",
                "The checkpoint was changed, or belongs to another query. Verify again after the query's next batch.",
            )
        return offsets[0]


def query_of(
    of: BacklogQuery | BacklogStream,
    sink: DeltaSink | DeltaTables | None,
    checkpoint: str | None,
    spark: SparkSession | None,
) -> CopyingQuery:
    """The query that `verify` was given. Parameters as in `backlog_spark.verify`."""
    from pyspark.sql import SparkSession

    given: Any = sink
    if isinstance(of, BacklogQuery):
        node, given = of._parts.node, sink or of._parts.outputs.main
        checkpoint = checkpoint or of.checkpointLocation
        spark = spark or of._spark
    elif isinstance(of, BacklogStream):
        node = of._node
    else:
        raise BacklogError(
            f"verify was given {described(of)}.",
            "Give it the query, or the source that bs.source made and a checkpoint.",
        )
    session: Any = spark or SparkSession.getActiveSession()
    check_session(session)
    spec = _source_of(node)
    if not isinstance(given, (DeltaSink, DeltaTables)):
        raise SettingError(
            "sink", described(given), "is not a Delta sink.", "Give a DeltaUpsert, a DeltaAppend or a DeltaTables."
        )
    if not checkpoint:
        raise SettingError("checkpoint", checkpoint, "is needed with a source.", "Give the query's checkpointLocation.")
    register(session)
    own = session_copy(session)
    files = Checkpoint(own, checkpoint)
    identity = files.read_metadata(_IDENTITY)
    if identity is None:
        raise SettingError("checkpoint", checkpoint, "has no query of backlog_spark.", "Check the path.")
    return CopyingQuery(own, spec, given, checkpoint, files, str(identity["id"]))


def _source_of(node: Node) -> SourceSpec:
    if not isinstance(node, SourceNode):
        raise BacklogError(
            "There are steps between source and sink, so the target is not a copy of the source.",
            "verify compares targets of queries that only copy a source.",
        )
    return node.spec
