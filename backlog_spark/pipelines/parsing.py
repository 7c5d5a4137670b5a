"""Parses a pipeline's file and checks all that can be checked without a server (pure)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import choice, nearest
from backlog_spark.common.settings import is_read, parse_settings
from backlog_spark.common.table_patterns import table_pattern
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.pipelines.document import Document, Fault, Path, PipelineError, Place
from backlog_spark.pipelines.model import DeclaredLookup, DeclaredSource, Pipeline, told
from backlog_spark.pipelines.script.reading import script_document
from backlog_spark.pipelines.sections import (
    SINKS,
    Lookup,
    PipelineSection,
    Route,
    SinkSection,
    Source,
    Transform,
    Watermark,
    keys_of,
)
from backlog_spark.spi.registry import CONNECTORS, KEEPS_METADATA, check_options, discover

__all__ = ["FORMATS", "SCRIPT", "load", "parse", "parse_script"]

_SECTIONS: Final = ("source", "lookup", "transform", "route", "sink", "pipeline")
_ARGUMENTS: Final = "arguments"
# YAML is read at about 1 MB in ten seconds. A pipeline has a few KB.
_MOST_BYTES: Final = 1_000_000
SCRIPT: Final = ".sql"
"""How the name of a script ends."""
FORMATS: Final = ("avro", "csv", "delta", "json", "kafka", "orc", "parquet", "rate", "text", "xml")
"""Spark's own streaming sources. Their options are not checked."""

_Section = TypeVar("_Section", bound=BaseModel)


def load(file: str, environment: Mapping[str, str] | None = None, *, checkpoint: str | None = None) -> Pipeline:
    """Read and check a file: YAML, or a Flink SQL script if its name ends with ``.sql``.

    Parameters
    ----------
    checkpoint : str, optional
        Of a script: the directory for its queries' checkpoints, instead of the script's own setting.

    Raises
    ------
    BacklogError
        There is no such file, or it is far too large.
    PipelineError
        Everything that is wrong in it, each with line and column.
    """
    try:
        with FilePath(file).open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BacklogError(f"{file} has more than {_MOST_BYTES:,} bytes.", "Name a pipeline's file.")
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BacklogError(
            f"{file} cannot be read: {told}.", "Name a pipeline's file; backlog-spark init writes one."
        ) from None
    environment = os.environ if environment is None else environment
    if file.lower().endswith(SCRIPT):
        return parse_script(text, file, environment, checkpoint=checkpoint)
    return parse(text, file, environment)


def parse(text: str, file: str = "pipeline.yaml", environment: Mapping[str, str] | None = None) -> Pipeline:
    """Check a file's text. See `load`."""
    return _made(Document.read(text, file, environment or {}), file)


def parse_script(
    text: str, file: str = "script.sql", environment: Mapping[str, str] | None = None, *, checkpoint: str | None = None
) -> Pipeline:
    """Check a Flink SQL script (docs/scripts.md). See `load`."""
    document = script_document(text, environment or {}, FilePath(file).stem, checkpoint)
    if document.faults:
        raise PipelineError(file, document.faults)
    return _made(document, file)


def _made(document: Document, file: str) -> Pipeline:
    made = _Parser(document, file).pipeline()
    if made is None or document.faults:
        raise PipelineError(file, document.faults or [Fault(Place(1, 1), "This is no pipeline.")])
    return made


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
        lookups = [self._lookup(item, path) for item, path in self._items("lookup")]
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
            tuple(each for each in lookups if each is not None),
        )
        made.check()
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
        item = {key: value if key == _ARGUMENTS else self._written(value, (*path, key)) for key, value in item.items()}
        try:
            return kind.model_validate(item)
        except ValidationError as error:
            for each in error.errors(include_url=False, include_input=False, include_context=False):
                self._refuse(kind, (*path, *each["loc"]), each["type"], each["msg"], len(path))
        assert len(document.faults) > before
        return None

    def _written(self, value: Any, path: Path) -> Any:
        """A value with its scalars as they are written: YAML takes 007, 1_0 and 1:30 for other numbers."""
        if isinstance(value, dict):
            return {key: self._written(each, (*path, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [self._written(each, (*path, index)) for index, each in enumerate(value)]
        return value if value is None else self._document.texts.get(path, value)  # a section is one already

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
        given = self._options(Source, item, path)
        if section.tables is not None:
            given.update(self._of_tables(section, [key for key in item if key not in keys_of(Source)], path))
        if section.type in CONNECTORS:
            self._check_options(section.type, given, path)
        elif section.type not in FORMATS:
            self._document.fault(
                (*path, "type"), f"{section.type}: there is no such source.",
                choice(section.type, [*CONNECTORS, *FORMATS], "There are"),
            )  # fmt: skip
        return DeclaredSource(section, given)

    def _lookup(self, item: Any, path: Path) -> DeclaredLookup | None:
        section = self._section(Lookup, item, path)
        if section is None:
            return None
        if section.refresh is not None and self._duration("refresh", section.refresh, (*path, "refresh")) == 0:
            self._document.fault((*path, "refresh"), "refresh: is no time.", "Write, for example, 10 minutes.")
        return DeclaredLookup(section, self._options(Lookup, item, path))

    def _options(self, kind: type[BaseModel], item: Mapping[str, Any], path: Path) -> dict[str, str]:
        """The keys of a section that are not its own."""
        found = {key: self._option((*path, key)) for key in item if key not in keys_of(kind)}
        return {key: text for key, text in found.items() if text is not None}

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
            self._document.fault((*path, "tables"), *told(error))
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
                    self._document.fault(at, *told(error))
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
        sides = item.get("sideOutputs")
        if isinstance(sides, dict):
            made = {name: self._side(each, (*path, "sideOutputs", name)) for name, each in sides.items()}
            item = {**item, "sideOutputs": {name: side for name, side in made.items() if side is not None}}
        return self._section(SINKS[kind], item, path)

    def _side(self, item: Any, path: Path) -> SinkSection | None:
        """A side output's sink. Its query is that of the sink above it."""
        for key in set(item) & {"name", "from", "checkpoint", "sideOutputs"} if isinstance(item, dict) else ():
            self._document.fault((*path, key), f"{key}: a side output's sink has no such key.", "Leave it out.")
        found = self._sink(item, path)
        if found is not None and found.SYNC:
            self._document.fault((*path, "type"), f"{item['type']} cannot be the sink of a side output.")
        return found

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
            self._document.fault(path, *told(error))
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
            if is_read(name):
                try:
                    parse_settings({name: text})
                except SettingError as error:
                    self._document.fault(at, *told(error))
            elif not name.startswith("spark."):
                near = nearest(name, keys_of(PipelineSection))
                hint = (
                    f"Did you mean {near} of pipeline?" if near else "The names of Spark's settings begin with spark."
                )
                self._document.fault(at, f"{name}: there is no such setting.", hint)


def _field(kind: type[BaseModel], alias: str) -> str:
    return next((name for name, found in kind.model_fields.items() if (found.alias or name) == alias), alias)
