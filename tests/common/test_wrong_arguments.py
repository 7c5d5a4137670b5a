"""Wrong arguments of what users call, at random: an error with a next step, never a bare one of Python."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import backlog_spark as bs

orders = bs.source("mysql_cdc", name="orders", table="shop.orders")
keyed = orders.key_by("id")
minutes = keyed.window(bs.TumblingEventTimeWindows.of("1 min"))
ever = keyed.window(bs.GlobalWindows.create())
groups = orders.co_group(orders).where("id").equal_to("id")
writer = orders.write("orders")


class Rows(bs.KeyedProcessFunction):
    output = "a long"


class Both(bs.KeyedCoProcessFunction):
    output = "a long"


class Window(bs.WindowFunction):
    output = "a long"


class WindowWithContext(bs.ProcessWindowFunction):
    output = "a long"


class Groups(bs.CoGroupFunction):
    output = "a long"


class Mean(bs.AggregateFunction):
    accumulator = "a long"
    output = "a long"


def first(row: Any, other: Any) -> Any:
    return row


NAMED: dict[str, Any] = {"name": ""}
DELTA: dict[str, Any] = {
    "path": "/t", "partition_by": (), "properties": {}, "merge_schema": False, "small_batch_rows": 1,
    "small_batch_bytes": 1, "storage_options": {}, "compact": True,
}  # fmt: skip
ICEBERG: dict[str, Any] = {
    "table": "shop.t", "catalog": {"warehouse": "/t"}, "partition_by": (), "properties": {}, "merge_schema": False,
    "small_batch_rows": 1, "small_batch_bytes": 1, "expire_snapshots": None, "compact": True,
}  # fmt: skip
VERIFY: dict[str, Any] = {
    "of": orders, "sink": None, "checkpoint": None, "max_differences": 20, "values": False, "max_rows_per_second": None,
    "repair": False, "spark": None,
}  # fmt: skip
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "DeltaAppend": (bs.DeltaAppend, DELTA),
    "DeltaUpsert": (
        bs.DeltaUpsert,
        {
            **DELTA,
            "keys": ["id"],
            "change_type": None,
            "sequence": None,
            "metadata_columns": (),
            "on_existing_rows": "keep",
        },
    ),
    "IcebergAppend": (bs.IcebergAppend, ICEBERG),
    "IcebergUpsert": (
        bs.IcebergUpsert,
        {
            **ICEBERG,
            "keys": ["id"],
            "change_type": None,
            "sequence": None,
            "metadata_columns": (),
            "on_existing_rows": "keep",
        },
    ),
    "DeltaTables": (
        bs.DeltaTables,
        {
            "path": "/t",
            "routes": (),
            "properties": {},
            "storage_options": {},
            "compact": True,
            "on_existing_rows": "keep",
        },
    ),
    "source": (
        lambda form, **more: bs.source(form, **more),
        {"form": "mysql_cdc", "name": "a", "options": {}, "host": "h"},
    ),
    "stream": (bs.stream, {"frame": None, "use_processing_time": False}),
    "with_watermark": (orders.with_watermark, {"column": "ts", "delay": "1 s", "idle_timeout": None}),
    "key_by": (lambda key, order: orders.key_by(key, order=order), {"key": "id", "order": None}),
    "temporal_join": (
        orders.temporal_join,
        {
            "build": orders,
            "on": "id",
            "build_on": None,
            "how": "left",
            "order": None,
            "as_of": None,
            "wait": True,
            **NAMED,
        },
    ),
    "write": (orders.write, {"name": "a"}),
    "trigger": (writer.trigger, {"processing_time": None, "interval_during_backlog": None, "available_now": False}),
    "option": (writer.option, {"key": "a", "value": "b"}),
    "to": (writer.to, {"sink": bs.DeltaAppend("/t"), "side_output": ""}),
    "map": (lambda column: orders.map(column), {"column": "a"}),
    "filter": (orders.filter, {"condition": "a"}),
    "transform": (orders.transform, {"function": lambda frame: frame}),
    "union": (lambda other: orders.union(other), {"other": orders}),
    "co_group": (orders.co_group, {"other": orders}),
    "where": (lambda key, order: orders.co_group(orders).where(key, order=order), {"key": "id", "order": None}),
    "equal_to": (lambda key: orders.co_group(orders).equal_to(key), {"key": "id"}),
    "window of co_group": (groups.window, {"assigner": bs.EndOfStreamWindows.get()}),
    "apply of co_group": (groups.window(bs.EndOfStreamWindows.get()).apply, {"function": Groups(), **NAMED}),
    "aggregate": (lambda text, name: keyed.aggregate(text, name=name), {"text": "sum(x) AS y", **NAMED}),
    "sum": (keyed.sum, {"column": "a"}),
    "max_by": (minutes.max_by, {"column": "a", "last": False}),
    "reduce": (keyed.reduce, {"function": first, **NAMED}),
    "process": (keyed.process, {"function": Rows(), "late_output": None, **NAMED}),
    "window": (keyed.window, {"assigner": bs.EndOfStreamWindows.get()}),
    "count_window": (keyed.count_window, {"size": 3, "slide": None}),
    "over": (
        lambda text, **more: keyed.over(text, **more),
        {"text": "sum(a) AS b", "rows": None, "range": None, **NAMED},
    ),
    "connect": (keyed.connect, {"other": keyed}),
    "process of connect": (keyed.connect(keyed).process, {"function": Both(), **NAMED}),
    "join": (keyed.join, {"other": keyed, "how": "inner", "ttl": None, "interruptible": False, **NAMED}),
    "interval_join": (keyed.interval_join, {"other": keyed, "how": "inner", "interruptible": False}),
    "between": (
        keyed.interval_join(keyed).between,
        {"lower": "-1 s", "upper": "1 s", "lower_exclusive": False, "upper_exclusive": False, **NAMED},
    ),
    "allowed_lateness": (minutes.allowed_lateness, {"lateness": "1 s"}),
    "side_output_late_data": (minutes.side_output_late_data, {"name": "late"}),
    "trigger of windows": (ever.trigger, {"trigger": bs.CountTrigger.of(3)}),
    "apply": (minutes.apply, {"function": Window(), **NAMED}),
    "process of windows": (minutes.process, {"function": WindowWithContext(), **NAMED}),
    "tumbling": (bs.TumblingEventTimeWindows.of, {"size": "1 s", "offset": "0 s"}),
    "sliding": (bs.SlidingEventTimeWindows.of, {"size": "2 s", "slide": "1 s", "offset": "0 s"}),
    "cumulative": (bs.CumulativeEventTimeWindows.of, {"max_size": "2 s", "step": "1 s", "offset": "0 s"}),
    "session": (bs.EventTimeSessionWindows.with_gap, {"gap": "1 s"}),
    "CountTrigger": (bs.CountTrigger.of, {"count": 1}),
    "PurgingTrigger": (bs.PurgingTrigger.of, {"trigger": bs.CountTrigger.of(1)}),
    "StateTtlConfig": (bs.StateTtlConfig.new_builder, {"ttl": "1 h"}),
    "ValueState": (bs.ValueState, {"kind": "long", "ttl": None}),
    "MapState": (bs.MapState, {"key": "long", "kind": "long", "ttl": None}),
    "ReducingState": (bs.ReducingState, {"kind": "long", "function": first, "ttl": None}),
    "AggregatingState": (bs.AggregatingState, {"function": Mean(), "ttl": None}),
    "OutputTag": (bs.OutputTag, {"schema": "a long"}),
    "RecordAttributes": (bs.RecordAttributes, {"is_backlog": True}),
    "Watermark": (bs.Watermark, {"timestamp": 1, "use_processing_time": False}),
    "backlog_query": (bs.backlog_query, {"build": first, "checkpoint": "/x", "name": "", "spark": None}),
    "verify": (bs.verify, {**VERIFY, "table": ""}),
    "verify_tables": (bs.verify_tables, VERIFY),
}
"""What is called, and arguments that are right until a session is needed."""

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 3.5, float("nan"), 10**30, "", " ", "abc", "1 parsec", "9" * 5000, b"x", [], [1], [None],
    ["a", "a"], (1, 2, 3), {}, {"a": 1}, {1: "a"}, {"a", "b"}, [("a", "b")], [("a",)], object(), int, first, Path("/x"),
    timedelta(days=-1), timedelta.max, datetime.datetime(2024, 1, 1),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of the same process may have left one, and queries would start."""
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: None))


@pytest.mark.parametrize("build", [None, "abc", object(), first, lambda: 1])
def test_a_build_that_is_no_function_of_a_context(build: Any) -> None:
    with pytest.raises(bs.SettingError, match=r"build = .*RunContext"):
        bs.backlog_query(build, checkpoint="/x")


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_an_error_with_a_next_step(name: str) -> None:
    call, right = CALLS[name]
    refused = 0
    for argument in right:
        for value in VALUES:
            try:
                call(**{**right, argument: value})
            except bs.BacklogError as error:
                told = f"{name}({argument}={value!r:.40}): {error}"
                refused += 1
                if not error.hint or len(told) > 6_500:
                    raise AssertionError(told) from error
    assert refused


@pytest.mark.parametrize("seed", range(3))
def test_several_wrong_arguments_too(seed: int) -> None:
    rng = random.Random(seed)
    for call, right in CALLS.values():
        for _ in range(20):
            given = {**right, **{each: rng.choice(VALUES) for each in rng.sample(sorted(right), min(2, len(right)))}}
            try:
                call(**given)
            except bs.BacklogError as error:
                if not error.hint:
                    raise AssertionError(given) from error


def test_values_of_options_that_may_be_secret_are_not_shown() -> None:
    for wrong in ({"AWS_SECRET_ACCESS_KEY": 1}, ["S3cr3t"], {"S3cr3t"}):
        with pytest.raises(bs.SettingError, match=r"storage_options = '\*\*\*': must be a dict of texts") as told:
            bs.DeltaAppend("/t", storage_options=wrong)  # type: ignore[arg-type]
        assert "S3cr3t" not in str(told.value)


def test_a_path_may_be_a_path_of_python() -> None:
    assert bs.DeltaAppend(Path("/lake/t")).path == "/lake/t"
    assert bs.DeltaTables(Path("/lake/t")).path == "/lake/t"
