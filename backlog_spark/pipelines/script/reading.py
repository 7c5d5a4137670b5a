"""Reads a Flink SQL script as the document of a pipeline, as if it stood in a YAML file (pure).

Each table that a query reads becomes a source, with a transform in front for casts and computed columns. Each view
becomes a transform, each INSERT a transform and a sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from backlog_spark.common.flink_settings import FLINK_DURING_BACKLOG, FLINK_INTERVAL
from backlog_spark.common.requirements import required
from backlog_spark.common.sql_names import quoted
from backlog_spark.pipelines.document import Document, Path, Place
from backlog_spark.pipelines.script.connectors import LOOKUP_RELOAD, Given
from backlog_spark.pipelines.script.datagen import generated
from backlog_spark.pipelines.script.places import Places
from backlog_spark.pipelines.script.statements import Insert, Script, Table, View
from backlog_spark.pipelines.script.tokens import Refused, Token

__all__ = ["script_document"]

# Metadata columns that a stream of changes needs.
_OF_CHANGES: Final = ("_change_type", "_commit_timestamp", "_commit_seq")
_CHECKPOINT: Final = ("execution.checkpointing.dir", "state.checkpoints.dir")
_IDLE: Final = "table.exec.source.idle-timeout"
_OF_PIPELINE: Final = {
    FLINK_INTERVAL: "interval",
    FLINK_DURING_BACKLOG: "intervalDuringBacklog",
    "pipeline.name": "name",
}
_OF_SPARK: Final = {"table.local-time-zone": "spark.sql.session.timeZone"}
# Settings of Flink's client alone.
_OF_CLIENT: Final = "sql-client."
# What becomes of changes on the way to a sink.
_CHANGES: Final = {"delta_append": "refuse", "files": "refuse", "delta_upsert": "upsert", "jdbc_upsert": "upsert"}

_Item = tuple[str, tuple[Place, ...]]
"""An item of a SELECT, and where each of its lines begins."""


def script_document(text: str, environment: Mapping[str, str], name: str, checkpoint: str | None) -> Document:
    """Read a script. Mistakes are faults of the document.

    Parameters
    ----------
    text : str
    environment : mapping
        Values of ``${NAME}`` in texts of options and settings.
    name : str
        The pipeline's, unless the script sets ``pipeline.name``.
    checkpoint : str, optional
        Directory for the queries' checkpoints, instead of the script's setting.
    """
    with required("SQL"):
        from backlog_spark.pipelines.script.checks import check

    document = Document(data={"source": [], "lookup": [], "transform": [], "sink": [], "pipeline": {}})
    places = Places(text)

    def value_of(token: Token) -> str:
        path: Path = ("script", token.start)
        document.places[path] = places.of(token.start)
        return document.with_variables(token.value, path, environment)

    script = Script(text, value_of)
    for error in script.faults:
        places.fault(document, error)
    check(script, places, document)
    if not document.faults:
        _Writer(script, places, document).write(name, checkpoint)
    return document


def _select(items: list[_Item], source: str, here: Place) -> _Item:
    """A SELECT with lines of its own for each item, so that a mistake in it has its place. ``here``: the rest's."""
    text = "SELECT\n" + ",\n".join(each for each, _ in items) + f"\nFROM {source}"
    return text, (here, *(line for _, lines in items for line in lines), here)


def _schema(table: Table) -> Given:
    """The columns of a table's records."""
    physical = [column for column in table.columns if column.is_physical]
    ddl = ", ".join(f"{quoted(column.name)} {column.type}" for column in physical)
    return Given("schema", ddl, table.start)


class _Writer:
    """Writes the sections that the INSERTs of a script need."""

    def __init__(self, script: Script, places: Places, document: Document) -> None:
        self._script = script
        self._places = places
        self._document = document
        self._names = {*script.streams}

    def write(self, name: str, checkpoint: str | None) -> None:
        script = self._script
        self._pipeline(name)
        given = checkpoint or next((script.settings[k].value for k in _CHECKPOINT if k in script.settings), "")
        if not given:
            self._fault(
                Refused(
                    script.inserts[0].start, "The script has no directory for its checkpoints.",
                    f"Write SET '{_CHECKPOINT[0]}' = '…', or name it with --checkpoint or the argument checkpoint.",
                )
            )  # fmt: skip
        used = {stream for insert in script.inserts for stream in insert.reads}
        for stream in reversed(script.streams.values()):
            if isinstance(stream, View) and stream.name.lower() in used:
                used |= stream.reads
        for key, stream in script.streams.items():
            if key in used and isinstance(stream, View):
                columns = {token.value: None for token in stream.columns}
                written = self._places.written(stream.sql)
                self._transform(stream.name, stream.start, *written, columns=columns, dialect="flink")
            elif key in used and isinstance(stream, Table) and stream.is_looked_up:
                self._lookup(stream)
            elif key in used and isinstance(stream, Table):
                self._source(stream)
        for insert in script.inserts:
            target = script.streams[insert.target.lower()]
            assert isinstance(target, Table)
            self._sink(insert, target, given.rstrip("/"))

    def _fault(self, error: Refused) -> None:
        self._places.fault(self._document, error)

    def _add(self, section: str, start: int, values: Mapping[str, Given | tuple[Any, int]]) -> Path:
        """Add an item to a section. Each value has its place. Source options keep their text and Flink's name."""
        document = self._document
        items = document.data[section]
        path: Path = (section, len(items))
        items.append({})
        document.places[path] = self._places.of(start)
        for key, found in values.items():
            value, at = (found.value, found.start) if isinstance(found, Given) else found
            items[-1][key] = value
            document.places[*path, key] = self._places.of(at)
            if isinstance(found, Given):
                document.texts[*path, key], document.names[*path, key] = found.value, found.name
        return path

    def _transform(self, name: str, start: int, sql: str, lines: tuple[Place, ...], **more: Any) -> None:
        """Add a transform. ``more``: its other keys; empty ones are left out."""
        values = {"name": name, "sql": sql, **{key: value for key, value in more.items() if value}}
        path = self._add("transform", start, {key: (value, start) for key, value in values.items()})
        self._document.lines[*path, "sql"] = lines
        self._document.places[*path, "columns"] = lines[0]

    def _unique(self, name: str) -> str:
        """A name for a stream that the script does not name."""
        while name.lower() in self._names:
            name += "_"
        self._names.add(name.lower())
        return name

    # -- sources ----------------------------------------------------------------------------------------------

    def _source(self, table: Table) -> None:
        """A source, and a transform if its rows are not those of the table yet."""
        from backlog_spark.pipelines.script.checks import METADATA

        assert table.connector is not None
        options, kind = dict(table.translated), table.connector.type
        physical = [column for column in table.columns if column.is_physical]
        metadata = {c.name: METADATA[table.connector_name][c.metadata] for c in table.columns if c.metadata}
        if kind == "hybrid":
            options["schema"] = _schema(table)
        if (refresh := options.pop("refresh", None)) is not None:
            self._fault(Refused(refresh.start, f"{LOOKUP_RELOAD}: {table.name} is not looked up.", "Leave it out."))
        if metadata:
            needed = [*(_OF_CHANGES if kind == "mysql_cdc" else ()), *metadata.values()]
            options["metadataColumns"] = Given("METADATA", ",".join(dict.fromkeys(needed)), table.start)
        is_whole = (
            kind == "hybrid" and len(physical) == len(table.columns) and not any(map(table.is_event_time, physical))
        )
        name = table.name if is_whole else self._unique(f"{table.name}_source")
        items, end = self._items(table, metadata)
        if end is not None:  # the shortest sequence ends the source
            end = min(end, int(options["numberOfRows"].value)) if "numberOfRows" in options else end
            options["numberOfRows"] = Given("end", str(end), table.start)
        watermark = self._watermark(table)
        own = {"watermark": (watermark, table.start)} if watermark and is_whole else {}
        self._add("source", table.start, {"type": (kind, table.start), "name": (name, table.start), **own, **options})
        if is_whole:
            return
        here = self._places.of(table.start)
        computed = self._computed(table)
        if len(computed) > len(items):  # they name columns of the declared types
            inner = self._unique(f"{table.name}_columns")
            self._transform(inner, table.start, *_select(items, name, here))
            items, name = computed, inner
        dialect = "flink" if items is computed else ""
        self._transform(table.name, table.start, *_select(items, name, here), watermark=watermark, dialect=dialect)

    def _lookup(self, table: Table) -> None:
        """A bounded table, whose options are those of Spark's own format. It is read again as a whole."""
        of_streams = ("phases", "discovery", "discoveryInterval")
        options = {name: given for name, given in table.translated.items() if name not in of_streams}
        options["format"] = options.pop("fileFormat")
        options["schema"] = _schema(table)
        self._add("lookup", table.start, {"name": (table.name, table.start), **options})

    def _watermark(self, table: Table) -> dict[str, str]:
        if table.watermark is None:
            return {}
        column, delay, _ = table.watermark
        idle = self._script.settings.get(_IDLE)
        return {"column": column, "delay": delay, **({"idleTimeout": idle.value} if idle else {})}

    def _items(self, table: Table, metadata: Mapping[str, str]) -> tuple[list[_Item], int | None]:
        """The columns of a source that are not computed, and after how many rows it ends."""
        made: list[_Item] = []
        ends: list[int] = []
        for column in table.columns:
            if column.expression is not None:
                continue
            text = f"{quoted(metadata.get(column.name, column.name))}::{column.type}"
            if table.connector_name == "datagen":
                try:
                    text, end = generated(column.name, column.type, table.options, column.start)
                except Refused as error:
                    self._fault(error)
                    continue
                ends += [] if end is None else [end]
            if table.is_event_time(column):
                text = f"CAST({text} AS TIMESTAMP)"  # which alone is an event time here
            made.append((f"{text} AS {quoted(column.name)}", (self._places.of(column.start),)))
        return made, min(ends, default=None)

    def _computed(self, table: Table) -> list[_Item]:
        """All columns, as a SELECT over those that are not computed."""
        made: list[_Item] = []
        for column in table.columns:
            if column.expression is None:
                made.append((quoted(column.name), (self._places.of(column.start),)))
                continue
            text, lines = self._places.written(column.expression)
            if table.is_event_time(column):
                text, lines = f"({text})::TIMESTAMP", (Place(lines[0].line, lines[0].column - 1), *lines[1:])
            made.append((f"{text} AS {quoted(column.name)}", lines))
        return made

    # -- sinks and settings -----------------------------------------------------------------------------------

    def _sink(self, insert: Insert, table: Table, checkpoints: str) -> None:
        assert table.connector is not None
        kind, start = table.connector.type, insert.start
        if kind == "delta_append" and table.keys:
            kind = "delta_upsert"
        written = {column.name: column.type for column in table.columns if column.is_physical}
        given = {token.value: written[token.value] for token in insert.columns if token.value in written} or written
        name = self._unique(f"{table.name}_rows")
        keys = [token.value for token in table.keys]
        changes = ("upsert" if keys else "refuse") if kind == "kafka" else _CHANGES.get(kind)
        self._transform(name, start, *self._places.written(insert.sql), columns=given, changes=changes, dialect="flink")
        if len(given) < len(written) or list(given) != list(written):
            inner, name = name, self._unique(f"{table.name}_all_rows")
            items = [quoted(c) if c in given else f"NULL::{type_} AS {quoted(c)}" for c, type_ in written.items()]
            self._transform(name, start, f"SELECT {', '.join(items)} FROM {inner}", (self._places.of(start),))
        own: dict[str, Any] = {
            "type": kind, "name": table.name, "from": name, "checkpoint": f"{checkpoints}/{table.name}"
        }  # fmt: skip
        if kind.startswith("delta"):
            own |= {
                "properties": {o.name: o.value for o in table.options.values() if o.name.startswith("delta.")},
            }
        if table.partitions:
            own["partitionBy"] = [token.value for token in table.partitions]
        values: dict[str, Given | tuple[Any, int]] = {key: (value, start) for key, value in own.items() if value}
        if keys and kind in ("delta_upsert", "jdbc_upsert", "kafka"):
            values["key" if kind == "kafka" else "keys"] = (keys, table.keys[0].start)
        elif kind == "kafka":  # rows are added, without a key
            values |= {"changeType": (None, start), "sequence": (None, start), "metadataColumns": ([], start)}
        options: dict[str, Given] = {}
        for option, found in table.translated.items():
            if option.startswith("options."):
                options[option.removeprefix("options.")] = found
            else:
                values[option] = found
        if options:
            values["options"] = ({option: found.value for option, found in options.items()}, start)
        path = self._add("sink", start, values)
        for option, found in options.items():
            self._document.places[*path, "options", option] = self._places.of(found.start)

    def _pipeline(self, name: str) -> None:
        section: dict[str, Any] = {"name": name}
        path: Path = ("pipeline",)
        settings: dict[str, str] = {}
        document = self._document
        for each in self._script.settings.values():
            place = self._places.of(each.start)
            if each.name in _OF_PIPELINE:
                key = _OF_PIPELINE[each.name]
                section[key] = each.value
                document.places[*path, key], document.names[*path, key] = place, each.name
            elif each.name == "execution.runtime-mode" and each.value.lower() == "batch":
                section["availableNow"] = True
            elif each.name not in (*_CHECKPOINT, _IDLE) and not each.name.startswith(_OF_CLIENT):
                ours = _OF_SPARK.get(each.name, each.name)
                settings[ours] = each.value
                document.places[*path, "settings", ours] = place
        for key, each in self._script.functions.items():
            document.places[*path, "functions", key] = self._places.of(each.start)
        functions = {key: each.value for key, each in self._script.functions.items()}
        document.data["pipeline"] = {**section, "settings": settings, "functions": functions}
