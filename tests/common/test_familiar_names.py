"""Hints for names from DataFrames and from Flink, and errors for wrong values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

import backlog_spark as bs
from backlog_spark.api.paired_streams import CoGroupedStreams, ConnectedStreams, IntervalJoin
from backlog_spark.api.writer import BacklogStreamWriter
from backlog_spark.common.familiar_names import HANDLE, KEYED, PAIRED, STREAM, WINDOWED, WRITER, choice, nearest
from backlog_spark.runner.handle import QueryHandle

orders = bs.source("mysql_cdc", name="orders", table="shop.orders")
keyed = orders.key_by("id")
windowed = keyed.window(bs.TumblingEventTimeWindows.of("1 minute"))
writer = orders.write("orders")


@pytest.mark.parametrize(
    ("thing", "name", "next_step"),
    [
        (orders, "writeStream", ".write('name')"),
        (orders, "select", ".map('id', "),
        (orders, "withColumn", ".transform(lambda df: "),
        (orders, "where", ".filter("),
        (orders, "groupBy", ".key_by('user_id')"),
        (orders, "groupby", ".key_by('user_id')"),
        (orders, "agg", ".key_by('user_id')"),
        (orders, "join", "a.key_by('id').join(b.key_by('id'))"),
        (orders, "drop_duplicates", "SELECT DISTINCT"),
        (orders, "dropDuplicates", "SELECT DISTINCT"),
        (orders, "show", "Write it to a sink"),
        (orders, "toPandas", "Write it to a sink"),
        (orders, "schema", "df.columns"),
        (orders, "orderBy", "a stream has no end"),
        (orders, "createOrReplaceTempView", "bs.sql(spark"),
        (orders, "withWatermark", "with_watermark"),
        (orders, "start", ".write('name')"),
        (orders, "keyBy", "Did you mean key_by?"),
        (orders, "filtr", "Did you mean filter?"),
        (orders, "amount", "Columns are written as text"),
        (keyed, "agg", ".aggregate("),
        (keyed, "avg", ".aggregate('avg("),
        (keyed, "write", "Add an operator first"),
        (keyed, "filter", "before .key_by("),
        (keyed, "applyInPandas", "bs.KeyedProcessFunction"),
        (windowed, "agg", ".aggregate("),
        (windowed, "write", "Add an operator first"),
        (orders, "window_all", ".key_by('everything')"),
        (keyed, "countWindowAll", ".key_by('everything')"),
        (windowed, "evictor", "merge rows as they come"),
        (bs, "CountEvictor", "merge rows as they come"),
        (bs, "ContinuousEventTimeTrigger", "merged without looking at single rows"),
        (writer, "outputMode", "Leave it out"),
        (writer, "format", "bs.DeltaUpsert"),
        (writer, "foreachBatch", "bs.Sink"),
        (writer, "awaitTermination", ".start() first"),
        (keyed.connect(keyed), "start", "a function or between(…) first"),
        (orders.co_group(orders), "write", "a function or between(…) first"),
    ],
)
def test_an_unknown_name_gives_a_hint(thing: Any, name: str, next_step: str) -> None:
    with pytest.raises(bs.BacklogError, match=f"has no '{name}'") as told:
        getattr(thing, name)
    assert next_step in told.value.hint
    assert not hasattr(thing, name)


@pytest.mark.parametrize("thing", [orders, keyed, windowed, writer, keyed.connect(keyed), orders.co_group(orders)])
def test_copies_pickles_and_notebooks_see_plain_objects(thing: Any) -> None:
    assert type(copy.copy(thing)) is type(thing)
    assert not hasattr(thing, "_repr_html_")
    assert not hasattr(thing, "_ipython_canary_method_should_not_exist_")
    assert not hasattr(type(thing).__new__(type(thing)), "anything"), "an object that is just being unpickled"
    with pytest.raises(AttributeError, match="no attribute '_nothing'"):
        thing._nothing  # noqa: B018


def test_streams_can_be_copied_and_pickled() -> None:
    assert repr(pickle.loads(pickle.dumps(orders))) == repr(orders) == repr(copy.deepcopy(orders))


def test_errors_of_a_property_are_its_own() -> None:
    class Broken(bs.BacklogStream):
        @property
        def broken(self) -> Any:
            return self._node.nothing  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'SourceNode' object has no attribute 'nothing'"):
        Broken(orders._node).broken  # noqa: B018


@pytest.mark.parametrize(
    ("kinds", "habits"),
    [
        ((bs.BacklogStream,), STREAM),
        ((bs.KeyedStream,), KEYED),
        ((bs.WindowedStream,), WINDOWED),
        ((CoGroupedStreams, ConnectedStreams, IntervalJoin), PAIRED),
        ((BacklogStreamWriter,), WRITER),
        ((QueryHandle,), HANDLE),
    ],
)
def test_no_hint_is_for_an_existing_name(kinds: tuple[type, ...], habits: dict[str, str]) -> None:
    there = {name.lower().replace("_", "") for kind in kinds for name in dir(kind) if not name.startswith("_")}
    assert not there & set(habits)


def test_the_module_knows_the_nearest_name() -> None:
    with pytest.raises(AttributeError, match=r"no 'DeltaUpset'\. Did you mean DeltaUpsert"):
        bs.DeltaUpset  # noqa: B018
    assert not hasattr(bs, "__path_of_nothing__")


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("SUMM", ["sum", "min"], "sum"),
        ("mysql", ["mysql_cdc", "kafka"], "mysql_cdc"),
        ("mysql-cdc", ["mysql_cdc"], "mysql_cdc"),
        ("banana", ["sum"], ""),
    ],
)
def test_nearest(name: str, known: list[str], expected: str) -> None:
    assert nearest(name, known) == expected


def test_choice() -> None:
    assert choice("sun", ["sum", "min"]) == "Did you mean sum? Known: min, sum."
    assert choice("banana", ["sum", "min"], "It has") == "It has: min, sum."


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: orders.map(lambda row: row), r"map was given a lambda\. Pass columns or SQL"),
        (lambda: orders.map(), r"map was given None"),
        (lambda: orders.map(["a", "b"]), r"map was given a list"),
        (lambda: orders.filter(lambda row: True), r"filter was given a lambda.*amount > 0"),
        (lambda: orders.transform("a"), r"transform was given 'a'\. Pass a function"),
        (lambda: orders.union([orders]), r"union was given a list.*bs\.stream\(df\)"),
        (lambda: orders.key_by(), r"key_by needs at least one column"),
        (lambda: orders.key_by(["a"]), r"key_by was given a list"),
        (lambda: keyed.process(bs.KeyedProcessFunction), r"process was given the class KeyedProcessFunction"),
        (lambda: keyed.window("1 minute"), r"window was given '1 minute'"),
        (lambda: keyed.join(orders), r"join was given a BacklogStream"),
        (lambda: keyed.reduce("sum"), r"reduce was given 'sum'"),
        (lambda: keyed.aggregate({"amount": "sum"}), r"aggregate was given a dict\. Write SQL: 'sum\(amount\)"),
        (lambda: keyed.aggregate("summ(amount) AS s"), r"SUMM\(amount\).*Did you mean sum\?"),
        (lambda: keyed.over("summ(amount) AS s"), r"SUMM\(amount\).*Did you mean sum\?"),
        (lambda: bs.stream("orders"), r"bs\.stream .* was given 'orders'.*readStream"),
        (lambda: bs.source("hybrid", name="a", schema={"id": "int"}), r"schema = .*: is a dict, not a text"),
        (lambda: bs.source("mysql_cdc", table="a.b"), r"source\(name=…\) = None: is needed"),
        (lambda: bs.source("mysql_cdc", name="", table="a.b"), r"name = '': a source needs a name"),
        (lambda: orders.write(), r"write\(name=…\) = None: is needed"),
        (lambda: orders.write(""), r"name = '': a query needs a name"),
    ],
)
def test_a_wrong_value_is_refused_at_once(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(bs.BacklogError, match=said):
        wrong()


def test_values_of_options() -> None:
    columns = StructType([StructField("id", LongType()), StructField("a b", ArrayType(StringType()))])
    given: dict[str, Any] = {"phases": ["files", "kafka"], "header": True, "path": Path("/x"), "format": "json"}
    made = bs.source("hybrid", name="a", schema=columns, startingOverlap=timedelta(seconds=90), topic=None, **given)
    assert dict(made.sources[0].options) == {
        "schema": "id bigint, `a b` array<string>",
        "startingOverlap": "90000 ms",
        "phases": "files,kafka",
        "header": "true",
        "path": "/x",
        "format": "json",
    }


def intervals(made: BacklogStreamWriter) -> tuple[Any, bool]:
    return made._intervals, made._available_now


def test_triggers_may_have_the_names_of_spark() -> None:
    made = orders.write("a").trigger(processingTime="30 seconds", intervalDuringBacklog="5 minutes")
    assert intervals(made) == ({"interval": "30 seconds", "interval_during_backlog": "5 minutes"}, False)
    assert intervals(orders.write("a").trigger(availableNow=True)) == ({}, True)


@pytest.mark.parametrize(
    ("trigger", "said"),
    [
        ({"once": True}, r"trigger\(once=…\) = '\*\*\*': there is no such argument.*It has: available_now"),
        ({"continuous": "1 second"}, r"trigger\(continuous=…\)"),
        ({"processingTime": "1 s", "processing_time": "2 s"}, "processing_time is given twice. Write it once"),
        ({"processing_time": "30"}, "the number 30 has no unit"),
        ({"processing_time": 30}, "a bare number has no unit"),
        ({"processing_time": "30 parsecs"}, "unknown unit 'parsecs'"),
        ({"interval_during_backlog": "never"}, "is not a duration"),
        ({"processing_time": "1 min", "interval_during_backlog": "1 s"}, "is less than trigger"),
    ],
)
def test_an_interval_is_judged_by_trigger(trigger: dict[str, Any], said: str) -> None:
    with pytest.raises(bs.SettingError, match=said):
        orders.write("a").trigger(**trigger)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("/lake/t", "to was given '/lake/t', which is not a sink.*DeltaAppend.'/lake/t'.*DeltaUpsert.'/lake/t', keys="),
        (bs.DeltaAppend, "to was given the class DeltaAppend"),
        (None, "to was given None"),
    ],
)
def test_only_sinks_are_sinks(given: Any, told: str) -> None:
    with pytest.raises(bs.BacklogError, match=told):
        writer.to(given)
