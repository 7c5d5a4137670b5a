"""The documentation of the options of ``mysql_cdc``, with their names in Flink CDC and Debezium (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from .binlog.inflating import MOST_INFLATED
from .output.metadata import BY_DEFAULT, METADATA

__all__ = ["OPTIONS", "Option", "option_table"]


@dataclass(frozen=True)
class Option:
    """The documentation of one option. Links are relative to docs/mysql_cdc.md."""

    name: str
    type: str
    default: str
    doc: str
    bounds: str = ""
    flink: str = ""  # the same option of Flink CDC's MySQL connector
    secret: bool = False  # whether its value is secret


# The same, or nearly the same, property of Debezium's MySQL connector.
_DEBEZIUM = {
    "host": "database.hostname",
    "port": "database.port",
    "user": "database.user",
    "password": "database.password",
    "serverId": "database.server.id",
    "connect.timeout": "connect.timeout.ms",
    "connect.max-retries": "errors.max.retries",
    "connect.backoff": "errors.retry.delay.initial.ms",
    "table": "table.include.list",
    "tables.exclude": "table.exclude.list",
    "columns.include": "column.include.list",
    "columns.exclude": "column.exclude.list",
    "columns.mask": "column.mask.hash.v2.SHA-256.with.salt.…",
    "columns.mask.secretSalt": "column.mask.hash.v2.SHA-256.with.salt.…",
    "messageKeyColumns": "message.key.columns",
    "skipped.operations": "skipped.operations",
    "signal.table": "signal.data.collection",
    "chunkSize": "incremental.snapshot.chunk.size",
    "maxRowsPerBatch": "max.batch.size",
    "startup.mode": "snapshot.mode",
    "snapshot.mode": "snapshot.mode",
    "ssl.mode": "database.ssl.mode",
    "ssl.ca": "database.ssl.truststore",
    "ssl.cert": "database.ssl.keystore",
    "ssl.key": "database.ssl.keystore",
}
OPTIONS = (
    Option("host", "string", "required", "Server to read from.", flink="hostname"),
    Option("port", "int", "3306", "Its port.", "1..65535", "port"),
    Option(
        "user",
        "string",
        "required",
        "Needs SELECT on the table, REPLICATION SLAVE and REPLICATION CLIENT (MariaDB: BINLOG MONITOR). MySQL without "
        "GTIDs: also RELOAD.",
        flink="username",
    ),
    Option("password", "string", '""', "Never written to logs, offsets or errors.", flink="password", secret=True),
    Option(
        "passwordFile",
        "path",
        "unset",
        "File with the password, instead of `password`. A line end is removed. The file is read for each connection, "
        "so it may change. The driver and all executors need it.",
    ),
    Option(
        "passwordEnv",
        "string",
        "unset",
        "Environment variable with the password, on the driver and the executors (`spark.executorEnv.…`).",
    ),
    Option(
        "ssl.mode",
        "string",
        "preferred",
        "Like the mysql client's --ssl-mode. preferred: TLS if the server has it, without a check of its certificate. "
        "verify_ca: a known authority must have signed its certificate. verify_identity: the certificate must also "
        "name the host.",
        "disabled, preferred, required, verify_ca, verify_identity",
        "jdbc.properties.sslMode",
    ),
    Option(
        "allowPublicKeyRetrieval",
        "boolean",
        "false",
        "Without TLS, whether the server may send its public key to encrypt the password for `caching_sha2_password` "
        "and `sha256_password`. Then somebody who poses as the server can get the password.",
        "true, false",
        "jdbc.properties.allowPublicKeyRetrieval",
    ),
    Option(
        "ssl.ca",
        "path",
        "the system's",
        "Certificates of the known authorities (PEM).",
        "with verify_ca, verify_identity",
    ),
    Option(
        "ssl.cert",
        "path",
        "unset",
        "The client's certificate (PEM); needs `ssl.key`.",
        "with required, verify_ca, verify_identity",
    ),
    Option("ssl.key", "path", "unset", "The client's private key (PEM), not encrypted."),
    Option(
        "connect.timeout",
        "duration",
        "10 s",
        "How long to wait for a server, and for each of its answers until the user is logged in.",
        "250 ms..1 h",
        "connect.timeout",
    ),
    Option(
        "connect.max-retries",
        "int",
        "5",
        "How often to try again after an error that may pass: a lost connection, a server that restarts or has too "
        "many connections, a lock timeout, a failover. Each success sets the count to 0.",
        "0..1000",
        "connect.max-retries",
    ),
    Option(
        "connect.backoff",
        "duration",
        "500 ms",
        "Wait before the first retry. The wait doubles with each retry, up to 30 s.",
        "0..30 s",
    ),
    Option(
        "heartbeat.interval",
        "duration",
        "30 s",
        "How often the server sends a heartbeat on an idle connection of the binary log. After three intervals without "
        "one the connection is opened again.",
        "1 s..1 h",
        "heartbeat.interval",
    ),
    Option(
        "serverId",
        "range",
        "1073741824-4294967295",
        "Ids `first-last` for readers of the binary log. The server ends a reader if another one has its id. So each "
        "reader takes a random id of the range. The planner and each task need one. No replica may have one of them.",
        "1..4294967295, at least 16 ids",
        "server-id",
    ),
    Option(
        "table",
        "names",
        "this or tablePattern",
        "`database.table`, or several separated by commas.",
        flink="database-name, table-name",
    ),
    Option(
        "tablePattern",
        "regular expression",
        "this or table",
        "Captures each table if the expression matches its whole `database.table`, in Python's syntax. The checkpoint "
        "fixes the tables, except with `scanNewlyAddedTables`.",
        flink="database-name, table-name",
    ),
    Option(
        "scanNewlyAddedTables",
        "bool",
        "false",
        "Also captures tables that are added later, to the options or to the server. The source looks for them every "
        "10 seconds. It reads their snapshots while it follows the other tables ([Many tables](#many-tables)).",
        "true, false; with startup.mode=initial",
        "scan.newly-added-table.enabled",
    ),
    Option(
        "tables.exclude",
        "regular expressions",
        "unset",
        "Separated by commas. A table is not captured if one of them matches its whole `database.table`.",
        flink="database-name, table-name",
    ),
    Option(
        "columns.include",
        "regular expressions",
        "every column",
        "Separated by commas. A column is read only if one of them matches its whole `database.table.column`. Columns "
        "of the key are always read. Upper and lower case do not matter ([Columns](#columns)).",
        "not with columns.exclude",
    ),
    Option(
        "columns.exclude",
        "regular expressions",
        "unset",
        "A column is not read if one of them matches. A column of the key cannot be excluded.",
        "not with columns.include",
    ),
    Option(
        "columns.mask",
        "regular expressions",
        "unset",
        "A column's values become a salted SHA-256 if one of them matches: 64 hexadecimal digits. NULL stays NULL.",
    ),
    Option(
        "columns.mask.secretSalt",
        "string",
        "with columns.mask: required",
        "The salt. Never written to logs, offsets or errors. Another salt needs a new checkpoint.",
        secret=True,
    ),
    Option(
        "tinyInt1isBit",
        "bool",
        "false",
        "Reads signed TINYINT(1) as boolean: 0 is false, all other values are true. In a key it stays a number.",
        "true, false",
    ),
    Option(
        "messageKeyColumns",
        "names",
        "unset",
        "`table:column,column;…`, where `table` is a regular expression: the NOT NULL columns of a UNIQUE key. They "
        "become the key of a table without a primary key ([Keys](#keys)).",
    ),
    Option(
        "skipped.operations",
        "letters",
        "none",
        "Kinds of changes of the log to drop, separated by commas: c (inserts), u (updates), d (deletes), t "
        "(truncates, as with tableEvents=skip).",
        "c, u, d, t, none",
    ),
    Option(
        "format",
        "string",
        "row",
        "row: the table's columns. Several tables must have the same columns. debezium: a `key` and a `value` with "
        "Debezium's envelope, as JSON, for tables with any columns ([Many tables](#many-tables)).",
        "row, debezium",
    ),
    Option(
        "schemaChange",
        "string",
        "evolve",
        "evolve: the stream continues after an ALTER TABLE if its columns allow it. Otherwise it stops after "
        "everything before the statement, and continues after a restart ([Schema "
        "changes](mysql_cdc_schema.md#schema-changes)). fail: it stops at the first ALTER TABLE that may change "
        "columns.",
        "evolve, fail",
    ),
    Option(
        "tableSwap",
        "string",
        "snapshot",
        "What happens if a RENAME gives a captured table's name to another table. A table of gh-ost or "
        "pt-online-schema-change has the same rows: the stream continues with it. For any other table, snapshot: the "
        "old table counts as dropped, and the new one is read from its beginning; follow: the stream continues with "
        "the new table's changes; tools: the stream stops "
        "([Online schema change](mysql_cdc_schema.md#online-schema-change)). With schemaChange=fail the stream stops "
        "at every such RENAME.",
        "snapshot, follow, tools",
    ),
    Option(
        "binlog.statement.ignore",
        "regular expression",
        "unset",
        "Statement-format changes of a table do not stop the query if the expression matches its whole "
        "`database.table` ([Statement-format changes](mysql_cdc_server.md#statement-format-changes)). It must not "
        "match a captured table.",
    ),
    Option(
        "tableEvents",
        "string",
        "emit",
        "What TRUNCATE and DROP of a captured table do ([Truncated and dropped "
        "tables](mysql_cdc_schema.md#truncated-and-dropped-tables)). emit: the stream has a row for the statement, and "
        "`DeltaUpsert` removes the table's rows. skip: the stream has no such row, and the target keeps the rows. "
        "fail: the query stops. After a restart with another value it continues from there. fail is the default if "
        "`metadataColumns` leaves out `_change_type` or, with several tables, `_database` or `_table`.",
        "emit, skip, fail",
    ),
    Option(
        "rewritingAlter",
        "string",
        "snapshot",
        "What happens after an ALTER TABLE that changes values of rows that are there, or adds a column with a "
        "default. The binary log does not have these values ([Statements that change old "
        "rows](mysql_cdc_schema.md#statements-that-change-old-rows)). snapshot: the table is read again while the "
        "stream continues. stop: the stream stops before the statement's rows. ignore: the target keeps the old "
        "values. stop is the default without a snapshot (`startup.mode`). A query sets stop for keyed operators "
        "and for functions such as filters, and ignore for sinks that append all rows, unless you set the option.",
        "snapshot, stop, ignore",
    ),
    Option(
        "signal.table",
        "name",
        "unset",
        "`database.table` whose new rows are [signals](mysql_cdc_signals.md), such as `execute-snapshot`. Its first "
        "three columns are id, type and data. It is not captured.",
    ),
    Option(
        "zeroDate",
        "string",
        "null",
        "What happens to zero, partial and impossible dates (`0000-00-00`, `2024-00-10`, `2024-02-31`), which Spark "
        "does not have. null: they become NULL. error: the query stops and names table, column and date. In a key both "
        "stop the query.",
        "null, error",
    ),
    Option(
        "chunkSize",
        "int",
        "100000",
        "Rows of one SELECT of the snapshot. Approximate if chunks are cut by arithmetic.",
        ">= 1",
        "scan.incremental.snapshot.chunk.size",
    ),
    Option(
        "chunkKeyColumn",
        "string",
        "the primary key",
        "Column that cuts the snapshot into chunks. An index must begin with it. If it is not in the primary key, the "
        "whole snapshot is one batch ([Keys](#keys)).",
        "a column of the table",
        "scan.incremental.snapshot.chunk.key-column",
    ),
    Option(
        "distributionFactorLower",
        "float",
        "0.05",
        "Chunks are cut by arithmetic, instead of stepping along the index, only if (greatest key - least key + 1) / "
        "rows is at least this. Applies where a batch has no limit on rows: with `intervalDuringBacklog` and without "
        "`maxRowsPerBatch`.",
        "0..1",
        "chunk-key.even-distribution.factor.lower-bound",
    ),
    Option(
        "distributionFactorUpper",
        "float",
        "1000",
        "The upper bound of the same factor.",
        ">= 1",
        "chunk-key.even-distribution.factor.upper-bound",
    ),
    Option(
        "maxRowsPerBatch",
        "int",
        "200000",
        "Most rows per batch. A batch never splits a transaction or rows of one chunk key, so a larger transaction is "
        "one batch. Snapshot: with `intervalDuringBacklog` time sizes the batches, and only a value that you set is a "
        "limit too. With 0 there is no limit, and none for a snapshot that cannot be cut. Binary log: if a batch "
        "leaves rows behind, the next one may have twice as many, up to 16 times the default. So the lag stays near "
        "the time of one commit.",
        ">= 1",
    ),
    Option(
        "maxRowBytes",
        "int",
        "268435456",
        "Most bytes of one row. A larger row stops the query with an error, because a worker could run out of memory: "
        "a row takes a few times its own size.",
        "16777216..1073741824",
    ),
    Option(
        "maxInflatedBytes",
        "int",
        str(MOST_INFLATED),
        "Most bytes that a compressed transaction of MySQL, or a compressed event of MariaDB, may have when it is "
        "inflated. A larger one stops the query. Transactions are inflated piece by piece, so this does not limit "
        "memory.",
        ">= 1",
    ),
    Option(
        "metadataColumns",
        "names",
        ",".join(BY_DEFAULT) + "; with several tables or format=debezium also _database, _table",
        "More columns, after the table's, that show where a row comes from ([Metadata columns](#metadata-columns)). "
        "`DeltaUpsert` needs the default ones.",
        ", ".join(METADATA),
    ),
    Option(
        "interval",
        "duration",
        "unset",
        "In the binary log phase there is at most one batch per interval. `BacklogQuery` sets it. "
        "`execution.checkpointing.interval` works too.",
    ),
    Option(
        "intervalDuringBacklog",
        "duration",
        "unset",
        "A snapshot batch is sized to take about this long (FLIP-309). 0: one batch. "
        "`execution.checkpointing.interval-during-backlog` works too.",
        "0 or >= interval",
    ),
    Option(
        "backlogLagThreshold",
        "duration",
        "unset",
        "The binary log phase is backlog too after a batch whose end lags more than this behind the log's end, by the "
        "server's clock. Unset: only the snapshot is backlog.",
        "> 0",
    ),
    Option(
        "useProcessingTimeDuringBinlog",
        "boolean",
        "false",
        "From the binary log phase on, event time follows the system time (FLIP-326), for timers of later operators. "
        "Cannot be used with `with_watermark`. It only has an effect in queries of `backlog_spark`, not in a plain "
        "`readStream`.",
        "true, false",
    ),
    Option(
        "queryToken",
        "string",
        "set by a query's runner",
        "With it the source asks the query whether other sources are in backlog.",
        secret=True,
    ),
    Option(
        "fillsColumns",
        "string",
        "set by a query's runner",
        "What gives new columns their default in old rows. sink: the query's sink. nothing: no row needs it. "
        "again: the table is read again, also with rewritingAlter=stop. Unset: as rewritingAlter says.",
        "sink, nothing, again",
    ),
    Option(
        "signalsToken",
        "string",
        "set by a query's runner",
        "Lets the source ask the query for the signals of `query.signal`.",
        secret=True,
    ),
    Option(
        "pollWait",
        "int",
        "set by a query's runner",
        "Milliseconds that the source may wait for rows if it is the query's only source.",
        ">= 0",
    ),
    Option(
        "availableNowTarget",
        "string",
        "latest",
        "Where `trigger(availableNow=True)` ends. latest: at the log's end at the start of the run. backlogEnd: with "
        "the snapshot. none: at once, without new rows.",
        "latest, backlogEnd, none",
    ),
    Option(
        "startup.mode",
        "string",
        "initial",
        "Where the stream starts ([Where it starts](#where-it-starts)). initial: a snapshot, then the binary log. "
        "snapshot: only the snapshot, with the log that its last batch needs; then the source has finished. latest: "
        "the log from now on. earliest: the whole log that the server has. timestamp, specific: the log from the "
        "position in the options below.",
        "initial, snapshot, latest, earliest, timestamp, specific",
        "scan.startup.mode",
    ),
    Option(
        "snapshot.mode",
        "string",
        "initial",
        "What happens if the server no longer has the binary log after the checkpoint's position. initial: the query "
        "stops. when_needed: it reads the tables again on the same checkpoint, and the target is emptied first "
        "([Purged logs](mysql_cdc_server.md#purged-logs)).",
        "initial, when_needed",
    ),
    Option(
        "startup.timestampMillis",
        "int",
        "with timestamp: required",
        "Milliseconds since 1970 (UTC). The stream starts with the first transaction of that second or later, by the "
        "server's clock.",
        ">= 0",
        "scan.startup.timestamp-millis",
    ),
    Option(
        "startup.file",
        "string",
        "with specific: this or the GTID set",
        "The binary log file to start in.",
        flink="scan.startup.specific-offset.file",
    ),
    Option(
        "startup.position",
        "int",
        "4",
        "Byte position in that file, between two transactions.",
        ">= 4",
        "scan.startup.specific-offset.pos",
    ),
    Option(
        "startup.gtidSet",
        "string",
        "with specific: this or the file",
        "MySQL: the stream has all transactions that are not in this set.",
        flink="scan.startup.specific-offset.gtid-set",
    ),
)


def option_table() -> str:
    """The table of options for the documentation, in Markdown."""
    lines = [
        "| option | type | default | bounds | meaning | in Flink CDC | in Debezium |",
        "|---|---|---|---|---|---|---|",
    ]
    for o in OPTIONS:
        flink, debezium = (f"`{name}`" if name else "" for name in (o.flink, _DEBEZIUM.get(o.name, "")))
        lines.append(f"| `{o.name}` | {o.type} | {o.default} | {o.bounds} | {o.doc} | {flink} | {debezium} |")
    return "\n".join(lines) + "\n"
