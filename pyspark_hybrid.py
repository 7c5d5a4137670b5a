"""What makes ``spark.readStream.format("hybrid")`` work wherever this package is installed.

Spark looks for modules named ``pyspark_*`` and registers the ``DefaultSource`` of each. It does so in every session, so
nothing is imported here that takes time or may be missing, but where the source is used.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Stands for the source until there are options: then it is that."""

    def __new__(cls, options: dict[str, str]) -> Any:
        from backlog_spark.spi.registry import data_source

        return data_source(cls.name())(options)

    @classmethod
    def name(cls) -> str:
        return "hybrid"
