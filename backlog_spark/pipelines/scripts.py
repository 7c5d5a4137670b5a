"""Runs a Flink SQL script in a session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from backlog_spark.api.explain import explained
from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.pipelines.building import streams_of
from backlog_spark.pipelines.parsing import parse_script
from backlog_spark.pipelines.running import configure, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.pipelines.model import Pipeline
    from backlog_spark.runner.query import BacklogQuery

__all__ = ["explained_script", "sql_script"]


@checked_arguments
def sql_script(spark: SparkSession, text: str, *, checkpoint: str | None = None) -> list[BacklogQuery]:
    """Start the queries of a Flink SQL script: one for each INSERT.

    Parameters
    ----------
    spark : SparkSession
    text : str
        CREATE TABLE, CREATE VIEW, CREATE FUNCTION, SET and INSERT, as docs/scripts.md lists them. ``${NAME}`` and
        ``${file:PATH}`` in an option or setting are variables.
    checkpoint : str, optional
        Directory for the queries' checkpoints. Each has the name of its target. Default: the script's setting
        ``execution.checkpointing.dir``.

    Returns
    -------
    list of BacklogQuery
        In the order of the INSERTs.

    Raises
    ------
    PipelineError
        Everything that is wrong in the script, each with line and column. No query runs then.
    BacklogError
        A setting only counts when Spark starts; or as `BacklogStreamWriter.start` says.

    Examples
    --------
    ``for query in bs.sql_script(spark, Path("clicks.sql").read_text(), checkpoint="/lake/_checkpoints"): …``
    """
    pipeline = parse_script(text, environment=os.environ, checkpoint=checkpoint)
    configure(pipeline, spark)
    return start(pipeline, spark)


def explained_script(pipeline: Pipeline, spark: SparkSession) -> dict[str, str]:
    """The operators of each INSERT, by its target. The schemas of the sources are loaded."""
    streams = streams_of(pipeline, spark)
    return {sink.name: explained(streams[pipeline.input_of(sink)], spark=spark) for sink in pipeline.sinks}
