"""A pipeline as its file declares it, and what must fit between its sections (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from backlog_spark.common.familiar_names import choice
from backlog_spark.common.intervals import INTERVAL_OPTIONS
from backlog_spark.common.table_patterns import table_pattern
from backlog_spark.errors import SettingError
from backlog_spark.pipelines.document import Document, Fault, Path, PipelineError
from backlog_spark.pipelines.sections import (
    DeltaSection,
    Lookup,
    PipelineSection,
    Route,
    SinkSection,
    Source,
    Transform,
)

if TYPE_CHECKING:
    from backlog_spark.streamsql.refusals import SqlError

__all__ = [
    "Declared",
    "DeclaredLookup",
    "DeclaredSource",
    "Output",
    "Pipeline",
    "item_path",
    "told",
]


_S = TypeVar("_S", Source, Lookup)


@dataclass(frozen=True)
class Declared(Generic[_S]):
    """A source or lookup with its options as texts.

    Parameters
    ----------
    section : Source or Lookup
    options : dict
        They may be secret.
    """

    section: _S
    options: dict[str, str] = field(repr=False)


DeclaredSource = Declared[Source]
DeclaredLookup = Declared[Lookup]


@dataclass(frozen=True)
class Output:
    """A sink, which gets a query's result or one of its side outputs.

    Parameters
    ----------
    section : SinkSection
    path : tuple
        Where it is in the file.
    query : SinkSection
        The query's first sink: `Pipeline.queries`.
    name : str
        Its name for people.
    side : str
        The side output's name; empty for the result.
    """

    section: SinkSection
    path: Path
    query: SinkSection
    name: str
    side: str = ""


@dataclass(frozen=True)
class Pipeline:
    """A file that is correct as far as it can be known without a server.

    Parameters
    ----------
    file : str
        The file's name, for errors.
    directory : str
        Where modules of its functions are looked for.
    """

    file: str
    directory: str
    sources: tuple[DeclaredSource, ...]
    transforms: tuple[Transform, ...]
    routes: tuple[Route, ...]
    sinks: tuple[SinkSection, ...]
    pipeline: PipelineSection
    document: Document = field(repr=False)
    lookups: tuple[DeclaredLookup, ...] = ()

    def error(self, path: Path, problem: str, hint: str = "") -> PipelineError:
        """The error for a mistake that is found later, at a key of the file."""
        redacted = self.document.redacted
        return PipelineError(self.file, [Fault(self.document.place(path), redacted(problem), redacted(hint))])

    def sql_error(self, path: Path, error: SqlError) -> PipelineError:
        """The error for a mistake in a transform's SQL."""
        return PipelineError(self.file, [self.document.sql_fault(path, error)])

    def input_of(self, sink: SinkSection) -> str:
        """The stream that a sink gets."""
        if sink.input is not None:
            return sink.input
        return self.transforms[-1].name if self.transforms else self.sources[0].section.name

    def queries(self) -> tuple[SinkSection, ...]:
        """The first sink of each query. Sinks with one checkpoint are targets of one query."""
        found: dict[str, SinkSection] = {}
        for sink in self.sinks:
            found.setdefault(self.checkpoint_of(sink), sink)
        return tuple(found.values())

    def outputs(self) -> Iterator[Output]:
        """All sinks in the file's order, each followed by those of its side outputs."""
        queries = {self.checkpoint_of(query): query for query in self.queries()}
        for index, sink in enumerate(self.sinks):
            path, query = self.at("sink", index), queries[self.checkpoint_of(sink)]
            yield Output(sink, path, query, sink.name)
            for side, section in sink.side_outputs.items():
                yield Output(section, (*path, "sideOutputs", side), query, f"{sink.name}.{side}", side)

    def checkpoint_of(self, sink: SinkSection) -> str:
        return sink.checkpoint or self.pipeline.checkpoint or ""

    def query_name(self, sink: SinkSection) -> str:
        return self.pipeline.name if len(self.queries()) == 1 else f"{self.pipeline.name}-{sink.name}"

    def at(self, section: str, index: int) -> Path:
        """The path of a section's item."""
        return item_path(self.document, section, index)

    def check(self) -> None:
        """Note as faults of the file what does not fit between sections that are right by themselves."""
        self._names()
        self._sinks()
        self._whole_databases()

    def _names(self) -> None:
        seen = dict[str, Path]()
        named = [("source", i, s.section.name) for i, s in enumerate(self.sources)]
        named += [("lookup", i, found.section.name) for i, found in enumerate(self.lookups)]
        named += [("transform", i, t.name) for i, t in enumerate(self.transforms)]
        for section, index, name in named:
            path = self.at(section, index)
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self.document.fault((*path, "name"), f"{name} is no name for SQL.", "Use letters, digits and _.")
            elif name.lower() in seen:
                line = self.document.place(seen[name.lower()]).line
                self.document.fault(
                    (*path, "name"), f"{name} is the name of another stream (line {line}).", "Give each a name."
                )
            seen[name.lower()] = path
        for index, transform in enumerate(self.transforms):
            if bool(transform.sql) == bool(transform.function):
                self.document.fault(self.at("transform", index), "A transform has either sql or function.")
            elif transform.arguments and transform.sql:
                self.document.fault((*self.at("transform", index), "arguments"), "arguments belong to a function.")
        for index, source in enumerate(self.sources):
            if own := [name for name in source.options if name.lower() in {o.lower() for o in INTERVAL_OPTIONS}]:
                self.document.fault(
                    (*self.at("source", index), own[0]), f"{own[0]}: one interval holds for the whole pipeline.",
                    "Write interval and intervalDuringBacklog under pipeline.",
                )  # fmt: skip

    def _sinks(self) -> None:
        streams = [*(s.section.name for s in self.sources), *(t.name for t in self.transforms)]
        several = len(self.sinks) > 1
        inputs: dict[str, str] = {}
        names: set[str] = set()
        for index, sink in enumerate(self.sinks):
            path = self.at("sink", index)
            if sink.input is not None and sink.input not in streams:
                self.document.fault(
                    (*path, "from"), f"There is no stream {sink.input}.", choice(sink.input, streams, "There are")
                )
            if sink.input is None and not self.transforms and len(self.sources) > 1:
                self.document.fault(
                    path, "A sink needs from: there are several sources.", f"There are {', '.join(streams)}."
                )
            for each in (sink, *sink.side_outputs.values()):
                if isinstance(each, DeltaSection) and not each.path and not each.table:
                    self.document.fault(path, "A Delta sink needs path, or table for a table of a catalog.")
            if several and sink.name in names:
                self.document.fault((*path, "name"), f"Two sinks have the name {sink.name}.", "Give each sink a name.")
            names.add(sink.name)
            where = self.checkpoint_of(sink)
            if not where and where not in inputs:
                self.document.fault(("pipeline",), "pipeline needs checkpoint.", "A restart continues from it.")
            if inputs.setdefault(where, self.input_of(sink)) != self.input_of(sink):
                self.document.fault(
                    path, f"Sinks of one checkpoint get one stream: {inputs[where]} or {self.input_of(sink)}.",
                    "Give this one a checkpoint of its own: it is then another query.",
                )  # fmt: skip

    def _whole_databases(self) -> None:
        sync = [index for index, sink in enumerate(self.sinks) if sink.SYNC]
        taking = [index for index, sink in enumerate(self.sinks) if sink.TAKES_TABLES]
        with_tables = [index for index, source in enumerate(self.sources) if source.section.tables is not None]
        if with_tables and not taking:
            path = (*self.at("source", with_tables[0]), "tables")
            self.document.fault(
                path,
                "tables needs a sink of type delta_tables, iceberg_tables or kafka.",
                "For one sink write table or tablePattern.",
            )
        if sync and not with_tables:
            kind = getattr(self.sinks[sync[0]], "type", "")
            self.document.fault(self.at("sink", sync[0]), f"A sink of type {kind} needs a source with tables.")
        whole = taking if with_tables else sync
        if whole and (len(self.sinks) > 1 or len(self.sources) > 1 or self.transforms):
            kind = getattr(self.sinks[whole[0]], "type", "")
            self.document.fault(
                self.at("sink", whole[0]), f"A sink of type {kind} takes the rows of one source as they are.",
                "Put other sources, transforms and sinks into a pipeline of their own.",
            )  # fmt: skip
        if self.routes and not taking:
            self.document.fault(
                self.at("route", 0),
                "route belongs to a sink of type delta_tables, iceberg_tables or kafka.",
                "Leave it out.",
            )
        for index, route in enumerate(self.routes):
            path = self.at("route", index)
            try:
                table_pattern([route.source_table])
            except SettingError as error:
                self.document.fault((*path, "source-table"), *told(error))
            if not route.sink_table.strip("/") or ".." in route.sink_table.split("/"):
                self.document.fault(
                    (*path, "sink-table"), "sink-table is a directory below the sink's path, or a topic."
                )


def item_path(document: Document, section: str, index: int) -> Path:
    """The path of a section's item. A section may also be one item without a list."""
    return (section, index) if isinstance(document.data.get(section), list) else (section,)


def told(error: SettingError) -> tuple[str, str]:
    """Problem and hint for a line that has the setting and its value. The list of all options is too long there."""
    problem = error.problem.removeprefix(f"{error.setting} = {error.value!r}: ")
    found = re.match(r"(Did you mean [^?]+\?) Options: ", error.hint)
    return f"{error.setting}: {problem}", found[1] if found else error.hint
