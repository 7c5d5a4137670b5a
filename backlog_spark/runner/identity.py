"""What a query is made of: for the record of its checkpoint, and to tell queries apart that share a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backlog_spark.decide.query_record import QueryRecord, SourceRecord
from backlog_spark.model.nodes import KeyedNode, Node
from backlog_spark.model.plan_checks import what_it_reads
from backlog_spark.model.trees import sources_of
from backlog_spark.spark.jvm.delta_log import qualified_text
from backlog_spark.spi.registry import compares_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from backlog_spark.sinks.outputs import Outputs
    from backlog_spark.spi.source_info import SourceInfo

__all__ = ["operators_of", "record_of", "writer_of"]


def operators_of(node: Node) -> tuple[str, ...]:
    """Names of the keyed operators."""
    return tuple(step.name for step in node.walk() if isinstance(step, KeyedNode))


def record_of(spark: SparkSession, node: Node, outputs: Outputs) -> QueryRecord:
    """What the checkpoint records of a query."""
    sources = [
        SourceRecord(s.name, s.format, {} if compares_offsets(s.format) else what_it_reads(s)) for s in sources_of(node)
    ]
    sinks = outputs.described()
    for sink in sinks.values():
        if "path" in sink:
            sink["path"] = qualified_text(spark, sink["path"])
    return QueryRecord(tuple(sources), sinks, operators_of(node))


def writer_of(name: str, node: Node, infos: Sequence[SourceInfo | None]) -> str:
    """`SinkContext.writer`: the query's name and what it reads, for people. The same for each of its checkpoints."""
    sources = zip(sources_of(node), infos, strict=True)
    read = (f"{spec.format} {'' if info is None else info.address}".strip() for spec, info in sources)
    return f"{name} of {', '.join(read)}"
