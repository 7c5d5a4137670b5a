"""``hybrid``: phases of old data, then Kafka, as one stream (FLIP-309's HybridSource)."""

from __future__ import annotations

from .examination import examine
from .source import HybridDataSource, advice, check_options, check_start, documented_options, inspect

__all__ = ["HybridDataSource", "advice", "check_options", "check_start", "documented_options", "examine", "inspect"]
