"""The options of ``mysql_cdc``, as documented, with their names in Flink CDC and Debezium (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from .binlog.inflating import MOST_INFLATED
from .output.metadata import BY_DEFAULT, METADATA

__all__ = ["OPTIONS", "Option", "option_table"]


@dataclass(frozen=True)
class Option:
    """One option, as documented."""

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
    "chunkSize": "incremental.snapshot.chunk.size",
    "maxRowsPerBatch": "max.batch.size",
    "startup.mode": "snapshot.mode",
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
        "Needs SELECT on the table, REPLICATION SLAVE and REPLICATION CLIENT (MariaDB: BINLOG MONITOR).",
        flink="username",
    ),
    Option("password", "string", '""', "Never written to logs, offsets or errors.", flink="password", secret=True),
    Option(
        "passwordFile",
        "path",
        "unset",
        "File with the password, in place of `password`. The line end does not count. The file is read at each "
        "connection, so it may change. Driver and executors need it.",
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
        "As the mysql client's --ssl-mode. preferred: TLS if the server has it, without a check of its certificate. "
        "verify_ca: a known authority must have signed its certificate. verify_identity: the certificate must also "
        "name the host.",
        "disabled, preferred, required, verify_ca, verify_identity",
        "jdbc.properties.sslMode",
    ),
    Option(
        "allowPublicKeyRetrieval",
        "boolean",
        "false",
        "Without TLS, whether to take the server's public key from the server itself, to encrypt the password for "
        "`caching_sha2_password` and `sha256_password`. Whoever poses as the server then gets the password.",
        "true, false",
        "jdbc.properties.allowPublicKeyRetrieval",
    ),
    Option("ssl.ca", "path", "the system's", "Certificates of the known authorities (PEM)."),
    Option("ssl.cert", "path", "unset", "The client's certificate (PEM); needs `ssl.key`."),
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
        "many connections, a lock timeout, a failover. It counts from the last success.",
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
        "How often the server shows on an idle connection of the binary log that it lives. A connection that is silent "
        "for three intervals is opened again.",
        "1 s..1 h",
        "heartbeat.interval",
    ),
    Option(
        "serverId",
        "range",
        "1073741824-4294967295",
        "Ids `first-last` for reading the binary log. Two readers with one id end each other, so each reader draws its "
        "own from the range. The planner and each task need one. No replica may have one of them.",
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
        "Captures every table whose whole `database.table` it matches, in Python's syntax. The checkpoint fixes the "
        "tables, except with `scanNewlyAddedTables`.",
        flink="database-name, table-name",
    ),
    Option(
        "scanNewlyAddedTables",
        "bool",
        "false",
        "Also captures tables that are added later: those that the options name now and those that `tablePattern` "
        "matches. The source looks for them every 10 seconds and reads their snapshots while the others go on.",
        "true, false; with startup.mode=initial",
        "scan.newly-added-table.enabled",
    ),
    Option(
        "tables.exclude",
        "regular expressions",
        "unset",
        "Separated by commas. A table whose whole `database.table` one matches is not captured.",
        flink="database-name, table-name",
    ),
    Option(
        "columns.include",
        "regular expressions",
        "every column",
        "Separated by commas. Only columns whose whole `database.table.column` one matches are read, and those of the "
        "key. Upper and lower case do not matter (see Columns).",
        "not with columns.exclude",
    ),
    Option(
        "columns.exclude",
        "regular expressions",
        "unset",
        "The same, for columns that are not read. A column of the key cannot be excluded.",
        "not with columns.include",
    ),
    Option(
        "columns.mask",
        "regular expressions",
        "unset",
        "The same, for columns whose values become a salted SHA-256: 64 hexadecimal digits. NULL stays NULL.",
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
        "Reads TINYINT(1), signed, as boolean: 0 is false, every other value true. In a key it stays a number.",
        "true, false",
    ),
    Option(
        "messageKeyColumns",
        "names",
        "unset",
        "`table:column,column;…`, a regular expression for each table: the columns of a UNIQUE key, NOT NULL, that is "
        "the key of a table without a primary one (see Keys).",
    ),
    Option(
        "skipped.operations",
        "letters",
        "none",
        "Kinds of changes in the log that are dropped: c (inserts), u (updates), d (deletes), separated by commas.",
        "c, u, d, none",
    ),
    Option(
        "format",
        "string",
        "row",
        "row: the table's columns; several tables must have the same. debezium: a `key` and a `value` with Debezium's "
        "envelope, as JSON, for tables of any columns (see Many tables).",
        "row, debezium",
    ),
    Option(
        "schemaChange",
        "string",
        "evolve",
        "evolve: the stream goes on after an ALTER TABLE if its columns allow it. Otherwise it stops when it has read "
        "everything before, and goes on after a restart (see Schema changes). fail: it stops at the first ALTER TABLE "
        "that may change columns.",
        "evolve, fail",
    ),
    Option(
        "tableSwap",
        "string",
        "follow",
        "Where a RENAME gives a captured table's name to another table. follow: the stream goes on with it. tools: it "
        "does so only for the tables of gh-ost and pt-online-schema-change, and stops at others (see Online schema "
        "change). schemaChange=fail stops at each.",
        "follow, tools",
    ),
    Option(
        "binlog.statement.ignore",
        "regular expression",
        "unset",
        "Statement-format changes of tables whose whole `database.table` it matches do not stop the query (see "
        "Statement-format changes). It must match no captured table.",
    ),
    Option(
        "tableEvents",
        "string",
        "emit",
        "What TRUNCATE and DROP of a captured table do (see Truncated and dropped tables). emit: the stream has a row "
        "for the statement, and `DeltaUpsert` removes the table's rows. skip: the stream goes on without such a row, "
        "and the target keeps the rows. fail: the query stops; restarted with another value it goes on from there. "
        "fail is the default if `metadataColumns` leaves out `_change_type` or, with several tables, `_database` or "
        "`_table`.",
        "emit, skip, fail",
    ),
    Option(
        "zeroDate",
        "string",
        "null",
        "What zero, partial and impossible dates (`0000-00-00`, `2024-00-10`, `2024-02-31`) become, as Spark has no "
        "value for them. null: NULL. error: the query stops and names table, column and date. In a key both stop "
        "the query.",
        "null, error",
    ),
    Option(
        "chunkSize",
        "int",
        "100000",
        "Rows of one task's SELECT in the snapshot phase; approximate where chunks are cut by arithmetic.",
        ">= 1",
        "scan.incremental.snapshot.chunk.size",
    ),
    Option(
        "chunkKeyColumn",
        "string",
        "the primary key",
        "Column that cuts the snapshot into chunks. An index must begin with it. If it is outside the primary key, or "
        "there is none, the whole snapshot is one batch (see Keys).",
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
        "The same, for the upper bound: it must be at most this.",
        ">= 1",
        "chunk-key.even-distribution.factor.upper-bound",
    ),
    Option(
        "maxRowsPerBatch",
        "int",
        "200000",
        "Maximum rows per batch. A batch never splits a transaction, a step between two keys or rows of one chunk key, "
        "so a single larger transaction is one batch. With `intervalDuringBacklog`, the snapshot phase uses it only if "
        "it is set; with 0, and for a snapshot that is one batch, not at all. In the binary log phase, unless it is "
        "set, a batch that leaves rows behind is followed by one of up to twice as many, at most 16 times the default. "
        "So the lag stays near the time of one commit.",
        ">= 1",
    ),
    Option(
        "maxRowBytes",
        "int",
        "268435456",
        "Most bytes of one row. A larger row stops the query with an error, so that a worker does not run out of "
        "memory: a row takes a few times its own size.",
        "16777216..1073741824",
    ),
    Option(
        "maxInflatedBytes",
        "int",
        str(MOST_INFLATED),
        "Bytes that one compressed transaction of MySQL, or compressed event of MariaDB, may inflate to. A larger one "
        "stops the query. Transactions are inflated piece by piece, so this does not bound memory.",
        ">= 1",
    ),
    Option(
        "metadataColumns",
        "names",
        ",".join(BY_DEFAULT) + "; with several tables or format=debezium also _database, _table",
        "Extra columns after the table's that tell where a row comes from (see Metadata columns). `DeltaUpsert` needs "
        "the default ones.",
        ", ".join(METADATA),
    ),
    Option(
        "interval",
        "duration",
        "unset",
        "In the binary log phase, the source gives at most one batch per interval. `BacklogQuery` sets it. "
        "`execution.checkpointing.interval` works too.",
    ),
    Option(
        "intervalDuringBacklog",
        "duration",
        "unset",
        "Snapshot batches are sized to take about this long; 0: one batch (FLIP-309). "
        "`execution.checkpointing.interval-during-backlog` works too.",
        "0 or >= interval",
    ),
    Option(
        "backlogLagThreshold",
        "duration",
        "unset",
        "The binary log phase is backlog too after a batch whose end is further behind the log's end than this, by "
        "the server's clock. Unset: only the snapshot is backlog.",
        "> 0",
    ),
    Option(
        "useProcessingTimeDuringBinlog",
        "boolean",
        "false",
        "From the binary log phase on, event time follows the system time (FLIP-326), for the timers of the operators "
        "behind it. Excludes `with_watermark`. Works in queries of `backlog_spark`; it does not change a plain "
        "`readStream`.",
        "true, false",
    ),
    Option(
        "queryToken",
        "string",
        "set by a query's runner",
        "Lets the source ask the query whether other sources are in backlog.",
        secret=True,
    ),
    Option(
        "pollWait",
        "int",
        "set by a query's runner",
        "Milliseconds that the source may wait for rows when Spark asks for some, if it is the query's only source.",
        ">= 0",
    ),
    Option(
        "availableNowTarget",
        "string",
        "latest",
        "Where `trigger(availableNow=True)` ends. latest: at the log's end when the run began. backlogEnd: with the "
        "snapshot. none: before anything new is read.",
        "latest, backlogEnd, none",
    ),
    Option(
        "startup.mode",
        "string",
        "initial",
        "Where the stream starts. initial: with a snapshot, then the binary log. snapshot: only the snapshot, with "
        "the log as far as its last batch needs it; then the source has finished. latest: the log from now on. "
        "earliest: the whole log that the server has. timestamp, specific: from the position in the options below.",
        "initial, snapshot, latest, earliest, timestamp, specific",
        "scan.startup.mode",
    ),
    Option(
        "startup.timestampMillis",
        "int",
        "with timestamp: required",
        "Milliseconds since 1970 (UTC). The stream starts with the first transaction that began in that second or "
        "later, by the server's clock.",
        ">= 0",
        "scan.startup.timestamp-millis",
    ),
    Option(
        "startup.file",
        "string",
        "with specific: this or the GTID set",
        "Binary log file to start in.",
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
