"""backlog_spark: Structured Streaming jobs that work off old data first and then follow live data.

Sources say whether they are processing backlog; the query commits rarely while they do and goes on as ordinary
low-latency streaming at the exact batch where the backlog ends. Start with `register`, `source` and the README.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backlog_spark.attributes import RecordAttributes, RecordAttributesBuilder
    from backlog_spark.errors import BacklogError, SettingError
    from backlog_spark.explaining import explain, explained
    from backlog_spark.foreign import ForeignQuery, RunContext, backlog_query
    from backlog_spark.handle import JobStatus
    from backlog_spark.keyedstreams import KeyedStream
    from backlog_spark.native import NativeHybrid, hybrid
    from backlog_spark.operators.aggregatefunctions import AggregateFunction
    from backlog_spark.operators.cofunctions import KeyedCoProcessFunction
    from backlog_spark.operators.functions import (
        AggregatingState,
        KeyedProcessFunction,
        ListState,
        MapState,
        OutputTag,
        ReducingState,
        ValueState,
    )
    from backlog_spark.operators.lifecycle import RuntimeContext
    from backlog_spark.operators.processjoin import ProcessJoinFunction
    from backlog_spark.operators.statettl import StateTtlConfig
    from backlog_spark.operators.triggers import CountTrigger, PurgingTrigger, Trigger, TriggerResult
    from backlog_spark.operators.windowfunctions import (
        CoGroupFunction,
        ProcessWindowFunction,
        TimeWindow,
        WindowFunction,
    )
    from backlog_spark.operators.windows import (
        CumulativeEventTimeWindows,
        EndOfStreamWindows,
        EventTimeSessionWindows,
        GlobalWindows,
        ProcessingTimeSessionWindows,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
    )
    from backlog_spark.query import BacklogQuery
    from backlog_spark.session import register
    from backlog_spark.sinks import DeltaAppend, DeltaUpsert, Sink
    from backlog_spark.streams import BacklogStream, source, stream
    from backlog_spark.streamsql.queries import sql
    from backlog_spark.streamsql.refusals import SqlError
    from backlog_spark.tracker import BacklogProgress, Switch
    from backlog_spark.watermarks import Watermark, WatermarkCharacteristic
    from backlog_spark.windowedstreams import WindowedStream

__version__ = "0.1.0"

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "BacklogError",
    "BacklogProgress",
    "BacklogQuery",
    "BacklogStream",
    "CoGroupFunction",
    "CountTrigger",
    "CumulativeEventTimeWindows",
    "DeltaAppend",
    "DeltaUpsert",
    "EndOfStreamWindows",
    "EventTimeSessionWindows",
    "ForeignQuery",
    "GlobalWindows",
    "JobStatus",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "MapState",
    "NativeHybrid",
    "OutputTag",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "PurgingTrigger",
    "RecordAttributes",
    "RecordAttributesBuilder",
    "ReducingState",
    "RunContext",
    "RuntimeContext",
    "SettingError",
    "Sink",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SqlError",
    "StateTtlConfig",
    "Switch",
    "TimeWindow",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "ValueState",
    "Watermark",
    "WatermarkCharacteristic",
    "WindowFunction",
    "WindowedStream",
    "backlog_query",
    "explain",
    "explained",
    "hybrid",
    "register",
    "source",
    "sql",
    "stream",
]

# Loaded when first asked for: the workers of Python sources import this package for its errors alone, and would
# otherwise load half of pyspark each time one starts.
_MODULES = {
    "AggregateFunction": "operators.aggregatefunctions",
    "AggregatingState": "operators.functions",
    "BacklogError": "errors",
    "BacklogProgress": "tracker",
    "BacklogQuery": "query",
    "BacklogStream": "streams",
    "CoGroupFunction": "operators.windowfunctions",
    "CountTrigger": "operators.triggers",
    "CumulativeEventTimeWindows": "operators.windows",
    "DeltaAppend": "sinks",
    "DeltaUpsert": "sinks",
    "EndOfStreamWindows": "operators.windows",
    "EventTimeSessionWindows": "operators.windows",
    "ForeignQuery": "foreign",
    "GlobalWindows": "operators.windows",
    "JobStatus": "handle",
    "KeyedCoProcessFunction": "operators.cofunctions",
    "KeyedProcessFunction": "operators.functions",
    "KeyedStream": "keyedstreams",
    "ListState": "operators.functions",
    "MapState": "operators.functions",
    "NativeHybrid": "native",
    "OutputTag": "operators.functions",
    "ProcessJoinFunction": "operators.processjoin",
    "ProcessWindowFunction": "operators.windowfunctions",
    "ProcessingTimeSessionWindows": "operators.windows",
    "PurgingTrigger": "operators.triggers",
    "RecordAttributes": "attributes",
    "RecordAttributesBuilder": "attributes",
    "ReducingState": "operators.functions",
    "RunContext": "foreign",
    "RuntimeContext": "operators.lifecycle",
    "SettingError": "errors",
    "Sink": "sinks",
    "SlidingEventTimeWindows": "operators.windows",
    "SlidingProcessingTimeWindows": "operators.windows",
    "SqlError": "streamsql.refusals",
    "StateTtlConfig": "operators.statettl",
    "Switch": "tracker",
    "TimeWindow": "operators.windowfunctions",
    "Trigger": "operators.triggers",
    "TriggerResult": "operators.triggers",
    "TumblingEventTimeWindows": "operators.windows",
    "TumblingProcessingTimeWindows": "operators.windows",
    "ValueState": "operators.functions",
    "Watermark": "watermarks",
    "WatermarkCharacteristic": "watermarks",
    "WindowFunction": "operators.windowfunctions",
    "WindowedStream": "windowedstreams",
    "backlog_query": "foreign",
    "explain": "explaining",
    "explained": "explaining",
    "hybrid": "native",
    "register": "session",
    "source": "streams",
    "sql": "streamsql.queries",
    "stream": "streams",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from backlog_spark.habits import NoSuchName, choice

        raise NoSuchName(f"backlog_spark has no {name!r}.", choice(name, __all__, "It has"))
    if _MODULES[name] != "errors":
        from backlog_spark.requirements import check_pyspark

        check_pyspark()
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
