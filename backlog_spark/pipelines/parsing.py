"""Parses a pipeline's file and checks all that can be checked without a server (pure)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import choice, nearest
from backlog_spark.common.intervals import INTERVAL_OPTIONS
from backlog_spark.common.settings import PREFIX, parse_settings
from backlog_spark.common.table_patterns import table_pattern
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.pipelines.document import Document, Fault, Path, PipelineError, Place
from backlog_spark.pipelines.model import (
    SINKS,
    PipelineSection,
    Route,
    SinkSection,
    Source,
    Transform,
    Watermark,
    keys_of,
)
from backlog_spark.spi.registry import CONNECTORS, KEEPS_METADATA, check_options, discover

__all__ = ["FORMATS", "DeclaredSource", "Pipeline", "load", "parse"]

_SECTIONS: Final = ("source", "transform", "route", "sink", "pipeline")
_TEXTS: Final = ("properties", "settings", "storageOptions")
FORMATS: Final = ("avro", "csv", "delta", "json", "kafka", "orc", "parquet", "rate", "text", "xml")
"""Spark's own streaming sources. Their options are not checked."""

_Section = TypeVar("_Section", bound=BaseModel)


@dataclass(frozen=True)
class DeclaredSource:
    """A source with its options as texts.

    Parameters
    ----------
    section : Source
    options : dict
        They may be secret.
    """

    section: Source
    options: dict[str, str] = field(repr=False)


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

    def error(self, path: Path, problem: str, hint: str = "") -> PipelineError:
        """The error for a mistake that is found later, at a key of the file."""
        redacted = self.document.redacted
        return PipelineError(self.file, [Fault(self.document.place(path), redacted(problem), redacted(hint))])

    def input_of(self, sink: SinkSection) -> str:
        """The stream that a sink gets."""
        if sink.input is not None:
            return sink.input
        return self.transforms[-1].name if self.transforms else self.sources[0].section.name

    def checkpoint_of(self, sink: SinkSection) -> str:
        return sink.checkpoint or self.pipeline.checkpoint or ""

    def query_name(self, sink: SinkSection) -> str:
        return self.pipeline.name if len(self.sinks) == 1 else f"{self.pipeline.name}-{sink.name}"

    def at(self, section: str, index: int) -> Path:
        """The path of a section's item."""
        return _at(self.document, section, index)


def load(file: str, environment: Mapping[str, str] | None = None) -> Pipeline:
    """Read and check a file.

    Raises
    ------
    BacklogError
        There is no such file.
    PipelineError
        Everything that is wrong in it, each with line and column.
    """
    try:
        text = FilePath(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BacklogError(
            f"{file} cannot be read: {told}.", "Name a pipeline's file; backlog-spark init writes one."
        ) from None
    return parse(text, file, os.environ if environment is None else environment)


def parse(text: str, file: str = "pipeline.yaml", environment: Mapping[str, str] | None = None) -> Pipeline:
    """Check a file's text. See `load`."""
    document = Document.read(text, file, environment or {})
    made = _Parser(document, file).pipeline()
    if made is None or document.faults:
        raise PipelineError(file, document.faults or [Fault(Place(1, 1), "This is no pipeline.")])
    return made


def _at(document: Document, section: str, index: int) -> Path:
    return (section, index) if isinstance(document.data.get(section), list) else (section,)


class _Parser:
    def __init__(self, document: Document, file: str) -> None:
        self._document = document
        self._file = file

    def pipeline(self) -> Pipeline | None:
        document = self._document
        if not isinstance(document.data, dict):
            document.fault((), "A pipeline is a mapping.", f"Its keys: {', '.join(_SECTIONS)}.")
            return None
        for key in document.data:
            if key not in _SECTIONS:
                document.fault((key,), f"{key}: there is no such key.", choice(key, _SECTIONS, "There are"))
        for key in ("source", "sink", "pipeline"):
            if document.data.get(key) in (None, [], {}):
                document.fault((key,), f"A pipeline needs {key}.")
        discover()
        sources = [self._source(item, path) for item, path in self._items("source")]
        transforms = [self._section(Transform, item, path) for item, path in self._items("transform")]
        routes = [self._section(Route, item, path) for item, path in self._items("route")]
        sinks = [self._sink(item, path) for item, path in self._items("sink")]
        found = document.data.get("pipeline")
        settings = self._section(PipelineSection, found, ("pipeline",)) if found else None
        if settings is not None:
            self._check_settings(settings)
        if settings is None or document.faults:
            return None
        directory = str(FilePath(self._file).resolve().parent)
        made = Pipeline(
            self._file,
            directory,
            tuple(s for s in sources if s is not None),
            tuple(t for t in transforms if t is not None),
            tuple(r for r in routes if r is not None),
            tuple(s for s in sinks if s is not None),
            settings,
            document,
        )
        _Together(made).check()
        return made

    def _items(self, section: str) -> list[tuple[Any, Path]]:
        found = self._document.data.get(section)
        if found is None:
            return []
        if isinstance(found, list):
            return [(item, (section, index)) for index, item in enumerate(found)]
        return [(found, (section,))]

    def _section(self, kind: type[_Section], item: Any, path: Path) -> _Section | None:
        """One section; None if it has mistakes."""
        document, before = self._document, len(self._document.faults)
        if not isinstance(item, dict):
            document.fault(path, f"{path[0]} is a mapping.", f"Its keys: {', '.join(keys_of(kind))}.")
            return None
        item = {key: self._texts(key, value, (*path, key)) for key, value in item.items()}
        try:
            return kind.model_validate(item)
        except ValidationError as error:
            for each in error.errors(include_url=False, include_input=False, include_context=False):
                self._refuse(kind, (*path, *each["loc"]), each["type"], each["msg"], len(path))
        assert len(document.faults) > before
        return None

    def _texts(self, key: str, value: Any, path: Path) -> Any:
        """Mappings of texts keep each value as it is written, such as ``true``."""
        if key not in _TEXTS or not isinstance(value, dict):
            return value
        return {name: self._document.texts.get((*path, name), each) for name, each in value.items()}

    def _refuse(self, kind: type[BaseModel], path: Path, type_: str, message: str, depth: int) -> None:
        name = path[-1]
        if len(path) == depth + 2 and path[-2] == "watermark":
            kind = Watermark
        if type_ == "extra_forbidden":
            hint = choice(str(name), keys_of(kind), "There are")
            self._document.fault(path, f"{name}: {path[0]} has no such key.", hint)
        elif type_ == "missing":
            self._document.fault(
                path, f"{path[0]} needs {name}.", kind.model_fields[_field(kind, str(name))].description or ""
            )
        else:
            self._document.fault(path, f"{name}: {message[0].lower()}{message[1:]}.")

    # -- sources --------------------------------------------------------------------------------------------

    def _source(self, item: Any, path: Path) -> DeclaredSource | None:
        section = self._section(Source, item, path)
        if section is None:
            return None
        self._check_watermark(section.watermark, path)
        options = {}
        given_keys = [key for key in item if key not in keys_of(Source)]
        for key in given_keys:
            text = self._option((*path, key))
            if text is not None:
                options[key] = text
        given = dict(options)
        if section.tables is not None:
            given.update(self._of_tables(section, given_keys, path))
        if section.type in CONNECTORS:
            self._check_options(section.type, given, path)
        elif section.type not in FORMATS:
            self._document.fault(
                (*path, "type"), f"{section.type}: there is no such source.",
                choice(section.type, [*CONNECTORS, *FORMATS], "There are"),
            )  # fmt: skip
        return DeclaredSource(section, given)

    def _of_tables(self, section: Source, keys: Sequence[str], path: Path) -> dict[str, str]:
        """The options of a source that copies whole databases."""
        names = [section.tables] if isinstance(section.tables, str) else section.tables or []
        if section.type != "mysql_cdc":
            self._document.fault((*path, "tables"), "tables: only a source of type mysql_cdc has it.")
        for key in ("table", "tablePattern", "format", "metadataColumns"):
            if key in keys:
                self._document.fault((*path, key), f"{key}: tables sets it.", f"Leave out {key}.")
        try:
            pattern = table_pattern(names)
        except SettingError as error:
            self._document.fault((*path, "tables"), *_told(error))
            pattern = ".*"
        return {
            "tablePattern": pattern,
            "format": "debezium",
            "metadataColumns": "_change_type,_commit_timestamp,_commit_seq,_database,_table,_columns",
            **({} if "scannewlyaddedtables" in map(str.lower, keys) else {"scanNewlyAddedTables": "true"}),
        }

    def _option(self, path: Path) -> str | None:
        """An option's text. A list is joined by commas; null leaves the option out."""
        document, value = self._document, self._document.data_at(path)
        if isinstance(value, list):
            return ",".join(document.texts.get((*path, index), "") for index in range(len(value)))
        if isinstance(value, dict):
            document.fault(path, f"{path[-1]}: an option is a text, a number or a list of them.")
            return None
        return None if value is None else document.texts[path]

    def _check_options(self, source_format: str, given: Mapping[str, str], path: Path) -> None:
        """Check options against the connector's own table. An option with a mistake is left out to find the next."""
        left, seen = dict(given), set[str]()
        if source_format in KEEPS_METADATA:
            left.setdefault("metadataLocation", "/")  # the query sets it
        while True:
            try:
                check_options(source_format, left)
                return
            except SettingError as error:
                name = next((each for each in left if each.lower() == error.setting.lower()), None)
                if error.setting.lower() in seen:
                    return  # it is missing only because it was left out
                seen.add(error.setting.lower())
                written = name is not None and name in self._document.data_at(path)
                at = (*path, name) if name is not None and written else path
                place = self._document.place(at)
                if name is None and len(seen) > 1:
                    return  # likely needed only because another one was left out
                if name is None or all(fault.place != place for fault in self._document.faults):
                    self._document.fault(at, *_told(error))
                if name is None:
                    return
                del left[name]
            except BacklogError as error:
                self._document.fault(path, error.problem, error.hint)
                return

    # -- the rest -------------------------------------------------------------------------------------------

    def _sink(self, item: Any, path: Path) -> SinkSection | None:
        kind = item.get("type") if isinstance(item, dict) else None
        if not isinstance(item, dict) or kind is None:
            self._document.fault(path, "A sink needs type.", f"There are {', '.join(SINKS)}.")
            return None
        if kind not in SINKS:
            hint = choice(str(kind), SINKS, "There are")
            self._document.fault((*path, "type"), f"{kind}: there is no such sink.", hint)
            return None
        return self._section(SINKS[kind], item, path)

    def _check_watermark(self, watermark: Watermark | None, path: Path) -> None:
        if watermark is None:
            return
        for key, text in (("delay", watermark.delay), ("idleTimeout", watermark.idle_timeout)):
            if text is not None:
                self._duration(key, text, (*path, "watermark", key))

    def _duration(self, key: str, text: str, path: Path) -> int | None:
        try:
            return parse_duration(text, key)
        except SettingError as error:
            self._document.fault(path, *_told(error))
            return None

    def _check_settings(self, found: PipelineSection) -> None:
        path: Path = ("pipeline",)
        texts = {"interval": found.interval, "intervalDuringBacklog": found.interval_during_backlog}
        ms = {key: self._duration(key, text, (*path, key)) for key, text in texts.items() if text is not None}
        normal, during = ms.get("interval") or 0, ms.get("intervalDuringBacklog") or 0
        if 0 < during < normal:
            self._document.fault(
                (*path, "intervalDuringBacklog"), "intervalDuringBacklog: is less than interval.",
                "Set 0, or at least the interval.",
            )  # fmt: skip
        for name, text in found.settings.items():
            at = (*path, "settings", name)
            if not name.startswith("spark."):
                near = nearest(name, keys_of(PipelineSection))
                hint = (
                    f"Did you mean {near} of pipeline?" if near else "The names of Spark's settings begin with spark."
                )
                self._document.fault(at, f"{name}: there is no such setting.", hint)
            elif name.startswith(PREFIX):
                try:
                    parse_settings({name: text})
                except SettingError as error:
                    self._document.fault(at, *_told(error))


def _told(error: SettingError) -> tuple[str, str]:
    """Problem and hint for a line that has the setting and its value. The list of all options is too long there."""
    problem = error.problem.removeprefix(f"{error.setting} = {error.value!r}: ")
    found = re.match(r"(Did you mean [^?]+\?) Options: ", error.hint)
    return f"{error.setting}: {problem}", found[1] if found else error.hint


def _field(kind: type[BaseModel], alias: str) -> str:
    return next((name for name, found in kind.model_fields.items() if (found.alias or name) == alias), alias)


class _Together:
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
                self._fault((*path, "source-table"), *_told(error))
            if not route.sink_table.strip("/") or ".." in route.sink_table.split("/"):
                self._fault((*path, "sink-table"), "sink-table is a directory below the sink's path.")
