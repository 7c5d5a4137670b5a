"""Compares the targets of a pipeline with their sources: ``backlog-spark verify``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.building import sink_of, source_of
from backlog_spark.pipelines.model import Pipeline
from backlog_spark.sinks.tables import TablesSink
from backlog_spark.verification.query import is_comparable
from backlog_spark.verification.result import Verification
from backlog_spark.verification.verify import verify, verify_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["verified"]

_log = logging.getLogger(__name__)


def verified(
    pipeline: Pipeline, spark: SparkSession, *, repair: bool = False, max_rows_per_second: int | None = None
) -> list[tuple[str, Verification]]:
    """Compare each sink that keeps a table and gets a source's rows as they are.

    Returns
    -------
    list of (str, Verification)
        The sink's name and the result; for ``delta_tables`` one for each table.

    Raises
    ------
    BacklogError
        There is no such sink; see `backlog_spark.verify`.
    """
    names = {declared.section.name: index for index, declared in enumerate(pipeline.sources)}
    found: list[tuple[str, Verification]] = []
    others: list[str] = []
    for output in pipeline.outputs():
        section = output.section
        source_index = None if output.side else names.get(pipeline.input_of(section))
        if source_index is None:
            others.append(f"{output.name} does not get the rows of a source")
            continue
        sink = sink_of(pipeline, output)
        if not is_comparable(sink):
            others.append(f"{output.name} is a {type(sink).__name__}, which keeps no table")
            continue
        source = source_of(pipeline, source_index)
        options: Any = {
            "checkpoint": pipeline.checkpoint_of(section),
            "max_rows_per_second": max_rows_per_second,
            "repair": repair,
            "spark": spark,
        }
        if isinstance(sink, TablesSink):
            found += [(section.name, result) for result in verify_tables(source, sink, **options).values()]
        else:
            found.append((section.name, verify(source, sink, **options)))
    if not found:
        raise BacklogError(
            f"No sink of the pipeline can be compared with its source ({'; '.join(others)}).",
            "verify compares sinks of Delta, Iceberg and databases that get the rows of a mysql_cdc source. "
            "Add such a sink.",
        )
    if others:
        _log.warning("verify: not compared: %s", "; ".join(others))
    return found
