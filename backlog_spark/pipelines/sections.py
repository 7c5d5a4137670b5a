"""The sections of a pipeline's file and their keys (pure). The JSON schema for editors is made from these classes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

__all__ = [
    "SINKS",
    "BlackHoleSink",
    "DeltaAppendSink",
    "DeltaTablesSink",
    "DeltaUpsertSink",
    "Lookup",
    "PipelineSection",
    "PrintSink",
    "PythonSink",
    "Route",
    "SinkSection",
    "Source",
    "Transform",
    "Watermark",
    "keys_of",
]


def _without_home(location: str) -> str:
    """Spark would make a directory with the name ~, and other commands would look in the home directory."""
    if location.startswith("~"):
        raise PydanticCustomError("home", "a path cannot begin with ~. Write ${HOME} instead")
    return location


Location = Annotated[str, AfterValidator(_without_home)]


class _Section(BaseModel):
    """A mapping of the file, with its scalars as they are written. Its keys are in camel case."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=False)


class Watermark(_Section):
    """The event time of a source, as of `BacklogStream.with_watermark`."""

    column: str = Field(description="A timestamp column.")
    delay: str = Field(description="How far behind the greatest time a row may come, such as 10 seconds.")
    idle_timeout: str | None = Field(None, description="After this time without rows the source holds back nothing.")


class Source(_Section):
    """A source. All other keys are options of its type."""

    # Options may be secret, so they are kept apart.
    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel)

    type: str = Field(description="mysql_cdc, hybrid, or any streaming format that Spark knows.")
    name: str = Field("source", description="The name for transforms and reports.")
    watermark: Watermark | None = Field(None, description="Its event time.")
    tables: str | list[str] | None = Field(
        None,
        description="Only with a sink of type delta_tables: the tables to copy, such as shop.* or shop.order_*. New "
        "tables are copied too.",
    )


class Lookup(_Section):
    """A bounded table that SQL looks up, as of `backlog_spark.lookup`. All other keys are options of its format."""

    # Options may be secret, so they are kept apart.
    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel)

    name: str = Field(description="The name for transforms.")
    format: str = Field(description="A batch format of Spark, such as csv, parquet, delta or jdbc.")
    schema_: str | None = Field(
        None, alias="schema", description="Its columns, such as id BIGINT, name STRING. Default: Spark finds them."
    )
    refresh: str | None = Field(
        None, description="After this time the table is read again. Default: it is read at each start."
    )


class Transform(_Section):
    """A stream that is made from earlier ones: by SQL or by a function."""

    name: str = Field(description="The name for later transforms and for sinks.")
    sql: str | None = Field(None, description="A SELECT over sources and earlier transforms (docs/sql.md).")
    function: str | None = Field(
        None,
        description="module:function. It is called with the streams that its parameters name, and returns a stream. A "
        "parameter named spark is the session.",
    )
    dialect: Literal["spark", "flink"] = Field("spark", description="Whose SQL it is (docs/sql.md).")
    arguments: dict[str, Any] = Field({}, description="More arguments of the function.")
    columns: dict[str, str | None] = Field(
        {}, description="Names of the result's columns in their order, each with its type or nothing to keep the type."
    )
    changes: Literal["keep", "refuse", "upsert"] = Field(
        "keep",
        description="refuse: a result whose rows are updated or deleted is refused. upsert: rows that are no changes "
        "replace those of their key in a sink of type delta_upsert, in their order. keep: rows stay as they are.",
    )
    watermark: Watermark | None = Field(None, description="The event time of the result.")


class Route(_Section):
    """Where a sink of type delta_tables puts some tables. The first that matches counts."""

    source_table: str = Field(alias="source-table", description="Tables, such as shop.orders or shop.*.")
    sink_table: str = Field(
        alias="sink-table", description="A directory below the sink's path. <> stands for the source table's name."
    )
    description: str = Field("", description="For readers.")


class SinkSection(_Section):
    """What all sinks have."""

    SYNC: ClassVar[bool] = False
    """Whether it copies whole databases."""

    name: str = Field("sink", description="The name of the sink. With several sinks each needs one.")
    input: str | None = Field(
        None, alias="from", description="The source or transform. Default: the last transform, or the only source."
    )
    checkpoint: Location | None = Field(
        None, description="The checkpoint of this sink's query. Default: the pipeline's. With several sinks required."
    )
    side_outputs: dict[str, SinkSection] = Field(
        {}, description="Sinks of this query for side outputs of the last operator, such as late rows, by their names."
    )

    def arguments(self) -> dict[str, Any]:
        """The arguments of the sink's class: what the file says, under the class's names."""
        return self.model_dump(
            exclude={"type", "name", "input", "checkpoint", "side_outputs", "function"}, exclude_unset=True
        )


_EXISTING: Final = (
    "What becomes of rows that were there before the first batch on this checkpoint. replace: the end of the first "
    "snapshot removes those that the source no longer has. keep: they stay. refuse: the query does not start."
)


class _Delta(SinkSection):
    path: Location = Field(description="Location of the table. The first start creates it.")
    partition_by: list[str] = Field([], description="Partition columns of a table that the sink creates.")
    properties: dict[str, str] = Field({}, description="Table properties of a table that the sink creates.")
    merge_schema: bool = Field(False, description="Add columns that the stream has and the table lacks.")
    small_batch_rows: int = Field(
        100_000, ge=0, description="Live batches of up to this many rows are committed by delta-rs."
    )
    small_batch_bytes: int = Field(64 << 20, ge=0, description="Most bytes of such a batch.")
    storage_options: dict[str, str] = Field({}, description="delta-rs's options for the table's store.")
    compact: bool = Field(True, description="Merge small files between batches.")


class DeltaAppendSink(_Delta):
    """Appends all rows to a Delta table: `backlog_spark.DeltaAppend`."""

    type: Literal["delta_append"]


class DeltaUpsertSink(_Delta):
    """Keeps the newest change of each key in a Delta table: `backlog_spark.DeltaUpsert`."""

    type: Literal["delta_upsert"]
    keys: list[str] = Field(min_length=1, description="Columns that identify a row.")
    change_type: str | None = Field("_change_type", description="Column with the kind of change. null: upserts.")
    sequence: str | None = Field("_commit_seq", description="Column that orders a key's changes. null: none.")
    metadata_columns: list[str] = Field(
        ["_change_type", "_commit_timestamp", "_commit_seq"], description="Columns that are not stored."
    )
    on_existing_rows: Literal["replace", "keep", "refuse"] = Field("replace", description=_EXISTING)


class DeltaTablesSink(SinkSection):
    """Copies each table of a database into a Delta table of its own: `backlog_spark.DeltaTables`."""

    SYNC: ClassVar[bool] = True

    type: Literal["delta_tables"]
    path: Location = Field(description="Directory of the tables: <path>/<database>/<table>, or what route says.")
    properties: dict[str, str] = Field({}, description="Table properties of tables that the sink creates.")
    storage_options: dict[str, str] = Field({}, description="delta-rs's options for the tables' store.")
    compact: bool = Field(True, description="Merge small files between batches.")
    on_existing_rows: Literal["replace", "keep", "refuse"] = Field("replace", description=_EXISTING)


class PythonSink(SinkSection):
    """A sink of your own: a subclass of `backlog_spark.Sink`."""

    type: Literal["python"]
    function: str = Field(description="module:name of the class, or of a function that returns a sink.")
    options: dict[str, Any] = Field({}, alias="arguments", description="Its arguments.")

    def arguments(self) -> dict[str, Any]:
        return dict(self.options)


class PrintSink(SinkSection):
    """Prints rows as Flink does: `backlog_spark.Print`."""

    type: Literal["print"]
    identifier: str = Field("", description="Text before each row.")
    standard_error: bool = Field(False, description="Print to stderr.")


class BlackHoleSink(SinkSection):
    """Computes all rows and drops them: `backlog_spark.BlackHole`."""

    type: Literal["blackhole"]


SINKS: Final[dict[str, type[SinkSection]]] = {
    "delta_append": DeltaAppendSink,
    "delta_upsert": DeltaUpsertSink,
    "delta_tables": DeltaTablesSink,
    "print": PrintSink,
    "blackhole": BlackHoleSink,
    "python": PythonSink,
}
"""The types of sinks."""


class PipelineSection(_Section):
    """How the pipeline runs."""

    name: str = Field(description="Name of the query.")
    checkpoint: Location | None = Field(
        None, description="The query's checkpointLocation. A restart continues from it."
    )
    interval: str | None = Field(None, description="Normal commit interval, such as 10 seconds.")
    interval_during_backlog: str | None = Field(
        None, description="Commit interval while a source is in backlog; 0: one commit when all have left it."
    )
    available_now: bool = Field(False, description="Read the present data, then end.")
    functions: dict[str, str] = Field(
        {}, description="Functions for SQL: the name there, and module:function of a Python function."
    )
    settings: dict[str, str] = Field({}, description="Spark's settings, and those of docs/settings.md.")


def keys_of(section: type[BaseModel]) -> list[str]:
    """The keys that a section of the file may have."""
    return [found.alias or name for name, found in section.model_fields.items()]
