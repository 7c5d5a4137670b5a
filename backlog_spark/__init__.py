"""backlog_spark: Structured Streaming jobs that work off old data first and then follow live data.

Sources say whether they are processing backlog; the query commits rarely while they do and goes on as ordinary
low-latency streaming at the exact batch where the backlog ends. Start with `register`, `source` and the README.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backlog_spark.attributes import RecordAttributes
    from backlog_spark.errors import BacklogError, SettingError
    from backlog_spark.foreign import ForeignQuery, RunContext, backlog_query
    from backlog_spark.native import NativeHybrid, hybrid
    from backlog_spark.operators.functions import (
        KeyedProcessFunction,
        ListState,
        MapState,
        OutputTag,
        ReducingState,
        ValueState,
    )
    from backlog_spark.query import BacklogQuery
    from backlog_spark.session import register
    from backlog_spark.sinks import DeltaAppend, DeltaUpsert, Sink
    from backlog_spark.streams import BacklogStream, KeyedStream, source, stream
    from backlog_spark.tracker import BacklogProgress, Switch

__version__ = "0.1.0"

__all__ = [
    "BacklogError",
    "BacklogProgress",
    "BacklogQuery",
    "BacklogStream",
    "DeltaAppend",
    "DeltaUpsert",
    "ForeignQuery",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "MapState",
    "NativeHybrid",
    "OutputTag",
    "RecordAttributes",
    "ReducingState",
    "RunContext",
    "SettingError",
    "Sink",
    "Switch",
    "ValueState",
    "backlog_query",
    "hybrid",
    "register",
    "source",
    "stream",
]

# Loaded when first asked for: the workers of Python sources import this package for its errors alone, and would
# otherwise load half of pyspark each time one starts.
_MODULES = {
    "BacklogError": "errors",
    "BacklogProgress": "tracker",
    "BacklogQuery": "query",
    "BacklogStream": "streams",
    "DeltaAppend": "sinks",
    "DeltaUpsert": "sinks",
    "ForeignQuery": "foreign",
    "KeyedProcessFunction": "operators.functions",
    "KeyedStream": "streams",
    "ListState": "operators.functions",
    "MapState": "operators.functions",
    "NativeHybrid": "native",
    "OutputTag": "operators.functions",
    "RecordAttributes": "attributes",
    "ReducingState": "operators.functions",
    "RunContext": "foreign",
    "SettingError": "errors",
    "Sink": "sinks",
    "Switch": "tracker",
    "ValueState": "operators.functions",
    "backlog_query": "foreign",
    "hybrid": "native",
    "register": "session",
    "source": "streams",
    "stream": "streams",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
