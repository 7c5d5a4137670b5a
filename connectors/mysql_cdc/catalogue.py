"""The options of ``mysql_cdc`` as the documentation lists them, with what they are called elsewhere (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from .output.metadata import BY_DEFAULT, METADATA

__all__ = ["OPTIONS", "Option", "option_table"]


@dataclass(frozen=True)
class Option:
    """One option, as the documentation has it."""

    name: str
    type: str
    default: str
    doc: str
    bounds: str = ""
    flink: str = ""  # the option of Flink CDC's MySQL connector that means the same
    secret: bool = False  # whether its values are for nobody to see


# The property of Debezium's MySQL connector that means the same, or nearly so.
_DEBEZIUM = {
    "host": "database.hostname",
    "port": "database.port",
    "user": "database.user",
    "password": "database.password",
    "serverId": "database.server.id",
    "table": "table.include.list",
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
        "File that holds the password, in the place of `password`; the line's end does not count. Read at each "
        "connection, so that it may change. Driver and executors need it.",
    ),
    Option(
        "passwordEnv",
        "string",
        "unset",
        "Environment variable that holds it, on the driver and the executors (`spark.executorEnv.…`).",
    ),
    Option(
        "ssl.mode",
        "string",
        "preferred",
        "As the mysql client's --ssl-mode. preferred: TLS if the server has it, without a look at its certificate. "
        "verify_ca: its certificate must be signed by a known authority; verify_identity: and name the host.",
        "disabled, preferred, required, verify_ca, verify_identity",
        "jdbc.properties.sslMode",
    ),
    Option("ssl.ca", "path", "the system's", "Certificates of the authorities that are known (PEM)."),
    Option("ssl.cert", "path", "unset", "Client's certificate (PEM); with `ssl.key`."),
    Option("ssl.key", "path", "unset", "Its private key (PEM), not encrypted."),
    Option(
        "serverId",
        "range",
        "1073741824-4294967295",
        "Ids `first-last` under which the binary log is read: two readers of one id end each other, so each "
        "reader draws its own from the range. Planner and tasks "
        "need one each; no replica may have it.",
        "1..4294967295, at least 16 ids",
        "server-id",
    ),
    Option(
        "table",
        "names",
        "this or tablePattern",
        "`database.table`, or several with commas between.",
        flink="database-name, table-name",
    ),
    Option(
        "tablePattern",
        "regular expression",
        "this or table",
        "Capture every table whose `database.table` it matches as a whole, in Python's syntax. Which they are is "
        "settled when the checkpoint is made, but for `scanNewlyAddedTables`.",
        flink="database-name, table-name",
    ),
    Option(
        "scanNewlyAddedTables",
        "bool",
        "false",
        "Capture tables that come later as well, those that the options name now and those that `tablePattern` "
        "matches: looked for every 10 seconds, and their snapshots are read while the others go on.",
        "true, false; with startup.mode=initial",
        "scan.newly-added-table.enabled",
    ),
    Option(
        "format",
        "string",
        "row",
        "row: the table's columns; several tables must have the same. debezium: for tables of any columns, a `key` and "
        "a `value` with Debezium's envelope, as JSON (see Many tables).",
        "row, debezium",
    ),
    Option(
        "schemaChange",
        "string",
        "evolve",
        "evolve: the stream goes on after an ALTER TABLE where its columns allow, else it stops when all before is "
        "read, and goes on when the query is started again (see Schema changes). fail: it stops at the first that may "
        "change columns.",
        "evolve, fail",
    ),
    Option(
        "zeroDate",
        "string",
        "null",
        "What becomes of zero, partial and impossible dates (`0000-00-00`, `2024-00-10`, `2024-02-31`), which Spark "
        "has no value for. null: NULL. error: the query stops and names table, column and date. In a key it stops "
        "either way.",
        "null, error",
    ),
    Option(
        "chunkSize",
        "int",
        "100000",
        "Rows of one task's SELECT in the snapshot phase. Where chunks are cut by arithmetic, about so many.",
        ">= 1",
        "scan.incremental.snapshot.chunk.size",
    ),
    Option(
        "chunkKeyColumn",
        "string",
        "the primary key",
        "Column that the snapshot is cut by. An index must begin with it. Outside the primary key, or without one, the "
        "whole snapshot is one batch (see Keys).",
        "a column of the table",
        "scan.incremental.snapshot.chunk.key-column",
    ),
    Option(
        "distributionFactorLower",
        "float",
        "0.05",
        "Chunks are cut by arithmetic, instead of stepping along the index, only if (greatest key - least key + 1) / "
        "rows is at least this. Heeded where a batch has no limit on rows: with `intervalDuringBacklog` and without "
        "`maxRowsPerBatch`.",
        "0..1",
        "chunk-key.even-distribution.factor.lower-bound",
    ),
    Option(
        "distributionFactorUpper",
        "float",
        "1000",
        "… and at most this.",
        ">= 1",
        "chunk-key.even-distribution.factor.upper-bound",
    ),
    Option(
        "maxRowsPerBatch",
        "int",
        "200000",
        "Most rows of a batch. A batch never splits a transaction, a step between two keys or rows of one chunk key, "
        "so a single larger transaction is one batch. With `intervalDuringBacklog` set, the snapshot phase heeds it "
        "only if it is given; with 0, and for a snapshot that is one batch, not at all. In the binary log phase a "
        "batch that leaves rows behind is followed by one of up to twice as many, at most 16 times the default, "
        "unless this is given: so the lag stays near the time of one commit.",
        ">= 1",
    ),
    Option(
        "metadataColumns",
        "names",
        ",".join(BY_DEFAULT) + "; with several tables or format=debezium also _database, _table",
        "Columns behind the table's, which tell of each row where it comes from (see Metadata columns). "
        "`DeltaUpsert` needs those of the default.",
        ", ".join(METADATA),
    ),
    Option(
        "interval",
        "duration",
        "unset",
        "In the binary log phase, hand out a batch at most once in this time. Set by `BacklogQuery`. "
        "`execution.checkpointing.interval` is read too.",
    ),
    Option(
        "intervalDuringBacklog",
        "duration",
        "unset",
        "Size snapshot batches so that each takes about this long; 0: one batch (FLIP-309). "
        "`execution.checkpointing.interval-during-backlog` is read too.",
        "0 or >= interval",
    ),
    Option(
        "backlogLagThreshold",
        "duration",
        "unset",
        "The binary log phase is backlog too, after a batch whose end is further behind the log's end than this, by "
        "the server's clock. Unset: only the snapshot is.",
        "> 0",
    ),
    Option(
        "useProcessingTimeDuringBinlog",
        "boolean",
        "false",
        "From the binary log phase on event time goes on with the system time (FLIP-326), for the timers of the "
        "operators behind it. Excludes `with_watermark`. Works in queries of `backlog_spark`; a plain `readStream` is "
        "not changed by it.",
        "true, false",
    ),
    Option(
        "queryToken",
        "string",
        "set by a query's runner",
        "How the source asks the query whether other sources are in backlog.",
        secret=True,
    ),
    Option(
        "pollWait",
        "int",
        "set by a query's runner",
        "Milliseconds for which the source may wait for rows when Spark asks for some, where it is the only one.",
        ">= 0",
    ),
    Option(
        "availableNowTarget",
        "string",
        "latest",
        "Where `trigger(availableNow=True)` ends: at the log's end when the run began, with the snapshot, or before "
        "anything new is read.",
        "latest, backlogEnd, none",
    ),
    Option(
        "startup.mode",
        "string",
        "initial",
        "Where the stream starts. initial: with a snapshot, then the binary log. snapshot: only the snapshot, with "
        "the log as far as its last batch needs it; the source is then finished. latest: the log from now on. "
        "earliest: all of it that the server has. timestamp, specific: from a place that the options below give.",
        "initial, snapshot, latest, earliest, timestamp, specific",
        "scan.startup.mode",
    ),
    Option(
        "startup.timestampMillis",
        "int",
        "with timestamp: required",
        "Milliseconds since 1970 (UTC). From the first transaction that began in that second or later, by the server's "
        "clock.",
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
        "Byte in that file, between two transactions.",
        ">= 4",
        "scan.startup.specific-offset.pos",
    ),
    Option(
        "startup.gtidSet",
        "string",
        "with specific: this or the file",
        "MySQL: all transactions that are not in this set.",
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
