"""Loads a named source of Spark, with the settings that named sources need.

Reaches for: ``SparkSession.cloneSession`` and ``Dataset.ofRows`` (seen in Spark 4.2; entry "named sources" of
`backlog_spark.spark.jvm.internals`). The settings are made in a copy of the session, and the DataFrame is then moved to
the user's session. The fallback sets them in the session itself while the source is loaded. A source that another
thread loads at that moment gets them too.

Source: Spark 4.2, ``spark.sql.streaming.queryEvolution.enableSourceEvolution``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from backlog_spark.spark.jvm.internals import is_usable
from backlog_spark.spark.jvm.py4j_helpers import java_class
from backlog_spark.spark.jvm.session import session_conf, starting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

__all__ = ["CONF", "NamedSource"]

CONF = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


class NamedSource:
    """The settings of one source.

    Parameters
    ----------
    spark : SparkSession
        The user's session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._copies = is_usable("named sources")

    def reads_by(self, reader: DataStreamReader) -> None:
        """Let a reader load its source with the settings. Called once, before any other method of the reader."""
        if self._copies:
            copy = cast("Any", self._spark)._jsparkSession.cloneSession()
            for name, value in CONF.items():
                copy.conf().set(name, value)
            cast("Any", reader)._jreader = copy.readStream()

    def load(self, make: Callable[[], DataFrame]) -> DataFrame:
        """Load the DataFrame and move it to the user's session, so that the session's listeners get its events."""
        settings = contextlib.nullcontext() if self._copies else session_conf(self._spark, CONF)
        with starting, settings:
            made = make()
        if not self._copies:
            return made
        from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

        frames = java_class(self._spark, "org.apache.spark.sql.classic.Dataset")
        plan = cast("Any", made)._jdf.queryExecution().analyzed()
        return ClassicDataFrame(frames.ofRows(cast("Any", self._spark)._jsparkSession, plan), self._spark)
