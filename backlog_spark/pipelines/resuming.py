"""Compares a pipeline with a checkpoint of its query, without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from backlog_spark.common.stored_values import reading_stored
from backlog_spark.decide.query_record import QueryRecord, SourceRecord, check_layout_version, same_place
from backlog_spark.errors import BacklogError
from backlog_spark.model.nodes import SourceSpec
from backlog_spark.model.plan_checks import what_it_reads
from backlog_spark.pipelines.building import sink_of
from backlog_spark.pipelines.locations import local_path
from backlog_spark.pipelines.model import DeclaredSource, Pipeline
from backlog_spark.pipelines.sections import FunctionSink, PythonSink, SinkSection
from backlog_spark.sinks.outputs import by_name
from backlog_spark.spark.checkpoint.offset_entries import offset_lines
from backlog_spark.spi.examination import Finding, Severity
from backlog_spark.spi.offset_flags import parse_offset
from backlog_spark.spi.registry import check_log, check_resume, compares_offsets

__all__ = ["compared"]

# Written by `backlog_spark.spark.checkpoint.source_layout`.
_LAYOUT: Final = re.compile(r"sources-(\d+)\.json")


def compared(pipeline: Pipeline, sink: SinkSection, checkpoint: Path, reached: Collection[str]) -> Iterator[Finding]:
    """What would keep a sink's query from continuing on its checkpoint.

    Parameters
    ----------
    checkpoint : Path
        A checkpoint with batches.
    reached : collection of str
        Names of the sources whose servers can be asked.
    """
    layouts = {
        int(found[1]): path for path in checkpoint.glob("backlog/*.json") if (found := _LAYOUT.fullmatch(path.name))
    }
    try:
        with reading_stored("backlog/sources-<n>.json of the checkpoint"):
            layout: dict[str, Any] = dict(json.loads(layouts[max(layouts)].read_text())) if layouts else {}
        if layout:
            check_layout_version(layout)
        if "query" in layout:
            yield from _by_record(pipeline, sink, QueryRecord.from_json(layout["query"]))
        with reading_stored(f"The newest entry of {checkpoint}/offsets, or its sources,"):
            offsets = [*_offsets(checkpoint, layout)]
        for name, offset in offsets:
            declared = _declared(pipeline, name, len(layout["names"]))
            if declared is not None and offset is not None and declared.section.name in reached:
                check_resume(declared.section.type, declared.options, offset)
                check_log(declared.section.type, declared.options, offset)
    except BacklogError as problem:
        yield Finding(Severity.ERROR, f"sink {sink.name}", f"{checkpoint}: {problem.problem}", problem.hint)


def _by_record(pipeline: Pipeline, sink: SinkSection, before: QueryRecord) -> Iterator[Finding]:
    """Operators are left out: without Spark the streams are not known."""
    sources = []
    for kept in before.sources:
        found = _declared(pipeline, kept.name, len(before.sources))
        if found is None:
            sources.append(kept)
            continue
        section = found.section
        reads = what_it_reads(SourceSpec(section.type, section.name, found.options))
        sources.append(SourceRecord(section.name, section.type, {} if compares_offsets(section.type) else reads))
    given = by_name((each.side, each) for each in pipeline.outputs() if each.query is sink)
    sinks = {
        name: sink_of(pipeline, output).described()
        for name, output in given.items()
        if not isinstance(output.section, PythonSink | FunctionSink)
    }
    before.check(QueryRecord(tuple(sources), sinks, before.operators), lambda output: True)
    for name, now in sinks.items():
        key = "path" if "path" in now else "place"
        was = before.sinks.get(name, {}).get(key)
        if was is not None and not same_place(was, now[key]):
            there = local_path(str(now[key])) if key == "path" else None
            is_new = there is not None and not (there.is_dir() and any(there.iterdir()))
            yield Finding(
                Severity.ERROR if is_new else Severity.WARNING, f"sink {sink.name}",
                f"{key} = {now[key]!r}: the checkpoint was made with {was!r}. The query only starts if the target "
                "was moved there with its rows.",
                "Set it as it was, or use a new checkpoint.",
            )  # fmt: skip


def _declared(pipeline: Pipeline, name: str, count: int) -> DeclaredSource | None:
    """The pipeline's source that a source of the checkpoint is now; None if only Spark's plan tells."""
    if count == len(pipeline.sources) == 1:
        return pipeline.sources[0]
    return next((each for each in pipeline.sources if each.section.name == name), None)


def _offsets(checkpoint: Path, layout: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Name and newest offset of each source."""
    newest = max((int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdecimal()), default=None)
    if newest is None or not layout:
        return
    entry = checkpoint / "offsets" / str(newest)
    lines = offset_lines(entry.read_text(), entry)
    for name, position in zip(layout["names"], layout["positions"], strict=True):
        yield name, parse_offset(lines.get(str(position)))
