"""Checks what must fit between sections that are right by themselves (pure)."""

from __future__ import annotations

import re

from backlog_spark.common.familiar_names import choice
from backlog_spark.common.intervals import INTERVAL_OPTIONS
from backlog_spark.common.table_patterns import table_pattern
from backlog_spark.errors import SettingError
from backlog_spark.pipelines.declared import Pipeline
from backlog_spark.pipelines.document import Path

__all__ = ["Together", "told"]


def told(error: SettingError) -> tuple[str, str]:
    """Problem and hint for a line that has the setting and its value. The list of all options is too long there."""
    problem = error.problem.removeprefix(f"{error.setting} = {error.value!r}: ")
    found = re.match(r"(Did you mean [^?]+\?) Options: ", error.hint)
    return f"{error.setting}: {problem}", found[1] if found else error.hint


class Together:
    """What must fit between sections that are right by themselves."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._fault = pipeline.document.fault

    def check(self) -> None:
        self._names()
        self._sinks()
        self._whole_databases()

    def _names(self) -> None:
        of, seen = self._pipeline, dict[str, Path]()
        named = [("source", i, s.section.name) for i, s in enumerate(of.sources)]
        named += [("transform", i, t.name) for i, t in enumerate(of.transforms)]
        for section, index, name in named:
            path = of.at(section, index)
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self._fault((*path, "name"), f"{name} is no name for SQL.", "Use letters, digits and _.")
            elif name.lower() in seen:
                line = of.document.place(seen[name.lower()]).line
                self._fault(
                    (*path, "name"), f"{name} is the name of another stream (line {line}).", "Give each a name."
                )
            seen[name.lower()] = path
        for index, transform in enumerate(of.transforms):
            if bool(transform.sql) == bool(transform.function):
                self._fault(of.at("transform", index), "A transform has either sql or function.")
            elif transform.arguments and transform.sql:
                self._fault((*of.at("transform", index), "arguments"), "arguments belong to a function.")
        for index, source in enumerate(of.sources):
            if own := [name for name in source.options if name.lower() in {o.lower() for o in INTERVAL_OPTIONS}]:
                self._fault(
                    (*of.at("source", index), own[0]), f"{own[0]}: one interval holds for the whole pipeline.",
                    "Write interval and intervalDuringBacklog under pipeline.",
                )  # fmt: skip

    def _sinks(self) -> None:
        of = self._pipeline
        streams = [*(s.section.name for s in of.sources), *(t.name for t in of.transforms)]
        several = len(of.sinks) > 1
        checkpoints: set[str] = set()
        names: set[str] = set()
        for index, sink in enumerate(of.sinks):
            path = of.at("sink", index)
            if sink.input is not None and sink.input not in streams:
                self._fault(
                    (*path, "from"), f"There is no stream {sink.input}.", choice(sink.input, streams, "There are")
                )
            if sink.input is None and not of.transforms and len(of.sources) > 1:
                self._fault(path, "A sink needs from: there are several sources.", f"There are {', '.join(streams)}.")
            if several and sink.name in names:
                self._fault((*path, "name"), f"Two sinks have the name {sink.name}.", "Give each sink a name.")
            names.add(sink.name)
            if several and not sink.checkpoint:
                self._fault(path, "Each of several sinks needs a checkpoint: it is a query of its own.")
            where = of.checkpoint_of(sink)
            if not where and not several:
                self._fault(("pipeline",), "pipeline needs checkpoint.", "A restart continues from it.")
            if where and where in checkpoints:
                self._fault((*path, "checkpoint"), "Two sinks have the same checkpoint.", "Give each one of its own.")
            checkpoints.add(where)

    def _whole_databases(self) -> None:
        of = self._pipeline
        sync = [index for index, sink in enumerate(of.sinks) if sink.SYNC]
        with_tables = [index for index, source in enumerate(of.sources) if source.section.tables is not None]
        if with_tables and not sync:
            path = (*of.at("source", with_tables[0]), "tables")
            self._fault(path, "tables needs a sink of type delta_tables.", "For one sink write table or tablePattern.")
        if sync and not with_tables:
            self._fault(of.at("sink", sync[0]), "A sink of type delta_tables needs a source with tables.")
        if sync and (len(of.sinks) > 1 or len(of.sources) > 1 or of.transforms):
            self._fault(
                of.at("sink", sync[0]), "A sink of type delta_tables takes the rows of one source as they are.",
                "Put other sources, transforms and sinks into a pipeline of their own.",
            )  # fmt: skip
        if of.routes and not sync:
            self._fault(of.at("route", 0), "route belongs to a sink of type delta_tables.", "Leave it out.")
        for index, route in enumerate(of.routes):
            path = of.at("route", index)
            try:
                table_pattern([route.source_table])
            except SettingError as error:
                self._fault((*path, "source-table"), *told(error))
            if not route.sink_table.strip("/") or ".." in route.sink_table.split("/"):
                self._fault((*path, "sink-table"), "sink-table is a directory below the sink's path.")
