"""What makes ``spark.readStream.format("hybrid")`` work wherever this package is installed.

Spark looks for modules named ``pyspark_*`` and registers the ``DefaultSource`` of each. It does so in every session, so
a missing driver must not fail here, only where the source is used.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]

try:
    from connectors.hybrid import HybridDataSource as DefaultSource
except ImportError as missing:
    _MISSING = str(missing)

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """In the place of the source while a package that it needs is missing."""

        @classmethod
        def name(cls) -> str:
            return "hybrid"

        def schema(self) -> StructType:
            from backlog_spark.errors import BacklogError

            raise BacklogError(f"hybrid cannot run here: {_MISSING}.", "pip install 'backlog-spark[kafka,files]'.")
