"""Finds all that would fail when a pipeline starts or later: the file, packages, Java, servers, tables and targets."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.building import check_functions
from backlog_spark.pipelines.document import PipelineError
from backlog_spark.pipelines.locations import local_path
from backlog_spark.pipelines.machine import java, packages
from backlog_spark.pipelines.model import DeclaredSource, Pipeline
from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.resuming import compared
from backlog_spark.pipelines.sections import DeltaTablesSink, DeltaUpsertSink
from backlog_spark.pipelines.sql_names import Columns, unknown_names
from backlog_spark.sinks.table_routes import TablePlace, TableRoutes, overlaps
from backlog_spark.spi.examination import Examination, Finding, FoundTable, Severity
from backlog_spark.spi.registry import (
    CONNECTORS,
    KEEPS_METADATA,
    check_start,
    connector_module,
    data_source,
    documented_options,
    examine,
)

__all__ = ["Report", "preflight"]

# Settings that may bring functions for SQL.
_FUNCTIONS: Final = re.compile(r"spark\.(sql\.(extensions|catalog)|plugins)\b")
# What Delta needs for a table, compared with the server's size of it. Parquet is mostly smaller.
_SPACE: Final = 1
# More than an inode holds: a full disk takes the name of a file and not its content.
_WRITTEN: Final = 64 << 10


@dataclass(frozen=True)
class Report:
    """What `preflight` found.

    Parameters
    ----------
    findings : tuple of Finding
        In the order in which they were looked at.
    tables : tuple of FoundTable
        The tables of all sources.
    """

    findings: tuple[Finding, ...] = ()
    tables: tuple[FoundTable, ...] = field(default=())

    @property
    def fails(self) -> bool:
        """Whether the pipeline would not start, or would stop."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def preflight(file: str, *, checkpoint: str | None = None) -> Report:
    """Check a pipeline without starting Spark. Connects to its servers and reads no rows.

    ``checkpoint`` is as in `load`.
    """
    try:
        pipeline = load(file, checkpoint=checkpoint)
    except PipelineError as error:
        return Report(
            tuple(
                Finding(Severity.ERROR, f"{file}:{fault.place.line}:{fault.place.column}", fault.problem, fault.hint)
                for fault in error.faults
            )
        )
    except BacklogError as error:
        return Report((_error(file, error),))
    findings = [Finding(Severity.OK, file, "the file is a pipeline."), *packages(pipeline), *java()]
    tables: list[FoundTable] = []
    reached, columns = set(), dict[str, Columns]()
    for declared in pipeline.sources:
        found, told = _source(pipeline, declared.section.type, declared.section.name, declared.options)
        findings += told
        columns[declared.section.name] = _columns(declared, found)
        if found is not None:
            tables += found.tables
            reached.add(declared.section.name)
            findings += _keys(pipeline, found)
            findings += _types(pipeline, declared, found)
            findings += _places(pipeline, found)
            if not all(_has_begun(local_path(pipeline.checkpoint_of(sink))) for sink in pipeline.sinks):
                findings += found.first
                findings += _first_start(declared, told)
    findings += _lookups(pipeline)
    findings += _transforms(pipeline, columns | dict.fromkeys(each.section.name for each in pipeline.lookups))
    for sink in pipeline.sinks:
        where = local_path(pipeline.checkpoint_of(sink))
        if where is not None and _has_begun(where):
            findings += compared(pipeline, sink, where, reached)
    findings += _targets(pipeline, tables)
    return Report(tuple(_redacted(pipeline, finding) for finding in findings), tuple(tables))


def _redacted(pipeline: Pipeline, finding: Finding) -> Finding:
    hide = pipeline.document.redacted
    return Finding(finding.severity, hide(finding.subject), hide(finding.problem), hide(finding.hint))


def _error(subject: str, problem: BacklogError) -> Finding:
    return Finding(Severity.ERROR, subject, problem.problem, problem.hint)


# -- the pipeline -------------------------------------------------------------------------------------------


def _transforms(pipeline: Pipeline, columns: Mapping[str, Columns]) -> Iterator[Finding]:
    """SQL and functions. ``columns``: of each source."""
    streams: dict[str, Columns] = {**columns}
    given = pipeline.pipeline
    adds_functions = bool(given.functions) or any(_FUNCTIONS.match(name) for name in given.settings)
    for index, transform in enumerate(pipeline.transforms):
        made: Columns = None
        # Without the package, the finding about packages says so.
        if transform.sql and importlib.util.find_spec("sqlglot"):
            from backlog_spark.streamsql.refusals import SqlError

            path = (*pipeline.at("transform", index), "sql")
            problems: Sequence[SqlError] = ()
            try:
                problems, made = unknown_names(
                    transform.sql, streams, functions=not adds_functions, dialect=transform.dialect
                )
            except SqlError as error:
                problems = [error]
            for problem in problems:
                yield _of_fault(pipeline, pipeline.sql_error(path, problem))
            made = {name.lower() for name in transform.columns} or made
        streams[transform.name] = made
    for broken in check_functions(pipeline):
        yield _of_fault(pipeline, broken)
    for sink in pipeline.sinks:
        names = streams.get(pipeline.input_of(sink)) if pipeline.input_of(sink) not in columns else None
        lost = [key for key in getattr(sink, "keys", None) or [] if names is not None and key.lower() not in names]
        if names is not None and lost:
            yield Finding(
                Severity.ERROR, f"sink {sink.name}", f"{pipeline.input_of(sink)} has no column {lost[0]} of keys.",
                f"Its columns are {', '.join(sorted(names))}.",
            )  # fmt: skip


def _of_fault(pipeline: Pipeline, error: PipelineError) -> Finding:
    (fault,) = error.faults
    return Finding(
        Severity.ERROR, f"{pipeline.file}:{fault.place.line}:{fault.place.column}", fault.problem, fault.hint
    )


def _lookups(pipeline: Pipeline) -> Iterator[Finding]:
    """Files of bounded tables on this machine. Spark reads the others when the query starts."""
    for declared in pipeline.lookups:
        path = declared.options.get("path", "")
        where = local_path(path)
        if where is not None and not any(char in path for char in "*?[{") and not where.exists():
            yield Finding(Severity.ERROR, f"lookup {declared.section.name}", f"there is no {where}.", "Correct path.")


def _columns(declared: DeclaredSource, found: Examination | None) -> Columns:
    """The columns of a source's rows, if they are those of one table."""
    plain = declared.section.type == "mysql_cdc" and "table" in map(str.lower, declared.options)
    shaped = {"format", "columns.include", "columns.exclude", "metadatacolumns"} & set(map(str.lower, declared.options))
    if found is None or len(found.tables) != 1 or not plain or shaped:
        return None
    return {name.lower() for name, _ in found.tables[0].columns} or None


def _source(
    pipeline: Pipeline, source_format: str, name: str, options: dict[str, str]
) -> tuple[Examination | None, list[Finding]]:
    findings = []
    index = next(i for i, declared in enumerate(pipeline.sources) if declared.section.name == name)
    hidden, secrets = pipeline.document.hidden, _secrets(source_format)
    for option, text in options.items():
        if re.fullmatch(secrets, option, re.IGNORECASE) and text and not any(value in text for value in hidden):
            line = pipeline.document.place((*pipeline.at("source", index), option)).line
            findings.append(
                Finding(
                    Severity.WARNING, f"source {name}", f"{option} stands in the file, in line {line}.",
                    "Write ${NAME}, and set that variable.",
                )
            )  # fmt: skip
    if source_format in KEEPS_METADATA:
        options = {"metadataLocation": "/", **options}  # the query sets it; nothing is written here
    try:
        found = _of_kafka(options) if source_format == "kafka" else examine(source_format, options)
    except BacklogError as problem:
        return None, [*findings, _error(f"source {name}", problem)]
    if found is None:
        told = f"{source_format} cannot be looked at without Spark; the query checks it when it starts."
        return None, [*findings, Finding(Severity.NOTE, f"source {name}", told)]
    return found, [*findings, *found.findings]


def _first_start(declared: DeclaredSource, told: Sequence[Finding]) -> Iterator[Finding]:
    """What a query refuses at its first start, unless the reason was found already. That of hybrid needs Spark."""
    if declared.section.type == "mysql_cdc" and all(each.severity is not Severity.ERROR for each in told):
        try:
            check_start(declared.section.type, declared.options)
        except BacklogError as problem:
            yield _error(f"source {declared.section.name}", problem)


def _secrets(source_format: str) -> str:
    """Regular expression for the whole names of a source's options with secret values."""
    source_format = "hybrid" if source_format == "kafka" else source_format  # it knows Kafka's
    names = [re.escape(option.name) for option in documented_options(source_format) if option.secret]
    if source_format in CONNECTORS:
        names.append(getattr(data_source(source_format), "secrets", ""))
    return "|".join(filter(None, names)) or "(?!)"


def _of_kafka(options: dict[str, str]) -> Examination | None:
    """Spark's own Kafka source. The client of the source ``hybrid`` asks the brokers, if it is installed."""
    try:
        examination = connector_module("hybrid", "kafka.examination")
    except ImportError:
        return None
    examined: Examination | None = examination.examine_spark(options)
    return examined


def _keys(pipeline: Pipeline, found: Examination) -> Iterator[Finding]:
    """Sinks that get a source's rows as they are upsert by the tables' keys."""
    names = {declared.section.name for declared in pipeline.sources}
    for sink in pipeline.sinks:
        if sink.SYNC:
            for table in found.tables:
                if not table.key:
                    yield Finding(
                        Severity.ERROR, table.name, "it has no primary key: delta_tables cannot tell its rows apart.",
                        "Name a unique key with messageKeyColumns, or leave the table out with tables.exclude.",
                    )  # fmt: skip
        elif isinstance(sink, DeltaUpsertSink) and pipeline.input_of(sink) in names:
            for table in found.tables:
                keys = [key for key in sink.keys if key not in ("_database", "_table")]
                columns = {name.lower() for name, _ in table.columns}
                unknown = [key for key in keys if key.lower() not in columns]
                if unknown:
                    yield Finding(
                        Severity.ERROR, f"sink {sink.name}", f"{table.name} has no column {unknown[0]} of keys.",
                        f"Its primary key is {', '.join(table.key) or 'none'}.",
                    )  # fmt: skip
                elif table.key and {key.lower() for key in keys} != {key.lower() for key in table.key}:
                    yield Finding(
                        Severity.WARNING, f"sink {sink.name}",
                        f"keys are {', '.join(keys)}; the primary key of {table.name} is {', '.join(table.key)}.",
                        "Rows with the same keys replace each other. Backlog is merged, not appended.",
                    )  # fmt: skip


def _types(pipeline: Pipeline, declared: DeclaredSource, found: Examination) -> Iterator[Finding]:
    """Local Delta tables that get a source's rows as they are, and have a column with another type."""
    for sink in pipeline.sinks:
        where = local_path(str(getattr(sink, "path", "") or ""))
        is_direct = pipeline.input_of(sink) == declared.section.name and _columns(declared, found) is not None
        begun = _has_begun(local_path(pipeline.checkpoint_of(sink)))
        if where is None or not is_direct or begun or sink.SYNC or not (where / "_delta_log").is_dir():
            continue
        try:
            there = {name.lower(): type_ for name, type_ in _of_delta(where)}
        except Exception as error:  # a table that delta-rs cannot read
            yield Finding(Severity.NOTE, f"sink {sink.name}", f"{where} was not compared: {type(error).__name__}.")
            continue
        for name, type_ in found.tables[0].columns:
            if there.get(name.lower(), type_) != type_ and not getattr(sink, "merge_schema", False):
                yield Finding(
                    Severity.ERROR, f"sink {sink.name}",
                    f"{where} has column {name} of type {there[name.lower()]}; that of {found.tables[0].name} is "
                    f"{type_}.", "Name another path, or write the table again with the new type.",
                )  # fmt: skip


def _of_delta(table: Path) -> Iterator[tuple[str, str]]:
    """Names and types of a Delta table's columns, as Spark writes them."""
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(DeltaTable(table).schema().to_json()))
    yield from ((field.name, field.dataType.simpleString()) for field in schema.fields)


def _places(pipeline: Pipeline, found: Examination) -> Iterator[Finding]:
    """Tables whose Delta tables would lie in each other's directory. ``run`` finds out with their first rows."""
    for sink in pipeline.sinks:
        if isinstance(sink, DeltaTablesSink):
            routes = TableRoutes(sink.path, [(route.source_table, route.sink_table) for route in pipeline.routes])
            places = [TablePlace(each.name, routes.path_of(*TableName.parse(each.name))) for each in found.tables]
            for problem in overlaps(places):
                yield _error(f"sink {sink.name}", problem)


def _targets(pipeline: Pipeline, tables: list[FoundTable]) -> Iterator[Finding]:
    """Directories of targets and checkpoints. Those on this machine are written to; those elsewhere need Spark."""
    size = sum(table.size or 0 for table in tables)
    for output in pipeline.outputs():
        sink = output.section
        path, checkpoint = str(getattr(sink, "path", "") or ""), pipeline.checkpoint_of(output.query)
        for what, location in ((f"sink {output.name}", path), ("checkpoint", "" if output.side else checkpoint)):
            where = local_path(location)
            if where is None:
                if location:
                    told = f"{location} is not on this machine: the query finds out whether it can be written."
                    yield Finding(Severity.NOTE, what, told)
                continue
            is_sink, begun = what.startswith("sink"), _has_begun(local_path(checkpoint))
            try:
                yield from _directory(what, where, is_table=is_sink and not sink.SYNC, begun=begun, size=size * is_sink)
            except OSError as error:
                told = f"{where} cannot be used: {error.strerror}."
                yield Finding(Severity.ERROR, what, told, "Change its rights, or the path.")
        if not output.side and _has_begun(local_path(checkpoint)):
            yield Finding(Severity.NOTE, "checkpoint", f"{checkpoint} exists: the query continues from it.")


def _directory(what: str, where: Path, *, is_table: bool, begun: bool, size: int) -> Iterator[Finding]:
    problem = _try_to_write(where)
    if problem is not None:
        yield Finding(Severity.ERROR, what, *problem)
        return
    if is_table and where.is_dir() and any(where.iterdir()):
        if not (where / "_delta_log").is_dir():
            yield Finding(Severity.ERROR, what, f"{where} is no Delta table, and not empty.", "Name another path.")
            return
        if not begun:
            yield Finding(
                Severity.WARNING, what, f"{where} has a table already, and the checkpoint is new.",
                "Rows of the snapshot are merged into it, or appended to it.",
            )  # fmt: skip
    free = shutil.disk_usage(_nearest(where)).free
    if size * _SPACE > free:
        yield Finding(
            Severity.WARNING, what, f"{free >> 20:,} MiB are free, and the tables have {size >> 20:,} MiB.",
            "Make room, or use another path.",
        )  # fmt: skip


def _nearest(path: Path) -> Path:
    """The path, or the nearest one above it that exists."""
    path = path.absolute()
    while not os.path.lexists(path):
        path = path.parent
    return path


def _try_to_write(where: Path) -> tuple[str, str] | None:
    """Make a directory and a file in it, and remove what was made. What failed and what to do; None if nothing did.

    Rights alone do not tell: a file system may be full or take no files, and root may do anything.
    """
    there = _nearest(where)
    if not there.is_dir():
        kind = "a link to nothing" if there.is_symlink() and not there.exists() else "a file"
        return f"{there} is {kind}, and no directory.", "Name another path, or remove it."
    probe, made = where.absolute() / f".backlog-spark-check-{uuid.uuid4().hex[:8]}", []
    try:
        for directory in (*reversed(probe.parents), probe):
            if not directory.exists():
                directory.mkdir()
                made.append(directory)
        (probe / "written").write_bytes(b"x" * _WRITTEN)
        (probe / "written").rename(probe / "renamed")  # as the files of a checkpoint are
    except OSError as error:
        return f"{where} cannot be written: {error.strerror or error}.", f"Change the rights of {there}, or the path."
    finally:
        for name in ("written", "renamed"):
            with contextlib.suppress(OSError):
                (probe / name).unlink()
        for directory in reversed(made):
            with contextlib.suppress(OSError):  # somebody has begun to use it
                directory.rmdir()
    return None


def _has_begun(checkpoint: Path | None) -> bool:
    try:
        return checkpoint is not None and any(name.name.isdigit() for name in (checkpoint / "offsets").iterdir())
    except OSError:
        return False
