"""Which query ``bs.verify`` is about: its source, sink and checkpoint, and its target of one of its tables."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.api.streams import BacklogStream
from backlog_spark.common.familiar_names import described
from backlog_spark.common.requirements import require
from backlog_spark.common.table_names import TableName
from backlog_spark.decide.query_record import same_place
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.nodes import Node, SourceNode, SourceSpec
from backlog_spark.runner.query import BacklogQuery
from backlog_spark.sinks.base import Sink
from backlog_spark.sinks.database.sink import JdbcUpsert
from backlog_spark.sinks.delta.named_tables import location_of
from backlog_spark.sinks.delta.sink import DeltaSink
from backlog_spark.sinks.iceberg.sink import IcebergSink
from backlog_spark.sinks.outputs import DIRECTORY, app_id_of, directory_of
from backlog_spark.sinks.tables import BegunTable, TablesSink
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.checkpoint.source_layout import recorded_query
from backlog_spark.spark.jvm.delta_log import qualified_text
from backlog_spark.spark.jvm.session import check_session, register, session_copy
from backlog_spark.verification.delta_target import DeltaTarget
from backlog_spark.verification.merge_target import OneTable
from backlog_spark.verification.targets import TargetTable, TargetVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CopyingQuery", "is_comparable", "query_of"]

_IDENTITY: Final = "identity"
_COMPARABLE: Final = (DeltaSink, TablesSink, IcebergSink, JdbcUpsert)


def is_comparable(sink: object) -> bool:
    """Whether a sink keeps rows that `verify` can compare with its source."""
    return isinstance(sink, _COMPARABLE)


@dataclass(frozen=True)
class CopyingQuery:
    """A query that copies a source.

    Parameters
    ----------
    spark : SparkSession
        A session of our own.
    spec : SourceSpec
    sink : Sink
        One that `is_comparable`.
    location : str
        Of the checkpoint.
    files : Checkpoint
    app_id : str
        Of the query's transactions.
    directory : str
        As of `SinkContext`.
    """

    spark: SparkSession
    spec: SourceSpec
    sink: Sink
    location: str
    files: Checkpoint
    app_id: str
    directory: str

    def committed(self) -> int:
        """The newest batch of which all tables have their rows."""
        found = self.files.latest_committed()
        if found is None:
            raise BacklogError(f"The query of {self.location} has committed no batch yet.", "Verify again later.")
        return found

    def target(self, table: str) -> TargetTable:
        """The target. ``table``: for a sink of many tables, one of them."""
        sink, app_id, one = self.sink, self.app_id, None
        if isinstance(tables := sink, TablesSink):
            one = OneTable(tables, table, self.begun, self.committed)
            sink, app_id = (
                tables.upsert(tables.path_of(*TableName.parse(table)), ["key"]),
                tables._app_id_of(app_id, table),
            )
        if isinstance(sink, DeltaSink):
            return DeltaTarget(self.spark, sink, app_id, one)
        if isinstance(sink, IcebergSink):
            require(type(sink).__name__, "pyiceberg")
            from backlog_spark.verification.iceberg_target import IcebergTarget

            return IcebergTarget(sink, app_id, one)
        assert isinstance(sink, JdbcUpsert), "query_of refuses others"
        from backlog_spark.verification.database_target import DatabaseTarget

        return DatabaseTarget(sink, self.app_id)

    def begun(self) -> Mapping[str, BegunTable]:
        """Where the query's tables are, by the source's names. For a sink of many tables."""
        assert isinstance(self.sink, TablesSink)
        return self.sink._begun(self.spark, self.app_id, self.directory)

    def offset(self, target: TargetVersion) -> Mapping[str, Any]:
        """The source's offset at the end of the target's newest batch."""
        offsets = [o for o in self.files.offsets(target.batch) or () if o is not None]
        if len(offsets) != 1:
            raise BacklogError(
                f"The offset log of {self.location} has no batch {target.batch}, the newest one in {target.place}.",
                "The checkpoint was changed, or belongs to another query. Verify again after the query's next batch.",
            )
        return offsets[0]


def query_of(
    of: BacklogQuery | BacklogStream,
    sink: Sink | None,
    checkpoint: str | None,
    spark: SparkSession | None,
) -> CopyingQuery:
    """The query that `verify` was given. Parameters as in `backlog_spark.verify`."""
    from pyspark.sql import SparkSession

    given: Any = sink
    if isinstance(of, BacklogQuery):
        targets = of._parts.outputs.main
        if sink is None and len(targets) > 1:
            raise SettingError(
                "sink",
                sink,
                "is needed for a query with several targets.",
                f"Give one of {', '.join(map(repr, targets))}.",
            )
        node, given = of._parts.node, sink or targets[0]
        checkpoint = checkpoint or of.checkpointLocation
        spark = spark or of._spark
    elif isinstance(of, BacklogStream):
        node = of._node
    else:
        raise BacklogError(
            f"verify was given {described(of)}.",
            "Give it the query, or the source that bs.source made and a checkpoint.",
        )
    if not is_comparable(given):
        name = type(given).__name__ if isinstance(given, Sink) else described(given)
        raise SettingError(
            "sink", name, "keeps no table that verify can compare.",
            "verify compares DeltaUpsert, DeltaAppend, DeltaTables, IcebergUpsert, IcebergAppend, IcebergTables and "
            "JdbcUpsert. Give the query one of them as another target, with a second .to(…), and verify that.",
        )  # fmt: skip
    session: Any = spark or SparkSession.getActiveSession()
    check_session(session)
    spec = _source_of(node)
    if not checkpoint:
        raise SettingError("checkpoint", checkpoint, "is needed with a source.", "Give the query's checkpointLocation.")
    register(session)
    own = session_copy(session)
    files = Checkpoint(own, checkpoint)
    identity = files.read_metadata(_IDENTITY)
    if identity is None:
        raise SettingError("checkpoint", checkpoint, "has no query of backlog_spark.", "Check the path.")
    if isinstance(given, DeltaSink):
        given = _located(given, own)
    name = _name_of(given, own, files)
    app_id = app_id_of(str(identity["id"]), name)
    return CopyingQuery(own, spec, given, checkpoint, files, app_id, directory_of(files.location_of(DIRECTORY), name))


def _name_of(sink: Sink, spark: SparkSession, files: Checkpoint) -> str:
    """The name that the checkpoint has for a target of the query."""
    record, location = recorded_query(files), getattr(sink, "path", None)
    is_delta = location is not None
    place = qualified_text(spark, location) if location is not None else str(sink.described()["place"])
    sinks = {} if record is None else record.sinks
    for name, was in sinks.items():
        table = was.get("table") if is_delta else None
        known = location_of(spark, table) if table else was.get("path" if is_delta else "place")
        if known and same_place(str(known), place):
            return name
    if len(sinks) > 1:
        raise SettingError(
            "sink", described(sink), "is none of the targets that the checkpoint has.",
            "Give the sink as the query has it.",
        )  # fmt: skip
    return ""


def _located(sink: DeltaSink, spark: SparkSession) -> DeltaSink:
    """A sink that knows its table's path."""
    if sink.table is None:
        return sink
    found, path = copy.copy(sink), sink.location(spark)
    if path is None:
        raise SettingError("table", sink.table, "the catalog has no such table.", "Correct the name.")
    found.path = path
    return found


def _source_of(node: Node) -> SourceSpec:
    if not isinstance(node, SourceNode):
        raise BacklogError(
            "There are steps between source and sink, so the target is not a copy of the source.",
            "verify compares targets of queries that only copy a source.",
        )
    return node.spec
