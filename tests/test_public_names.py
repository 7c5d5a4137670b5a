"""What ``import backlog_spark as bs`` offers: every name can be found, read about and called in either spelling."""

from __future__ import annotations

import importlib.util
import inspect
import pydoc
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

import backlog_spark as bs
from backlog_spark.api.paired_streams import CoGroupedStreams, ConnectedStreams, IntervalJoin
from backlog_spark.api.streams import IntervalJoined
from backlog_spark.api.writer import BacklogStreamWriter
from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.pipelines.sections import SINKS, Source, Watermark, keys_of
from backlog_spark.verification.result import TargetDiffers

CHAINED = (
    bs.BacklogStream, IntervalJoined, bs.KeyedStream, bs.WindowedStream, CoGroupedStreams, ConnectedStreams,
    IntervalJoin, BacklogStreamWriter, bs.BacklogQuery, bs.NativeQuery,
)  # fmt: skip


def test_dir_has_exactly_the_public_names() -> None:
    assert sorted(dir(bs)) == sorted(bs.__all__)
    assert len(set(bs.__all__)) == len(bs.__all__)


@pytest.mark.parametrize("name", bs.__all__)
def test_a_public_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(bs, name)
    assert hasattr(bs, name)
    assert inspect.getdoc(found), "a docstring"
    assert importlib.util.find_spec(f"backlog_spark.{name}") is None, "a module would take its place once it is loaded"


def test_help_lists_the_public_names() -> None:
    text = pydoc.plain(pydoc.render_doc(bs))
    missing = [name for name in bs.__all__ if name not in text]
    assert not missing


def test_a_name_can_be_completed() -> None:
    completer = pytest.importorskip("rlcompleter").Completer({"bs": bs})
    matches = {completer.complete("bs.Delta", number) for number in range(9)} - {None}
    assert {found.rstrip("(") for found in matches} == {"bs.DeltaAppend", "bs.DeltaTables", "bs.DeltaUpsert"}


WITHOUT = """
    import pydoc, sys
    sys.modules.update(dict.fromkeys({missing!r}))
    import backlog_spark as bs
    assert not hasattr(bs, {name!r})
    assert {name!r} in dir(bs)
    pydoc.render_doc(bs)
    for ask in (lambda: bs.{name}, lambda: exec("from backlog_spark import {name}")):
        try:
            ask()
        except bs.BacklogError as error:
            assert {says!r} in str(error), error
        else:
            raise AssertionError("nothing is missing")
    from backlog_spark import errors
    assert errors.BacklogError is bs.BacklogError
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("missing", "name", "says"),
    [
        (("sqlglot",), "sql", "pip install 'backlog-spark[sql]'"),
        (("pyspark",), "source", "pip install 'backlog-spark[spark]'"),
    ],
)
def test_a_name_whose_package_is_missing_is_not_there(missing: tuple[str, ...], name: str, says: str) -> None:
    code = textwrap.dedent(WITHOUT).format(missing=missing, name=name, says=says)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """What users call with named arguments: functions, constructors, and the methods that are chained."""
    for name in bs.__all__:
        found = getattr(bs, name)
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found) and hasattr(found.__init__, "__wrapped__"):
            yield name, found.__init__
    for kind in CHAINED:
        for name, found in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}", found


# Users make none of these themselves: they get them from a query or a function, or from a method.
MADE_FOR_USERS = (
    bs.BacklogProgress, bs.Switch, bs.Verification, bs.Difference, bs.RunContext, bs.NativeHybrid, bs.NativeQuery,
    bs.BacklogQuery, bs.StateTtlConfig, TargetDiffers, bs.BacklogError, bs.WindowedStream, bs.LookupTable,
)  # fmt: skip


def several_words(signature: inspect.Signature) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in signature.parameters.values() if p.kind in kinds and "_" in p.name.strip("_")]


def test_every_argument_of_two_words_has_both_spellings() -> None:
    """The list of callables above has all that need them."""
    left = [
        name
        for name in bs.__all__
        if inspect.isclass(kind := getattr(bs, name))
        and not issubclass(kind, MADE_FOR_USERS)
        and not hasattr(kind.__init__, "__wrapped__")
        and not name.endswith("Windows")  # their constructors are `of`, `get` and so on
        and several_words(inspect.signature(kind))
    ]
    assert not left
    windows = [
        getattr(bs, name).of for name in bs.__all__ if name.endswith("Windows") and hasattr(getattr(bs, name), "of")
    ]
    assert all(hasattr(of, "__wrapped__") for of in windows)


@pytest.mark.parametrize(("name", "function"), list(callables()))
def test_either_spelling_reaches_the_same_argument(name: str, function: Any) -> None:
    rng = random.Random(name)
    signature = inspect.signature(function)
    assert hasattr(function, "__wrapped__") or not several_words(signature), "it takes one spelling only"

    def noted(*args: Any, **given: Any) -> dict[str, Any]:
        return dict(signature.bind(*args, **given).arguments)

    # Without annotations: here only names are looked at.
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    noted.__signature__ = signature.replace(parameters=plain)  # type: ignore[attr-defined]
    called = checked_arguments(noted)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = {p.name: p.kind for p in signature.parameters.values() if p.default is p.empty and p.kind not in kinds}
    first = [1 for kind in needed.values() if kind is not inspect.Parameter.KEYWORD_ONLY]
    named = {each: 2 for each, kind in needed.items() if kind is inspect.Parameter.KEYWORD_ONLY}
    for word in several_words(signature):
        other = rng.choice([to_camel(word), word.upper(), word.replace("_", "-")])
        args = first[: list(needed).index(word)] if word in needed else first
        assert called(*args, **{**named, other: 3})[word] == 3
        with pytest.raises(bs.SettingError, match=f"{word} is given twice"):
            called(*args, **{**named, other: 3, word: 4})
    if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        with pytest.raises(bs.SettingError, match="no such argument") as told:
            called(*first, **named, pasword="secret")
        assert "secret" not in str(told.value)


def test_a_sink_takes_the_names_of_a_file() -> None:
    """`keys_of` are the keys of the file; those that are arguments of the class may be written in Python too."""
    kinds = {"delta_append": bs.DeltaAppend, "delta_upsert": bs.DeltaUpsert, "delta_tables": bs.DeltaTables}
    kinds |= {"iceberg_append": bs.IcebergAppend, "iceberg_upsert": bs.IcebergUpsert}
    places = {"delta": {"path": "/t"}, "iceberg": {"table": "shop.t", "catalog": {"warehouse": "/lake"}}}
    others = {"type", "name", "from", "checkpoint", "sideOutputs", "path", "table", "catalog", "keys"}
    for name, kind in kinds.items():
        for key in set(keys_of(SINKS[name])) - others:
            given: dict[str, Any] = places[name.partition("_")[0]] | ({"keys": ["id"]} if "upsert" in name else {})
            default = SINKS[name].model_fields[{to_camel(f): f for f in SINKS[name].model_fields}[key]].default
            assert isinstance(kind(**given, **{key: default}), kind), key
    given = {"url": "mysql://db/shop", "table": "t", "keys": ["id"], "user": "me"}
    for key in set(keys_of(SINKS["jdbc_upsert"])) - {"type", "name", "from", "checkpoint", "sideOutputs", *given}:
        fields = SINKS["jdbc_upsert"].model_fields
        assert isinstance(
            bs.JdbcUpsert(**given, **{key: fields[{to_camel(f): f for f in fields}[key]].default}), bs.Sink
        )
    stream = bs.source("mysql_cdc", name="a")
    assert set(keys_of(Watermark)) == {"column", "delay", "idleTimeout"}
    assert stream.with_watermark("ts", delay="1 s", idleTimeout="1 min") is not None  # type: ignore[call-arg]
    assert "type" in keys_of(Source), "an argument by position"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: bs.DeltaUpsert("/t"), r"keys = \[\]: an upsert needs at least one key column\. Name the columns"),
        (
            lambda: bs.DeltaAppend("/t", ["a"]),
            r"DeltaAppend: too many positional arguments\. Write the arg|DeltaAppend: ",
        ),
        (lambda: bs.DeltaAppend("/t", mergeSchemas=True), r"Did you mean merge_schema\?"),
        (lambda: bs.source("mysql_cdc"), r"source\(name=…\) = None: is needed"),
        (lambda: bs.CumulativeEventTimeWindows.of(maxSize="1 h"), r"CumulativeEventTimeWindows.of\(step=…\)"),
        (lambda: bs.RecordAttributes(isBacklog=1), r"is_backlog = 1: must be True or False"),
    ],
)
def test_a_wrong_call_is_an_error_with_the_right_one(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(bs.BacklogError, match=said):
        wrong()


@pytest.mark.parametrize(
    "kind",
    [
        bs.BacklogStream,
        bs.KeyedStream,
        bs.BacklogQuery,
        bs.NativeQuery,
        bs.NativeHybrid,
        bs.KeyedProcessFunction,
        bs.KeyedCoProcessFunction,
        bs.Trigger,
        bs.ValueState,
        bs.WindowFunction,
        bs.DeltaTables,
        bs.CountTrigger,
    ],
)
def test_what_the_package_calls_itself_is_private(kind: type) -> None:
    """A member says so in its docstring, or is one of the list; a user's subclass can then have the name."""
    public = {name: inspect.getdoc(getattr(kind, name)) or "" for name in dir(kind) if not name.startswith("_")}
    told = [name for name, text in public.items() if "Called by the operator" in text]
    assert set(told) <= {"process_element"}, "of a base class that is no user's own"
    ours = {
        "node", "sink", "keyed", "intervals", "between_batches", "sortsBacklog", "then", "then_joined", "explained",
        "spark", "start", "stream", "order", "declared_states", "declared_tags", "is_vectorised", "ends", "bound",
        "bind", "typed", "take_attributes", "attributes_of_output", "begun", "app_id_of", "recall", "mend", "leave",
        "enter", "frame", "source", "of_query",
    }  # fmt: skip
    assert not ours & set(public)
