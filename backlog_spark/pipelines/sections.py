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
    "DeltaSection",
    "DeltaTablesSink",
    "DeltaUpsertSink",
    "FilesSinkSection",
    "FunctionSink",
    "IcebergAppendSink",
    "IcebergTablesSink",
    "IcebergUpsertSink",
    "JdbcUpsertSink",
    "Lookup",
    "PipelineSection",
    "PrintSink",
    "PythonSink",
    "Route",
    "SinkSection",
    "Source",
    "TopicSink",
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
        description="Only with a sink of type delta_tables, iceberg_tables or kafka: the tables to copy, such as "
        "shop.* or shop.order_*. New tables are copied too.",
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
    """Where a sink of type delta_tables, iceberg_tables or kafka puts some tables. The first that matches counts."""

    source_table: str = Field(alias="source-table", description="Tables, such as shop.orders or shop.*.")
    sink_table: str = Field(
        alias="sink-table",
        description="A directory below the sink's path, namespace and name of an Iceberg table, or a topic. <> stands "
        "for the source table's name.",
    )
    description: str = Field("", description="For readers.")


class SinkSection(_Section):
    """What all sinks have."""

    SYNC: ClassVar[bool] = False
    """Whether it only copies whole databases."""
    TAKES_TABLES: ClassVar[bool] = False
    """Whether it can copy whole databases, and has routes."""
    MAKES: ClassVar[str] = ""
    """Name of its class in `backlog_spark.sinks`; "" if a function makes it."""

    name: str = Field("sink", description="The name of the sink. With several sinks each needs one.")
    input: str | None = Field(
        None, alias="from", description="The source or transform. Default: the last transform, or the only source."
    )
    checkpoint: Location | None = Field(
        None,
        description="The checkpoint of this sink's query. Default: the pipeline's. Sinks with one checkpoint are "
        "targets of one query.",
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


_MERGED_ROWS: Final = Field(1_000_000, ge=0, description="The driver merges live batches of up to this many rows.")
_MERGED_BYTES: Final = Field(256 << 20, ge=0, description="Most bytes of such a batch.")


class DeltaSection(SinkSection):
    path: Location | None = Field(None, description="Location of the table. The first start creates it.")
    table: str | None = Field(
        None, description="Name of the table in a catalog, in place of path. The first start creates it."
    )
    partition_by: list[str] = Field(
        [], description="Partition columns of a table that the sink creates; days(x), months(x), years(x) make one."
    )
    cluster_by: list[str] = Field([], description="Columns by which a table that the sink creates is clustered.")
    computed: dict[str, str] = Field({}, description="Columns that the sink adds: SQL expressions by name.")
    properties: dict[str, str] = Field({}, description="Table properties of a table that the sink creates.")
    merge_schema: bool = Field(False, description="Add columns that the stream has and the table lacks.")
    small_batch_rows: int = Field(
        100_000, ge=0, description="Live batches of up to this many rows are committed by delta-rs."
    )
    small_batch_bytes: int = Field(64 << 20, ge=0, description="Most bytes of such a batch.")
    storage_options: dict[str, str] = Field({}, description="delta-rs's options for the table's store.")
    compact: bool = Field(True, description="Merge small files between batches.")


class _Kept(_Section):
    """Which rows a table keeps. See docs/history.md."""

    deletes: Literal["remove", "soft", "ignore"] = Field(
        "remove", description="What a delete does. remove: the row goes. soft: a column says so. ignore: nothing."
    )
    deleted_column: str = Field("_is_deleted", description="With soft: the column that says whether a row is deleted.")
    deleted_at_column: str | None = Field(None, description="With soft: a column for the time of the delete.")
    history: Literal["scd2"] | None = Field(None, description="scd2: a row for each version of a key.")
    valid_from: str = Field("valid_from", description="With scd2: the column with the begin of a version.")
    valid_to: str = Field("valid_to", description="With scd2: the column with its end. NULL: none yet.")
    is_current: str = Field("is_current", description="With scd2: the column that says whether it is the current one.")


class _KeptOfOne(_Kept):
    track_history_columns: list[str] | None = Field(
        None, description="With scd2: columns whose changes make a new version. Default: all but the keys."
    )
    commit_time: str = Field("_commit_timestamp", description="Column with the time of a change.")


class DeltaAppendSink(DeltaSection):
    """Appends all rows to a Delta table: `backlog_spark.DeltaAppend`."""

    MAKES: ClassVar[str] = "DeltaAppend"
    type: Literal["delta_append"]


class DeltaUpsertSink(DeltaSection, _KeptOfOne):
    """Keeps the newest change of each key in a Delta table: `backlog_spark.DeltaUpsert`."""

    MAKES: ClassVar[str] = "DeltaUpsert"
    type: Literal["delta_upsert"]
    keys: list[str] = Field(min_length=1, description="Columns that identify a row.")
    change_type: str | None = Field("_change_type", description="Column with the kind of change. null: upserts.")
    sequence: str | None = Field("_commit_seq", description="Column that orders a key's changes. null: none.")
    metadata_columns: list[str] = Field(
        ["_change_type", "_commit_timestamp", "_commit_seq"], description="Columns that are not stored."
    )
    on_existing_rows: Literal["replace", "keep", "refuse"] = Field("replace", description=_EXISTING)
    small_batch_rows: int = _MERGED_ROWS
    small_batch_bytes: int = _MERGED_BYTES


class JdbcUpsertSink(SinkSection):
    """Keeps the newest change of each key in a table of MySQL, MariaDB or PostgreSQL: `backlog_spark.JdbcUpsert`."""

    MAKES: ClassVar[str] = "JdbcUpsert"
    type: Literal["jdbc_upsert"]
    url: str = Field(description="mysql://host:3306/database, mariadb://… or postgresql://…, without a password.")
    table: str = Field(description="table or schema.table. The first start creates it.")
    keys: list[str] = Field(min_length=1, description="Columns that identify a row: a primary key or a unique index.")
    user: str = Field(description="The database's user.")
    password: str = Field("", repr=False, description="Its password, such as ${DB_PASSWORD}.")
    password_file: str = Field("", description="File with the password, on the driver and the executors.")
    password_env: str = Field("", description="Environment variable with it, on the driver and the executors.")
    password_command: str = Field("", repr=False, description="Program that prints it, on driver and executors.")
    password_function: str = Field("", description="module:function that returns it, on the driver and the executors.")
    ssl_mode: Literal["disabled", "preferred", "required", "verify_ca", "verify_identity"] = Field(
        "preferred", description="As ssl.mode of mysql_cdc."
    )
    ssl_ca: str = Field("", description="Certificates of the known authorities (PEM).")
    ssl_cert: str = Field("", description="The client's certificate (PEM).")
    ssl_key: str = Field("", description="The client's private key (PEM).")
    allow_public_key_retrieval: bool = Field(False, description="As of mysql_cdc.")
    change_type: str | None = Field("_change_type", description="Column with the kind of change. null: upserts.")
    sequence: str | None = Field("_commit_seq", description="Column that orders a key's changes. null: none.")
    metadata_columns: list[str] = Field(
        ["_change_type", "_commit_timestamp", "_commit_seq"], description="Columns that are not stored."
    )
    small_batch_rows: int = Field(
        100_000, ge=0, description="Live batches of up to this many rows are written by the driver."
    )


class DeltaTablesSink(SinkSection, _Kept):
    """Copies each table of a database into a Delta table of its own: `backlog_spark.DeltaTables`."""

    MAKES: ClassVar[str] = "DeltaTables"
    SYNC: ClassVar[bool] = True
    TAKES_TABLES: ClassVar[bool] = True

    type: Literal["delta_tables"]
    path: Location = Field(description="Directory of the tables: <path>/<database>/<table>, or what route says.")
    properties: dict[str, str] = Field({}, description="Table properties of tables that the sink creates.")
    storage_options: dict[str, str] = Field({}, description="delta-rs's options for the tables' store.")
    compact: bool = Field(True, description="Merge small files between batches.")
    on_existing_rows: Literal["replace", "keep", "refuse"] = Field("replace", description=_EXISTING)


class TopicSink(SinkSection):
    """Writes changes to topics of Kafka: `backlog_spark.KafkaSink`."""

    MAKES: ClassVar[str] = "KafkaSink"
    TAKES_TABLES: ClassVar[bool] = True

    type: Literal["kafka"]
    topic: str = Field(description="The topic. <> stands for the name of the row's table. See also route.")
    key: list[str] = Field([], description="Columns that identify a row. Leave it out if the source has tables.")
    format: Literal["json", "avro", "debezium"] = Field("json", description="How keys and values are written.")
    options: dict[str, str] = Field(
        description="kafka.bootstrap.servers, other properties kafka.* of a producer, and schema.registry.*."
    )
    delivery: Literal["exactly_once", "at_least_once"] = Field("exactly_once", description="With transactions or not.")
    change_type: str | None = Field("_change_type", description="Column with the kind of change. null: upserts.")
    sequence: str | None = Field("_commit_seq", description="Column that orders a key's changes. null: none.")
    metadata_columns: list[str] = Field(
        ["_change_type", "_commit_timestamp", "_commit_seq"], description="Columns that are not in the value."
    )
    partitions: int | None = Field(None, ge=1, description="Partitions of topics that the sink creates.")
    replication: int | None = Field(None, ge=1, description="Replicas of topics that the sink creates.")
    tasks: int | None = Field(None, ge=1, description="Tasks of a batch of backlog. The first start decides.")
    marks_topic: str = Field("_backlog_spark_marks", description="The topic that says which batches are written.")


class FilesSinkSection(SinkSection):
    """Appends each batch as files, as Spark's own file sink does: `backlog_spark.FilesSink`."""

    MAKES: ClassVar[str] = "FilesSink"
    type: Literal["files"]
    path: Location = Field(description="A directory. The first start creates it.")
    format: Literal["parquet", "csv", "json", "orc", "text", "avro"] = Field("parquet", description="Their format.")
    partition_by: list[str] = Field([], description="Columns whose values become directories.")
    options: dict[str, str] = Field({}, description="Spark's options for the format.")


class FunctionSink(SinkSection):
    """Calls a function with each batch, at least once: `backlog_spark.ForeachSink`."""

    type: Literal["foreach"]
    function: str = Field(description="module:name of a function of two parameters: batch_df and batch.")


_CATALOG: Final = Field(
    min_length=1, description="pyiceberg's properties of the catalog, such as type, uri and warehouse, and its name."
)
_EXPIRE: Final = Field(None, description="Age from which snapshots are removed, such as 7 days.")


class IcebergSection(SinkSection):
    table: str = Field(description="Namespace and name, such as shop.orders. The first start creates both.")
    catalog: dict[str, str] = _CATALOG
    partition_by: list[str] = Field(
        [],
        description="Partitions of a table that the sink creates: columns, or years(x), months(x), days(x), hours(x), "
        "bucket(16, x), truncate(4, x).",
    )
    computed: dict[str, str] = Field({}, description="Columns that the sink adds: SQL expressions by name.")
    properties: dict[str, str] = Field({}, description="Table properties of a table that the sink creates.")
    merge_schema: bool = Field(False, description="Add columns that the table lacks, and widen those it has.")
    small_batch_rows: int = Field(
        100_000, ge=0, description="The driver writes the files of live batches of up to this many rows."
    )
    small_batch_bytes: int = Field(64 << 20, ge=0, description="Most bytes of such a batch.")
    expire_snapshots: str | None = _EXPIRE
    compact: bool = Field(False, description="Merge small files between batches.")


class IcebergAppendSink(IcebergSection):
    """Appends all rows to an Iceberg table: `backlog_spark.IcebergAppend`."""

    MAKES: ClassVar[str] = "IcebergAppend"
    type: Literal["iceberg_append"]


class IcebergUpsertSink(IcebergSection, _KeptOfOne):
    """Keeps the newest change of each key in an Iceberg table: `backlog_spark.IcebergUpsert`."""

    MAKES: ClassVar[str] = "IcebergUpsert"
    type: Literal["iceberg_upsert"]
    keys: list[str] = Field(min_length=1, description="Columns that identify a row.")
    change_type: str | None = Field("_change_type", description="Column with the kind of change. null: upserts.")
    sequence: str | None = Field("_commit_seq", description="Column that orders a key's changes. null: none.")
    metadata_columns: list[str] = Field(
        ["_change_type", "_commit_timestamp", "_commit_seq"], description="Columns that are not stored."
    )
    on_existing_rows: Literal["replace", "keep", "refuse"] = Field("replace", description=_EXISTING)
    small_batch_rows: int = _MERGED_ROWS
    small_batch_bytes: int = _MERGED_BYTES


class IcebergTablesSink(SinkSection, _Kept):
    """Copies each table of a database into an Iceberg table of its own: `backlog_spark.IcebergTables`."""

    MAKES: ClassVar[str] = "IcebergTables"
    SYNC: ClassVar[bool] = True
    TAKES_TABLES: ClassVar[bool] = True

    type: Literal["iceberg_tables"]
    catalog: dict[str, str] = _CATALOG
    properties: dict[str, str] = Field({}, description="Table properties of tables that the sink creates.")
    expire_snapshots: str | None = _EXPIRE
    compact: bool = Field(False, description="Merge small files between batches.")
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

    MAKES: ClassVar[str] = "Print"
    type: Literal["print"]
    identifier: str = Field("", description="Text before each row.")
    standard_error: bool = Field(False, description="Print to stderr.")


class BlackHoleSink(SinkSection):
    """Computes all rows and drops them: `backlog_spark.BlackHole`."""

    MAKES: ClassVar[str] = "BlackHole"
    type: Literal["blackhole"]


SINKS: Final[dict[str, type[SinkSection]]] = {
    "delta_append": DeltaAppendSink,
    "delta_upsert": DeltaUpsertSink,
    "delta_tables": DeltaTablesSink,
    "jdbc_upsert": JdbcUpsertSink,
    "kafka": TopicSink,
    "files": FilesSinkSection,
    "foreach": FunctionSink,
    "iceberg_append": IcebergAppendSink,
    "iceberg_tables": IcebergTablesSink,
    "iceberg_upsert": IcebergUpsertSink,
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
