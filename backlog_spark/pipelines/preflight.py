"""Finds all that would fail when a pipeline starts or later: the file, packages, Java, servers, tables and targets."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from backlog_spark.common.hadoop_arguments import with_keys
from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.building import check_functions
from backlog_spark.pipelines.document import PipelineError
from backlog_spark.pipelines.findings import columns_of, failed, has_begun, of_fault, plain_secrets
from backlog_spark.pipelines.locations import local_path
from backlog_spark.pipelines.machine import java, packages
from backlog_spark.pipelines.model import DeclaredSource, Pipeline
from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.resuming import compared
from backlog_spark.pipelines.sql_names import Columns, unknown_names
from backlog_spark.pipelines.target_checks import (
    check_keys,
    check_places,
    check_targets,
    check_types,
    keys_of_sink,
)
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
        return Report((failed(file, error),))
    findings = [Finding(Severity.OK, file, "the file is a pipeline."), *packages(pipeline), *java()]
    tables: list[FoundTable] = []
    reached, columns = set(), dict[str, Columns]()
    for declared in pipeline.sources:
        found, told = _source(pipeline, declared.section.type, declared.section.name, declared.options)
        findings += told
        columns[declared.section.name] = columns_of(declared, found)
        if found is not None:
            tables += found.tables
            reached.add(declared.section.name)
            findings += check_keys(pipeline, found)
            findings += check_types(pipeline, declared, found)
            findings += check_places(pipeline, found)
            if not all(has_begun(local_path(pipeline.checkpoint_of(sink))) for sink in pipeline.sinks):
                findings += found.first
                findings += _first_start(declared, told)
    findings += _lookups(pipeline)
    findings += _transforms(pipeline, columns | dict.fromkeys(each.section.name for each in pipeline.lookups))
    for sink in pipeline.queries():
        where = local_path(pipeline.checkpoint_of(sink))
        if where is not None and has_begun(where):
            findings += compared(pipeline, sink, where, reached)
    findings += check_targets(pipeline, tables)
    return Report(tuple(_redacted(pipeline, finding) for finding in findings), tuple(tables))


def _redacted(pipeline: Pipeline, finding: Finding) -> Finding:
    hide = pipeline.document.redacted
    return Finding(finding.severity, hide(finding.subject), hide(finding.problem), hide(finding.hint))


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
                yield of_fault(pipeline, pipeline.sql_error(path, problem))
            made = {name.lower() for name in transform.columns} or made
        streams[transform.name] = made
    for broken in check_functions(pipeline):
        yield of_fault(pipeline, broken)
    for sink in pipeline.sinks:
        names = streams.get(pipeline.input_of(sink)) if pipeline.input_of(sink) not in columns else None
        lost = [key for key in keys_of_sink(sink) if names is not None and key.lower() not in names]
        if names is not None and lost:
            yield Finding(
                Severity.ERROR, f"sink {sink.name}", f"{pipeline.input_of(sink)} has no column {lost[0]} of keys.",
                f"Its columns are {', '.join(sorted(names))}.",
            )  # fmt: skip


def _lookups(pipeline: Pipeline) -> Iterator[Finding]:
    """Files of bounded tables on this machine. Spark reads the others when the query starts."""
    for declared in pipeline.lookups:
        path = declared.options.get("path", "")
        where = local_path(path)
        if where is not None and not any(char in path for char in "*?[{") and not where.exists():
            yield Finding(Severity.ERROR, f"lookup {declared.section.name}", f"there is no {where}.", "Correct path.")


def _source(
    pipeline: Pipeline, source_format: str, name: str, options: dict[str, str]
) -> tuple[Examination | None, list[Finding]]:
    index = next(i for i, declared in enumerate(pipeline.sources) if declared.section.name == name)
    path = pipeline.at("source", index)
    findings = list(plain_secrets(pipeline, f"source {name}", path, options, _secrets(source_format)))
    if source_format in KEEPS_METADATA:
        options = {"metadataLocation": "/", **options}  # the query sets it; nothing is written here
    settings = pipeline.pipeline.settings
    try:
        options = with_keys(source_format, options, lambda: lambda name: settings.get(f"spark.hadoop.{name}"))
        found = _of_kafka(options) if source_format == "kafka" else examine(source_format, options)
    except BacklogError as problem:
        return None, [*findings, failed(f"source {name}", problem)]
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
            yield failed(f"source {declared.section.name}", problem)


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
