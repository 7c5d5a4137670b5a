"""backlog_spark: Structured Streaming jobs that read old data first and then follow live data.

Sources report whether they are processing backlog. During backlog the query commits rarely. At the exact batch where
the backlog ends it continues as an ordinary low-latency query. Start with `register`, `source` and the README.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backlog_spark.api.explain import explain, explained
    from backlog_spark.api.keyed_streams import KeyedStream
    from backlog_spark.api.lookup import LookupTable, lookup
    from backlog_spark.api.streams import BacklogStream, source, stream
    from backlog_spark.api.windowed_streams import WindowedStream
    from backlog_spark.errors import BacklogError, SettingError
    from backlog_spark.model.record_attributes import RecordAttributes, RecordAttributesBuilder
    from backlog_spark.model.watermarks import Watermark
    from backlog_spark.native.hybrid import NativeHybrid, hybrid
    from backlog_spark.native.rule_query import NativeQuery, backlog_query
    from backlog_spark.native.run_context import RunContext
    from backlog_spark.operators.aggregates.user_functions import AggregateFunction
    from backlog_spark.operators.joins.process import ProcessJoinFunction
    from backlog_spark.operators.lifecycle import RuntimeContext
    from backlog_spark.operators.process.co_functions import KeyedCoProcessFunction
    from backlog_spark.operators.process.functions import (
        AggregatingState,
        KeyedProcessFunction,
        ListState,
        MapState,
        OutputTag,
        ReducingState,
        ValueState,
    )
    from backlog_spark.operators.process.state_ttl import StateTtlConfig
    from backlog_spark.operators.windows.assigners import (
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
    from backlog_spark.operators.windows.functions import (
        CoGroupFunction,
        ProcessWindowFunction,
        TimeWindow,
        WindowFunction,
    )
    from backlog_spark.operators.windows.triggers import CountTrigger, PurgingTrigger, Trigger, TriggerResult
    from backlog_spark.pipelines.scripts import sql_script
    from backlog_spark.runner.handle import JobStatus
    from backlog_spark.runner.query import BacklogQuery
    from backlog_spark.runner.query_progress import BacklogProgress, Switch
    from backlog_spark.sinks import (
        BlackHole,
        DeltaAppend,
        DeltaTables,
        DeltaUpsert,
        FilesSink,
        ForeachSink,
        IcebergAppend,
        IcebergTables,
        IcebergUpsert,
        JdbcUpsert,
        KafkaSink,
        ParquetSink,
        Print,
        Sink,
    )
    from backlog_spark.spark.jvm.session import register
    from backlog_spark.spi.source_info import WatermarkCharacteristic
    from backlog_spark.streamsql.queries import sql
    from backlog_spark.streamsql.refusals import SqlError
    from backlog_spark.verification.result import Difference, TargetDiffers, Verification
    from backlog_spark.verification.verify import verify, verify_tables

__version__ = "0.1.0"

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "BacklogError",
    "BacklogProgress",
    "BacklogQuery",
    "BacklogStream",
    "BlackHole",
    "CoGroupFunction",
    "CountTrigger",
    "CumulativeEventTimeWindows",
    "DeltaAppend",
    "DeltaTables",
    "DeltaUpsert",
    "Difference",
    "EndOfStreamWindows",
    "EventTimeSessionWindows",
    "FilesSink",
    "ForeachSink",
    "GlobalWindows",
    "IcebergAppend",
    "IcebergTables",
    "IcebergUpsert",
    "JdbcUpsert",
    "JobStatus",
    "KafkaSink",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "LookupTable",
    "MapState",
    "NativeHybrid",
    "NativeQuery",
    "OutputTag",
    "ParquetSink",
    "Print",
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
    "TargetDiffers",
    "TimeWindow",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "ValueState",
    "Verification",
    "Watermark",
    "WatermarkCharacteristic",
    "WindowFunction",
    "WindowedStream",
    "backlog_query",
    "explain",
    "explained",
    "hybrid",
    "lookup",
    "register",
    "source",
    "sql",
    "sql_script",
    "stream",
    "verify",
    "verify_tables",
]

# Loaded when first asked for: the workers of Python sources import this package for its errors alone, and would
# otherwise load half of pyspark each time one starts.
_MODULES = {
    "AggregateFunction": "operators.aggregates.user_functions",
    "AggregatingState": "operators.process.functions",
    "BacklogError": "errors",
    "BacklogProgress": "runner.query_progress",
    "BacklogQuery": "runner.query",
    "BacklogStream": "api.streams",
    "CoGroupFunction": "operators.windows.functions",
    "CountTrigger": "operators.windows.triggers",
    "CumulativeEventTimeWindows": "operators.windows.assigners",
    "BlackHole": "sinks",
    "DeltaAppend": "sinks",
    "DeltaTables": "sinks",
    "DeltaUpsert": "sinks",
    "Difference": "verification.result",
    "EndOfStreamWindows": "operators.windows.assigners",
    "EventTimeSessionWindows": "operators.windows.assigners",
    "NativeQuery": "native.rule_query",
    "GlobalWindows": "operators.windows.assigners",
    "IcebergAppend": "sinks",
    "IcebergTables": "sinks",
    "IcebergUpsert": "sinks",
    "JdbcUpsert": "sinks",
    "JobStatus": "runner.handle",
    "KeyedCoProcessFunction": "operators.process.co_functions",
    "KeyedProcessFunction": "operators.process.functions",
    "KeyedStream": "api.keyed_streams",
    "ListState": "operators.process.functions",
    "LookupTable": "api.lookup",
    "MapState": "operators.process.functions",
    "NativeHybrid": "native.hybrid",
    "OutputTag": "operators.process.functions",
    "FilesSink": "sinks",
    "ForeachSink": "sinks",
    "KafkaSink": "sinks",
    "ParquetSink": "sinks",
    "Print": "sinks",
    "ProcessJoinFunction": "operators.joins.process",
    "ProcessWindowFunction": "operators.windows.functions",
    "ProcessingTimeSessionWindows": "operators.windows.assigners",
    "PurgingTrigger": "operators.windows.triggers",
    "RecordAttributes": "model.record_attributes",
    "RecordAttributesBuilder": "model.record_attributes",
    "ReducingState": "operators.process.functions",
    "RunContext": "native.run_context",
    "RuntimeContext": "operators.lifecycle",
    "SettingError": "errors",
    "Sink": "sinks",
    "SlidingEventTimeWindows": "operators.windows.assigners",
    "SlidingProcessingTimeWindows": "operators.windows.assigners",
    "SqlError": "streamsql.refusals",
    "StateTtlConfig": "operators.process.state_ttl",
    "Switch": "runner.query_progress",
    "TargetDiffers": "verification.result",
    "TimeWindow": "operators.windows.functions",
    "Trigger": "operators.windows.triggers",
    "TriggerResult": "operators.windows.triggers",
    "TumblingEventTimeWindows": "operators.windows.assigners",
    "TumblingProcessingTimeWindows": "operators.windows.assigners",
    "ValueState": "operators.process.functions",
    "Verification": "verification.result",
    "Watermark": "model.watermarks",
    "WatermarkCharacteristic": "spi.source_info",
    "WindowFunction": "operators.windows.functions",
    "WindowedStream": "api.windowed_streams",
    "backlog_query": "native.rule_query",
    "explain": "api.explain",
    "explained": "api.explain",
    "hybrid": "native.hybrid",
    "lookup": "api.lookup",
    "register": "spark.jvm.session",
    "source": "api.streams",
    "sql": "streamsql.queries",
    "sql_script": "pipelines.scripts",
    "stream": "api.streams",
    "verify": "verification.verify",
    "verify_tables": "verification.verify",
}


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from backlog_spark.common.familiar_names import PUBLIC, NoSuchName, choice

        hint = PUBLIC.get(name.lower()) or choice(name, __all__, "It has")
        raise NoSuchName(f"backlog_spark has no {name!r}.", hint)
    if _MODULES[name] == "errors":
        return getattr(importlib.import_module(f"{__name__}.errors"), name)
    from backlog_spark.common.familiar_names import NoSuchName
    from backlog_spark.common.requirements import check_pyspark, required
    from backlog_spark.errors import BacklogError

    try:
        check_pyspark()
        with required(f"backlog_spark.{name}"):
            return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    except BacklogError as error:
        if sys._getframe(1).f_code.co_name == "_handle_fromlist":
            raise  # `from backlog_spark import name` would turn an AttributeError into one without a word of the cause
        # hasattr, help and completion see a name that is not there. Others read which package is missing.
        raise NoSuchName(error.problem, error.hint) from None
