"""Checks the targets of a pipeline: keys, types and places of tables, directories, servers and topics."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.building import sink_of
from backlog_spark.pipelines.document import PipelineError
from backlog_spark.pipelines.findings import columns_of, failed, has_begun, of_fault, plain_secrets
from backlog_spark.pipelines.locations import local_path
from backlog_spark.pipelines.model import DeclaredSource, Output, Pipeline
from backlog_spark.pipelines.sections import (
    DeltaTablesSink,
    DeltaUpsertSink,
    FilesSinkSection,
    IcebergSection,
    IcebergTablesSink,
    JdbcUpsertSink,
    SinkSection,
    TopicSink,
)
from backlog_spark.sinks.database.sink import JdbcUpsert
from backlog_spark.sinks.iceberg.append import IcebergAppend
from backlog_spark.sinks.iceberg.many_tables import IcebergTables
from backlog_spark.sinks.iceberg.table_names import TableNames, refuse_same
from backlog_spark.sinks.iceberg.upsert import IcebergUpsert
from backlog_spark.sinks.kafka.sink import KafkaSink
from backlog_spark.sinks.table_routes import TablePlace, TableRoutes, overlaps
from backlog_spark.spi.examination import Examination, Finding, FoundTable, Severity
from backlog_spark.spi.kafka_security import SECRET_NAMES

__all__ = ["check_keys", "check_places", "check_targets", "check_types", "keys_of_sink"]

# What Delta needs for a table, compared with the server's size of it. Parquet is mostly smaller.
_SPACE: Final = 1
# Of pyiceberg's properties of catalogs.
_SECRET_PROPERTIES: Final = r".*(token|credential|password|secret).*"
# More than an inode holds: a full disk takes the name of a file and not its content.
_WRITTEN: Final = 64 << 10


def check_targets(pipeline: Pipeline, tables: list[FoundTable]) -> Iterator[Finding]:
    """Directories of targets and checkpoints. Those on this machine are written to; those elsewhere need Spark."""
    size = sum(table.size or 0 for table in tables)
    for output in pipeline.outputs():
        sink = output.section
        if isinstance(sink, JdbcUpsertSink):
            yield from _database(pipeline, output)
        if isinstance(sink, IcebergSection | IcebergTablesSink):
            yield from _catalog(pipeline, output, sink)
        if isinstance(sink, TopicSink):
            yield from _topics(pipeline, output, sink)
        path, checkpoint = str(getattr(sink, "path", "") or ""), pipeline.checkpoint_of(output.query)
        for what, location in ((f"sink {output.name}", path), ("checkpoint", "" if output.side else checkpoint)):
            where = local_path(location)
            if where is None:
                if location:
                    told = f"{location} is not on this machine: the query finds out whether it can be written."
                    yield Finding(Severity.NOTE, what, told)
                continue
            is_other = sink.SYNC or isinstance(sink, FilesSinkSection)
            is_sink, begun = what.startswith("sink"), has_begun(local_path(checkpoint))
            try:
                yield from _directory(what, where, is_table=is_sink and not is_other, begun=begun, size=size * is_sink)
            except OSError as error:
                told = f"{where} cannot be used: {error.strerror}."
                yield Finding(Severity.ERROR, what, told, "Change its rights, or the path.")
        if not output.side and has_begun(local_path(checkpoint)):
            yield Finding(Severity.NOTE, "checkpoint", f"{checkpoint} exists: the query continues from it.")


def check_places(pipeline: Pipeline, found: Examination) -> Iterator[Finding]:
    """Tables whose targets would lie in each other, or be one. ``run`` finds out with their first rows."""
    given = [(route.source_table, route.sink_table) for route in pipeline.routes]
    for sink in pipeline.sinks:
        what = f"sink {sink.name}"
        if isinstance(sink, DeltaTablesSink):
            routes = TableRoutes(sink.path, given)
            places = [TablePlace(each.name, routes.path_of(*TableName.parse(each.name))) for each in found.tables]
            yield from (failed(what, problem) for problem in overlaps(places))
        elif isinstance(sink, IcebergTablesSink):
            try:
                names = TableNames(given)
                places = [TablePlace(each.name, names.path_of(*TableName.parse(each.name))) for each in found.tables]
                yield from (failed(what, problem) for problem in overlaps(places, refuse_same))
            except BacklogError as problem:
                yield failed(what, problem)


def check_keys(pipeline: Pipeline, found: Examination) -> Iterator[Finding]:
    """Sinks that get a source's rows as they are upsert by the tables' keys."""
    names = {declared.section.name for declared in pipeline.sources}
    for sink in pipeline.sinks:
        if sink.SYNC:
            for table in found.tables:
                if not table.key:
                    yield Finding(
                        Severity.ERROR, table.name, f"it has no primary key: {sink.MAKES} cannot tell its rows apart.",
                        "Name a unique key with messageKeyColumns, or leave the table out with tables.exclude.",
                    )  # fmt: skip
        elif keys_of_sink(sink) and pipeline.input_of(sink) in names:
            for table in found.tables:
                keys = [key for key in keys_of_sink(sink) if key not in ("_database", "_table")]
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
                        "Rows with the same keys replace each other."
                        + " Backlog is merged, not appended." * isinstance(sink, DeltaUpsertSink),
                    )  # fmt: skip


def keys_of_sink(sink: SinkSection) -> list[str]:
    return list(getattr(sink, "keys", None) or getattr(sink, "key", None) or [])


def check_types(pipeline: Pipeline, declared: DeclaredSource, found: Examination) -> Iterator[Finding]:
    """Local Delta tables that get a source's rows as they are, and have a column with another type."""
    for sink in pipeline.sinks:
        where = local_path(str(getattr(sink, "path", "") or ""))
        is_direct = pipeline.input_of(sink) == declared.section.name and columns_of(declared, found) is not None
        begun = has_begun(local_path(pipeline.checkpoint_of(sink)))
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


def _database(pipeline: Pipeline, output: Output) -> Iterator[Finding]:
    """Reach a sink's server, and find out whether its user may write."""
    subject, section = f"sink {output.name}", output.section
    assert isinstance(section, JdbcUpsertSink)
    yield from plain_secrets(pipeline, subject, output.path, {"password": section.password}, "password")
    try:
        sink = sink_of(pipeline, output)
    except PipelineError as error:
        yield of_fault(pipeline, error)
        return
    assert isinstance(sink, JdbcUpsert)
    yield from (replace(found, subject=subject) for found in sink.examine())


def _catalog(pipeline: Pipeline, output: Output, section: IcebergSection | IcebergTablesSink) -> Iterator[Finding]:
    """Reach an Iceberg catalog. Without the package, the finding about packages says so."""
    if importlib.util.find_spec("pyiceberg") is None:
        return
    subject = f"sink {output.name}"
    yield from plain_secrets(pipeline, subject, (*output.path, "catalog"), section.catalog, _SECRET_PROPERTIES)
    try:
        made = sink_of(pipeline, output)
        assert isinstance(made, IcebergAppend | IcebergUpsert | IcebergTables)
        yield from (replace(found, subject=subject) for found in made.examine())
    except BacklogError as problem:
        yield failed(subject, problem)


def _topics(pipeline: Pipeline, output: Output, section: TopicSink) -> Iterator[Finding]:
    """Topics of Kafka. Without the package, the finding about packages says so."""
    if importlib.util.find_spec("confluent_kafka") is None:
        return
    subject = f"sink {output.name}"
    secrets = (
        "|".join(re.escape(f"kafka.{name}") for name in SECRET_NAMES)
        + r"|schema\.registry\.(basic\.auth\.user\.info|ssl\.key\.password)"
    )
    yield from plain_secrets(pipeline, subject, (*output.path, "options"), section.options, secrets)
    try:
        made = sink_of(pipeline, output)
        assert isinstance(made, KafkaSink)
        yield from (replace(found, subject=subject) for found in made.examined())
    except BacklogError as problem:
        yield failed(subject, problem)


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
