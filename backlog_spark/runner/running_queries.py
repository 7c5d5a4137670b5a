"""The running queries of this process, by checkpoint.

In Spark a newer run stops an older one on the same checkpoint. Two queries of ours would stop and restart each other
for ever.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from backlog_spark.errors import SettingError
from backlog_spark.spark.jvm.session import is_stopped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.runner.handle import QueryHandle
    from backlog_spark.spark.checkpoint.logs import Checkpoint

__all__ = ["enter", "leave"]

_running: dict[str, tuple[QueryHandle, SparkSession]] = {}
_entering = threading.Lock()


def enter(query: QueryHandle, spark: SparkSession, checkpoint: Checkpoint) -> None:
    """Called before a query starts.

    Raises
    ------
    SettingError
        If another one runs on the checkpoint.
    """
    location = checkpoint.qualified()
    with _entering:
        other = _running.get(location)
        if other is not None and not is_stopped(other[1]):
            raise SettingError(
                "checkpointLocation", checkpoint.location, f"query {other[0].name!r} is running on it.",
                "Stop that query first, or give this one a checkpoint of its own.",
            )  # fmt: skip
        _running[location] = query, spark


def leave(query: QueryHandle) -> None:
    """Called when a query has ended, or could not start."""
    with _entering:
        for location in [location for location, (other, _) in _running.items() if other is query]:
            del _running[location]
