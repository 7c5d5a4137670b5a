"""Watching a query: the progress line."""

from backlog_spark.monitor.progress import ProgressLine, Snapshot, render

__all__ = ["ProgressLine", "Snapshot", "render"]
