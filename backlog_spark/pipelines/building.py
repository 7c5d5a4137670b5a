"""Makes streams and sinks of a pipeline's sections."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from backlog_spark import sinks
from backlog_spark.api.lookup import LookupTable, lookup
from backlog_spark.api.streams import BacklogStream, source
from backlog_spark.common.failure_causes import first_line
from backlog_spark.common.familiar_names import choice, described
from backlog_spark.common.requirements import required
from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.document import Path, PipelineError
from backlog_spark.pipelines.model import Output, Pipeline
from backlog_spark.pipelines.sections import FunctionSink, PythonSink, SinkSection, Transform, Watermark
from backlog_spark.pipelines.sql_names import unknown_names
from backlog_spark.sinks import ForeachSink, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    _Table = BacklogStream | LookupTable

__all__ = ["check_functions", "sink_of", "source_of", "streams_of", "use_directory"]


def use_directory(pipeline: Pipeline) -> None:
    """Let functions of modules beside the file be imported, here and in Spark's processes. Before Spark starts."""
    if pipeline.directory not in sys.path:
        sys.path.insert(0, pipeline.directory)
    given = os.environ.get("PYTHONPATH", "")
    if pipeline.directory not in given.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [pipeline.directory, given]))


def source_of(pipeline: Pipeline, index: int = 0) -> BacklogStream:
    """A source, without its event time."""
    declared = pipeline.sources[index]
    return source(declared.section.type, name=declared.section.name, options=declared.options)


def streams_of(pipeline: Pipeline, spark: SparkSession) -> dict[str, BacklogStream]:
    """The streams of all sources and transforms by name.

    Raises
    ------
    PipelineError
        With the place of the SQL or function in the file.
    """
    found: dict[str, BacklogStream] = {}
    bounded = {declared.section.name: _lookup(pipeline, index) for index, declared in enumerate(pipeline.lookups)}
    _register(pipeline, spark)
    for index, declared in enumerate(pipeline.sources):
        found[declared.section.name] = _timed(source_of(pipeline, index), declared.section.watermark)
    for index, transform in enumerate(pipeline.transforms):
        path = pipeline.at("transform", index)
        tables: dict[str, _Table] = {**bounded, **found}
        made = _by_sql(pipeline, transform, path, tables, spark) if transform.sql else None
        stream = made or _by_function(pipeline, transform, path, tables, spark)
        if transform.columns or transform.changes != "keep":
            from backlog_spark.pipelines.columns import with_columns

            stream = with_columns(pipeline, transform, (*path, "columns"), stream, spark)
        found[transform.name] = _timed(stream, transform.watermark)
    return found


def _lookup(pipeline: Pipeline, index: int) -> LookupTable:
    declared = pipeline.lookups[index]

    def read(spark: SparkSession) -> DataFrame:
        reader = spark.read.format(declared.section.format).options(**declared.options)
        if declared.section.schema_:
            reader = reader.schema(declared.section.schema_)
        try:
            return reader.load()
        except Exception as error:  # of any format
            problem = f"{declared.section.name} cannot be read: {first_line(error)}."
            raise pipeline.error(pipeline.at("lookup", index), problem) from None

    return lookup(read, refresh=declared.section.refresh)


def sink_of(pipeline: Pipeline, output: Output) -> Sink:
    """The sink that a section declares.

    Raises
    ------
    PipelineError
        Its arguments do not fit, or its function cannot be found.
    """
    section, path = output.section, output.path
    arguments = section.arguments()
    routes = [(route.source_table, route.sink_table) for route in pipeline.routes]
    made: Any
    try:
        if isinstance(section, FunctionSink):
            made = ForeachSink(_imported(pipeline, section.function, (*path, "function")))
        elif isinstance(section, PythonSink):
            made = _called(pipeline, section, path, arguments)
        else:
            more = {"routes": routes} if section.TAKES_TABLES else {}
            made = getattr(sinks, section.MAKES)(**arguments, **more)
    except BacklogError as error:
        raise pipeline.error(path, error.problem, error.hint) from None
    if not isinstance(made, Sink):
        raise pipeline.error((*path, "function"), f"The function returned {described(made)}, which is no bs.Sink.")
    return made


def check_functions(pipeline: Pipeline) -> Iterator[PipelineError]:
    """An error for each function that cannot be imported or called. Imports their modules."""
    streams: dict[str, Any] = dict.fromkeys(declared.section.name for declared in pipeline.sources)
    streams |= dict.fromkeys(declared.section.name for declared in pipeline.lookups)
    for index, transform in enumerate(pipeline.transforms):
        if transform.function:
            path = pipeline.at("transform", index)
            try:
                function = _imported(pipeline, transform.function, (*path, "function"))
                _arguments(pipeline, transform, path, function, streams, None)
            except PipelineError as error:
                yield error
        streams[transform.name] = None
    functions = pipeline.pipeline.functions
    named: list[tuple[str, Path]] = [
        (function, ("pipeline", "functions", name)) for name, function in functions.items()
    ]
    named += [
        (output.section.function, (*output.path, "function"))
        for output in pipeline.outputs()
        if isinstance(output.section, PythonSink | FunctionSink)
    ]
    for name, path in named:
        if name:
            try:
                _imported(pipeline, name, path)
            except PipelineError as error:
                yield error


def _register(pipeline: Pipeline, spark: SparkSession) -> None:
    """Give SQL the pipeline's functions."""
    for name, function in pipeline.pipeline.functions.items():
        path: Path = ("pipeline", "functions", name)
        with required("SQL"):
            from backlog_spark.streamsql.functions import register_functions
        try:
            register_functions(spark, {name: _imported(pipeline, function, path)})
        except PipelineError:
            raise
        except BacklogError as error:
            raise pipeline.error(path, error.problem, error.hint) from None


def _timed(stream: BacklogStream, watermark: Watermark | None) -> BacklogStream:
    if watermark is None:
        return stream
    return stream.with_watermark(watermark.column, watermark.delay, idle_timeout=watermark.idle_timeout)


def _by_sql(
    pipeline: Pipeline, transform: Transform, path: Path, tables: Mapping[str, _Table], spark: SparkSession
) -> BacklogStream:
    with required("SQL"):
        from backlog_spark.streamsql.queries import sql
        from backlog_spark.streamsql.refusals import SqlError

    query = transform.sql or ""
    named: dict[str, Any] = {name: table for name, table in tables.items() if re.search(rf"(?i)\b{name}\b", query)}
    try:
        for problem in unknown_names(query, dict.fromkeys(tables), functions=False, dialect=transform.dialect)[0]:
            raise problem
        return sql(spark, query, dialect=transform.dialect, **named)
    except SqlError as error:
        raise pipeline.sql_error((*path, "sql"), error) from None


def _by_function(
    pipeline: Pipeline, transform: Transform, path: Path, tables: Mapping[str, _Table], spark: SparkSession
) -> BacklogStream:
    function = _imported(pipeline, transform.function or "", (*path, "function"))
    arguments = _arguments(pipeline, transform, path, function, tables, spark)
    try:
        made = function(**arguments)
    except TypeError as error:
        raise pipeline.error((*path, "function"), f"{transform.function} cannot be called: {error}.") from error
    if not isinstance(made, BacklogStream):
        raise pipeline.error(
            (*path, "function"), f"{transform.function} returned {described(made)}.", "It must return a BacklogStream."
        )
    return made


def _arguments(
    pipeline: Pipeline, transform: Transform, path: Path, function: Any, streams: Mapping[str, Any], spark: Any
) -> dict[str, Any]:
    """What a function is called with: the file's arguments, and streams by the names of its parameters."""
    arguments = dict(transform.arguments)
    for parameter in inspect.signature(function).parameters.values():
        name = parameter.name
        if name in arguments or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in streams:
            arguments[name] = streams[name]
        elif name == "spark":
            arguments[name] = spark
        elif parameter.default is parameter.empty:
            raise pipeline.error(
                (*path, "function"), f"{transform.function} has a parameter {name}, which is no stream.",
                choice(name, streams, "There are"),
            )  # fmt: skip
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise pipeline.error((*path, "function"), f"{transform.function} cannot be called: {error}.") from error
    return arguments


def _called(pipeline: Pipeline, section: SinkSection, path: Path, arguments: Mapping[str, Any]) -> Any:
    assert isinstance(section, PythonSink)
    function = _imported(pipeline, section.function, (*path, "function"))
    try:
        return function(**arguments)
    except TypeError as error:
        raise pipeline.error((*path, "function"), f"{section.function} cannot be called: {error}.") from error


def _imported(pipeline: Pipeline, name: str, path: Path) -> Callable[..., Any]:
    """A function by ``module:name``."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise pipeline.error(path, f"{name} is not module:function.", "For example jobs.orders:paid.")
    use_directory(pipeline)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise pipeline.error(
            path, f"There is no module {error.name}.", f"Modules are looked for in {pipeline.directory} and PYTHONPATH."
        ) from error
    except Exception as error:  # the module's own
        raise pipeline.error(
            path, f"The module {module} cannot be imported: {type(error).__name__}: {first_line(error)}."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [each for each in dir(found) if not each.startswith("_")]
            raise pipeline.error(path, f"The module {module} has no {attribute}.", choice(part, public, "It has"))
        found = getattr(found, part)
    if not callable(found):
        raise pipeline.error(path, f"{name} is {described(found)}, not a function.")
    return found  # type: ignore[no-any-return]
