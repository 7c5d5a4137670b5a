"""The data source ``hybrid``: bounded phases, then an unbounded one, as one stream."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.options import Option, options_of
from backlog_spark.spi.read_limits import HAS_LIMITS
from backlog_spark.spi.reduced_reader import for_this_spark
from backlog_spark.spi.source_info import SourceInfo, WatermarkCharacteristic
from backlog_spark.spi.stream_only import StreamOnly

from .decode import DecodeOptions, decoder
from .decode import parse as parse_decode
from .evolution import Evolution
from .files.schemas.options import SchemaOptions
from .kinds import KINDS
from .needed import fields_of
from .options import SECRETS, HybridOptions
from .phases import METADATA, Columns, Phase, type_of
from .reader import HybridStreamReader

__all__ = [
    "HybridDataSource",
    "advice",
    "check_columns",
    "check_options",
    "check_start",
    "columns_of",
    "documented_options",
    "inspect",
    "make_phases",
    "names_of",
]

_log = logging.getLogger(__name__)

_ADVICE = (
    'bs.source("hybrid") is the default for files, then Kafka. Take bs.hybrid, Spark\'s own readers, if reading the '
    "files takes too long, or if only Spark reads their format."
)


def make_phases(options: HybridOptions) -> list[Phase]:
    """Make the phases of the options. They are not opened.

    Raises
    ------
    SettingError
        For wrong options of a phase, and for an unbounded phase that is not the last one.
    """
    phases = [
        KINDS[kind].make(name, of_phase)
        for (name, kind), of_phase in zip(options.phases, options.of_phase, strict=True)
    ]
    for phase, decode in zip(phases, options.decoded, strict=True):
        if decode:
            phase.decoder_of = partial(decoder, parse_decode(decode))
    for phase in phases[:-1]:
        if not phase.is_bounded:
            raise SettingError(
                "phases",
                ", ".join(options.kinds),
                f"{phase.name} is unbounded, so no phase can follow it.",
                "Put it last, or give it an end: endingOffsets for Kafka, discovery=once for files.",
            )
    return phases


def advice(options: Mapping[str, str]) -> str:
    """When to take `bs.hybrid` instead. Empty for a single phase, which `bs.hybrid` refuses."""
    return _ADVICE if len(HybridOptions.parse(options).kinds) > 1 else ""


def check_options(options: Mapping[str, str]) -> None:
    """Check names and values of options, without files or brokers.

    Raises
    ------
    SettingError
        Names the option.
    """
    make_phases(HybridOptions.parse(options))


def documented_options() -> tuple[Option, ...]:
    """The options of docs/hybrid.md, of all kinds of phases."""
    classes: list[type[Any]] = [HybridOptions, *(kind.options() for kind in KINDS.values()), DecodeOptions]
    return tuple({o.name: o for each in classes for o in options_of(each, with_docs=True)}.values())


def inspect(options: Mapping[str, str]) -> SourceInfo:
    """Check the options, and say whether the source starts with backlog."""
    parsed = HybridOptions.parse(options)
    phases = make_phases(parsed)
    _check_names(parsed.metadata, names_of(parsed.schema))
    return SourceInfo(
        starts_in_backlog=phases[0].starts_in_backlog,
        watermark_characteristic=WatermarkCharacteristic.ANY_WATERMARK,
        use_processing_time=parsed.by_clock,
    )


def check_start(options: Mapping[str, str]) -> None:
    """Check the directories, tables, topics and columns that the options name. Once, before a query first starts.

    Needs a session of Spark.

    Raises
    ------
    BacklogError
    """
    source = HybridDataSource(dict(options))
    declared = source.schema()
    parsed = HybridOptions.parse(options)
    schema = cast(StructType, StructType.fromDDL(declared)) if isinstance(declared, str) else declared
    phases = make_phases(parsed)
    columns = source.columns_of(schema, parsed, phases)
    try:
        for phase in phases:
            phase.open(columns)
            phase.check()
        check_columns(phases, columns.data)
    finally:
        for phase in phases:
            phase.close()


def check_columns(phases: Sequence[Phase], data: pa.Schema, *, with_types: bool = True) -> None:
    """Refuse columns that no phase has, and columns whose types do not fit.

    Raises
    ------
    SettingError
    """
    from .files.casting import Uncastable, caster, find_field  # 0.2 s, which sessions that read nothing need not take

    missing, there = set(data.names), dict[str, None]()
    is_sure = True
    for phase in phases:
        found = phase.columns_at_hand()
        is_sure = is_sure and found is not None
        absent = set(data.names)
        for schema in found or []:
            there.update(dict.fromkeys(schema.names))
            for field in data:
                index = find_field(schema.names, field.name)
                if index is None:
                    continue
                absent.discard(field.name)
                if not with_types:
                    continue
                try:
                    caster(schema.field(index).type, field.type)
                except Uncastable as error:
                    raise SettingError(
                        "schema", _shown(field), f"in the phase {phase.name} it {error}.",
                        f"Declare it as {_spark(schema.field(index))}, or change the data.",
                    ) from None  # fmt: skip
        missing &= absent
        if found and absent:
            _log.warning("The phase %s has no column %s: it is NULL there", phase.name, ", ".join(sorted(absent)))
    if missing and is_sure:
        raise SettingError(
            "schema", ", ".join(sorted(missing)), "no phase has such a column.",
            f"Correct or remove it. Columns: {', '.join(there)}.",
        )  # fmt: skip


def _shown(field: pa.Field) -> str:
    return f"{field.name} {_spark(field)}"


def _spark(field: pa.Field) -> str:
    return from_arrow_schema(pa.schema([field]))[0].dataType.simpleString()


class HybridDataSource(StreamOnly):
    """``spark.readStream.format("hybrid")``: N - 1 bounded phases, then one that may be unbounded (FLIP-309).

    ``isProcessingBacklog`` is true until the last phase begins. In the last phase its own thresholds decide. The
    columns are those of ``schema``, or else the first phase's own, then the ``metadataColumns``. Options:
    `HybridOptions` and those of the phases.
    """

    secrets: ClassVar[str] = SECRETS
    # The phase whose data declared the columns, if `schema` was called. Spark passes the object on to the reader.
    _declaring: int | None = None
    # Whether that phase has inferred them.
    _is_inferred = False

    @classmethod
    def name(cls) -> str:
        return "hybrid"

    def schema(self) -> StructType | str:
        options = HybridOptions.parse(dict(self.options))
        declared = self.schema_of(options)
        return declared if options.needed is None else options.needed.read

    def schema_of(self, options: HybridOptions, *, stores: bool = True) -> StructType | str:
        """All columns, those of metadata last.

        Parameters
        ----------
        options : HybridOptions
        stores : bool
            Whether an inferred schema is stored. Default true.
        """
        if options.schema:
            # The phases may not be complete yet: only a query has a place for their files.
            about = {o.name.lower() for o in options_of(SchemaOptions)}
            given = any(name.rpartition(".")[2].lower() in about for name in self.options)
            evolution = _evolution(make_phases(options), None) if given else None
            metadata = _metadata(options, evolution)
            _check_names(metadata.names, names_of(options.schema))
            names = [name if name in METADATA else f"`{name.replace('`', '``')}`" for name in metadata.names]
            types = [field.dataType.simpleString() for field in from_arrow_schema(metadata)]
            more = "".join(f", {name} {kind}" for name, kind in zip(names, types, strict=True))
            return options.schema + more
        phases = make_phases(options)
        for phase in phases:
            phase.stores_schema = stores
        for declare in (Phase.schema, Phase.inferred):
            for index, phase in enumerate(phases):
                declared = getattr(phase, declare.__name__)()
                if declared is None:
                    continue
                self._declaring = index
                self._is_inferred = phase.infers_schema or declare is Phase.inferred
                metadata = _metadata(options, _evolution(phases, index if self._is_inferred else None))
                _check_names(metadata.names, declared.names)
                return StructType([*from_arrow_schema(declared), *from_arrow_schema(metadata)])
        raise SettingError(
            "schema", None, f"none of the phases {', '.join(options.kinds)} declares its columns.",
            "Set .schema(…), or the option schema, such as \"id BIGINT, at TIMESTAMP\".",
        )  # fmt: skip

    def columns_of(self, schema: StructType, options: HybridOptions, phases: Sequence[Phase]) -> Columns:
        """Data and metadata columns of the stream's schema, and what happens to others."""
        evolution = _evolution(phases, self._declaring if self._is_inferred else None)
        found = columns_of(schema, options.metadata, evolution.rescued if evolution else "")
        return replace(found, evolution=evolution)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = HybridOptions.parse(dict(self.options))
        phases = make_phases(options)
        if options.needed is None:
            columns, read = self.columns_of(schema, options, phases), None
        else:
            read = _arrow(schema)
            columns = self.columns_of(options.needed.declared, options, phases)
            columns = replace(columns, needed=fields_of(columns.arrow, read))
        for phase in phases:
            phase.open(columns)
        return for_this_spark(HybridStreamReader(options, phases, columns, self._declaring, read))


def _evolution(phases: Sequence[Phase], inferring: int | None) -> Evolution | None:
    """What happens to fields that the schema does not have. ``inferring``: the phase that has inferred it."""
    if inferring is not None:
        return phases[inferring].evolution(is_inferred=True)
    found = (phase.evolution(is_inferred=False) for phase in phases)
    return next((evolution for evolution in found if evolution is not None), None)


def _metadata(options: HybridOptions, evolution: Evolution | None) -> pa.Schema:
    """The columns after the data."""
    rescued = [evolution.rescued] if evolution is not None and evolution.rescued else []
    if rescued and rescued[0].lower() in METADATA:
        raise SettingError(
            "rescuedDataColumn",
            rescued[0],
            "is the name of a metadata column.",
            "Name another column, or leave it out.",
        )
    return pa.schema([(name, type_of(name)) for name in (*rescued, *options.metadata)])


def _arrow(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC") if HAS_LIMITS else to_arrow_schema(schema)  # Spark 4.0: in UTC


def columns_of(schema: StructType, asked: Sequence[str], rescued: str = "") -> Columns:
    """Data and metadata columns of a declared schema. The metadata columns are the requested ones, and come last.

    ``rescued``: the column for rescued data, before those that are asked for; "": none.
    """
    arrow = _arrow(schema)
    names = [f.name for f in arrow]
    if rescued:
        asked = [rescued, *asked]
    for name in asked:
        if name not in names:
            setting = "rescuedDataColumn" if name == rescued else "metadataColumns"
            raise SettingError(
                setting, name if name == rescued else ",".join(asked),
                f"the schema that was set has no column {name!r}.",
                f"Put `{name} {_type(name)}` at its end, or remove it from {setting}.",
            )  # fmt: skip
    metadata = tuple(name for name in names if name in asked)
    data = [pa.field(f.name, f.type) for f in arrow if f.name not in asked]
    _check_names(metadata, [*(f.name for f in data), *(name for name in asked if metadata.count(name) > 1)])
    if metadata and tuple(names[-len(metadata) :]) != metadata:
        raise BacklogError(
            f"The metadata columns {', '.join(metadata)} are not the last columns.", "Put them last in the schema."
        )
    for name in metadata:
        if arrow.field(name).type != type_of(name):
            raise BacklogError(
                f"The metadata column {name} is declared as {schema[name].dataType.simpleString()}.",
                f"Declare it as {_type(name)}.",
            )
    return Columns(pa.schema(data), metadata)


def _type(metadata: str) -> str:
    """The Spark type of a metadata column."""
    return _spark(pa.field(metadata, type_of(metadata)))


def _check_names(metadata: Sequence[str], data: Iterable[str]) -> None:
    """Refuse data with a column named like a requested metadata column, in any case as in Spark."""
    taken = {name.lower() for name in data}
    for name in metadata:
        if name.lower() in taken:
            setting = "metadataColumns" if name in METADATA else "rescuedDataColumn"
            raise SettingError(
                setting, ",".join(metadata), f"the data also have a column {name!r}.",
                f"Remove it from {setting}, or set a schema without the data's column.",
            )  # fmt: skip


_DDL = re.compile(r"""`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[<(>),]|[^\s`'"<(>),:]+""")


def names_of(schema: str) -> list[str]:
    """The column names of a DDL. Spark's own parser would need its JVM."""
    found: list[str] = []
    depth, is_name = 0, True
    for token in _DDL.findall(schema):
        if is_name:
            found.append(token[1:-1].replace("``", "`") if token[0] == "`" else token)
        depth += (token in "<(") - (token in ">)")
        is_name = token == "," and depth == 0
    return found
