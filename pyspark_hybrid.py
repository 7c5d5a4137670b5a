"""What makes ``spark.readStream.format("hybrid")`` work wherever this package is installed.

Spark looks for modules named ``pyspark_*`` and registers the ``DefaultSource`` of each. It does so in every session, so
a missing driver must not fail here, only where the source is used.
"""

from __future__ import annotations

from connectors import data_source

__all__ = ["DefaultSource"]

DefaultSource = data_source("hybrid")
