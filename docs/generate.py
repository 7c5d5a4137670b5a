"""Writes the reference pages from the code's own tables: ``python -m docs.generate``."""

from __future__ import annotations

from pathlib import Path

from backlog_spark.common.settings import settings_table
from connectors.mysql_cdc.catalogue import option_table
from connectors.mysql_cdc.output.metadata import METADATA
from connectors.mysql_cdc.schema.charsets import CHARSETS
from connectors.mysql_cdc.schema.types import type_table

from . import hybrid

HERE = Path(__file__).parent

_MARIADB_REFUSALS = (
    ("`log_bin_compress=ON`", "Compressed rows are not read. Compressed events of other tables do not matter."),
    (
        "`rpl_semi_sync_master_wait_point=AFTER_SYNC`, `binlog_optimize_thread_scheduling=OFF`",
        "A snapshot's place in the log may then be ahead of the rows that it sees. Neither is the default.",
    ),
    ("`binlog_row_image=FULL_NODUP`", "Its images leave columns out."),
    ("System-versioned tables", "The log also has the rows of their history, with the same keys."),
    (
        "`COMPRESSED` columns, `YEAR(2)`, and those that SHOW CREATE TABLE marks `/* old */` or `/* mariadb-5.3 */`",
        "Stored in other forms; `MODIFY` them, or `ALTER TABLE … FORCE`.",
    ),
)


def _unlogged() -> str:
    return (
        "## What a server does not log\n\n"
        "Refused before a row is read: foreign keys of a captured table that cascade; databases that `binlog-do-db` "
        "or `binlog-ignore-db` keep out of the log (where such an option concerns other databases alone, a warning: "
        "an ALTER TABLE run from one of those is not logged); and a replica with `log_slave_updates=OFF` (a MariaDB "
        "whose replication is stopped says that it is one only to a user with SLAVE MONITOR).\n\n"
        "XA transactions on a captured table stop the query. One that was prepared before a stream began would be "
        "missed: a snapshot, and `startup.mode=latest`, begin when there is none, and are refused when one has been "
        "there for 10 s. MySQL tells of them only with XA_RECOVER_ADMIN; without it a warning is logged if the server"
        " has had any. With `timestamp` or `specific`, choose a place before which none was prepared and not "
        "committed.\n\n"
        "Limits that the server puts on sessions (`sql_select_limit`, `max_join_size`, `max_execution_time`, "
        "`max_statement_time`, a short `wait_timeout`) do not hold for the source's own.\n\n"
        "MySQL writes a transaction to its log, then syncs the log (`sync_binlog=1`), and only then sends it and shows "
        "its rows. A batch that is planned in between waits for the sync, so `binlog_group_commit_sync_delay` adds to "
        "its latency, and a disk that stalls for a minute stops the query with an error.\n\n"
    )


def _mariadb() -> str:
    rows = "".join(f"| {what} | {why} |\n" for what, why in _MARIADB_REFUSALS)
    return (
        "## MariaDB\n\n"
        "Any number of replication domains is read, with or without `gtid_strict_mode`. A checkpoint is about one "
        "server's binary log: it keeps byte positions, and the GTIDs there to see that it is still the same log. "
        "With another server of the same replication, one with `log_slave_updates=ON`, a query goes on at the place in "
        "its log that comes after the same last transaction of each domain. It is refused where there is none: the "
        "server has not caught up or has purged it, or has transactions of its own or the domains' in another order. "
        "JSON is text, as in MariaDB itself. Galera has not been tried.\n\n"
        "| refused | why |\n|---|---|\n" + rows + "\n"
    )


_KEYS = """## Keys

A row is known by its **primary key**: of one column or several, of any type of the table below but float and double;
text in Unicode, ascii, latin1, latin2, cp1250, cp1251 or koi8r. Text keys are taken byte by byte, as Spark compares
them: when `'a'` becomes `'A'`, which MySQL may hold equal, the stream has a delete and an insert. A zero or partial
date in a key stops the query.

The snapshot is **cut by** the primary key's leading columns that are integers, decimals, dates and times, binary or
text, or by `chunkKeyColumn`. Order is the server's own, collations included. Not by text in MySQL's `cp1250_czech_cs`
and, in MariaDB, collations that end in `_ai_cs`, `_as_ci`, `_as_cs`, `_w2` or `_0900_bin` and the `_nopad_` ones but
`uca1400`'s: what the server tells of their order is not what it sorts by.

| the table has | the snapshot is |
|---|---|
| a primary key, and is cut by columns of it | any number of batches, read in parallel |
| a primary key, and is cut by a column outside of it | one batch, read in parallel |
| a primary key that begins with another type, such a collation or a prefix of a column | one batch, read by one task |
| no primary key, and `chunkKeyColumn` | one batch, read in parallel |
| no primary key | one batch, read by one task |

The guarantee is the same for all: each row as of its batch's watermark, then every later change, exactly once, and
the same rows again after a failure. Without a primary key this holds for the number of equal rows: an update is a
pre- and a postimage, and no sink can upsert by a key.

Only what is part of the primary key stays with a row, so only that may cut the snapshot into batches of different
times; otherwise `maxRowsPerBatch` and `intervalDuringBacklog` do not bound the snapshot. A unique index is not taken
for a primary key, since it can be dropped while the query runs. Without a primary key a task must begin its read
while no commit of the table is under way (in MariaDB: while the server begins no new binary log file); it tries up to
500 times, and then asks for a primary key.

Chunks of a batch with a limit on rows are counted along the index: exact, 0.25 to 0.7 s per million rows, at most one
batch ahead of reading (with `intervalDuringBacklog=0` and keys that arithmetic cannot cut, that is the whole table).
With `intervalDuringBacklog` and one integer or decimal key column whose distribution factor is within its bounds,
they are cut by arithmetic, about a millisecond a chunk. Each piece is then checked against the server's estimate of
its rows, so that gaps make no empty chunks and a crowded range, which is counted, no giant ones. Rows that share one
value of a `chunkKeyColumn` are always in one chunk; a chunk of more than 28 MB goes on to Spark as it is read.

The total that a query's progress shows is counted where the server does that within half a second. Else it begins as
InnoDB's statistics, which may be wrong by half, and is corrected with each batch where the key is a number.

A worker of a snapshot stays under 300 MB, however large the table, its rows together and what changed meanwhile: the
log since the watermark, and what of it is to be taken out of a chunk, are in temporary files (`TMPDIR`). A single row
takes a few times its own size. Without a primary key a chunk is compared with all that changed in it a part at a time,
which takes long where most of a large chunk changed.

"""


_CHARSETS = f"""
## Character sets

{", ".join(sorted(CHARSETS))}.

That is all that the servers have, and the text is what their own conversion to utf8mb4 makes of it, in the snapshot and
in the binary log. Bytes that a set has no character for are `?`: 0x81 in cp1250, rows without an assignment in the East
Asian sets, halves of surrogate pairs in ucs2 and utf32. In a primary key, where such texts would not tell rows
apart, they stop the query; so do halves of surrogate pairs in MariaDB's utf8mb3 and utf8mb4. Labels of ENUM and SET
with characters beyond U+FFFF are listed by the servers themselves with `?` for each, and from the log are so read.

"""

_START = """## Where it starts

Without a snapshot (`startup.mode` latest, earliest, timestamp, specific) nothing is backlog. The first batch, which has
no rows, decides the place and keeps it in its offset; a query that is started again goes on from there. `earliest` and
`timestamp` may meet changes from before the table had its present columns: these stop the query, start later then. With
MariaDB a place is given by file and position. With `snapshot` all rows are in the end as of one place in the log, which
is read that far; the offset then says `isFinished` and the source is asked for nothing more.

"""

_TABLES = """## Many tables

`table` takes several names, `tablePattern` a regular expression over `database.table`. Their snapshots are \
taken one after the other, in batches that may end in the middle of one table or hold many small ones; a table \
is exact as it would be alone. Which tables match is settled when the checkpoint is made: later ones are told in \
a warning and not captured, unless `scanNewlyAddedTables=true`. A table that is gone stops the query.

With it, tables that match, or that `table` names when the query is started again, are looked for every 10 \
seconds. The snapshot of a new one is read in batches of `maxRowsPerBatch` rows while the others are followed; \
that is not backlog (`isProcessingBacklog` stays false). With `format=row` a new table of other columns stops \
the query.

With `format=row`, the default, all tables must have the same columns, as shards have. `_database` and `_table` \
then say which one a row is of, and are the first two columns of its key for `DeltaUpsert`, since two shards may \
well have rows of the same key.

With `format=debezium` they may have any. The stream has a `key` and a `value`, both JSON, as Debezium writes \
them without schemas, then the metadata columns:

| in the value | |
|---|---|
| `before`, `after` | The row's images; null where there is none. |
| `op` | `r` (snapshot), `c`, `u`, `d`. An update that changes the primary key is a `d` and a `c`. No tombstones. |
| `source` | `version`, `connector` (`mysql`), `name` (`mysql_cdc`), `db`, `table`, `ts_ms`, `snapshot`, `file`, \
`pos` (of the row image), `server_id`, `gtid`. |
| `ts_ms` | When the statement ran, also outside of `source`, where Debezium has the time of its own processing: \
a batch that is read again is the same. |
| `transaction` | null |

Values are as with Debezium's `decimal.handling.mode=string`, `time.precision.mode=adaptive_time_microseconds` \
and `binary.handling.mode=base64`: DATE in days, DATETIME in milliseconds (from four digits on in microseconds), \
TIME in microseconds, TIMESTAMP as text in UTC, BIT(1) as boolean. `BIGINT UNSIGNED` is its number, also beyond \
2^63.

"""

_SCHEMA_CHANGES = """## Schema changes

The rows of the binary log carry no column names unless `binlog_row_metadata=FULL`, so what a row's values are \
follows from the statements in the log. With `schemaChange=evolve`, the default, each `ALTER TABLE` of a \
captured table is followed: the offset, in the checkpoint, keeps the columns at its position, the statements \
lead from there to what `information_schema` says now, and where they do not the query stops. A value never goes \
into another column. A batch ends with the statement.

Spark fixes a stream's columns when it is declared, so:

| the statement | the stream |
|---|---|
| adds a column | Reads all that comes before, then stops and says so. Started again as it is, it goes on from \
its checkpoint and has the column: NULL in rows from before, whatever default the server gave them. |
| drops a column | Goes on; the column is NULL from there. Started again, it no longer has it. |
| renames a column, or gives it a wider type | Stops as for an added one. Started again, it has the new name or \
type throughout, also in rows that were logged before. |
| moves columns, adds or drops an index, a comment, a default | Goes on. |
| changes the primary key, a type so that old values do not fit, a key's collation; TRUNCATE, DROP, RENAME \
TABLE; partitions emptied or exchanged | Stops after all that comes before; a new checkpoint is needed. |

A `BacklogQuery` starts again by itself (`spark.backlog.restart.maxAttempts`), and `DeltaUpsert` and \
`DeltaAppend` add the column to their table with `merge_schema=True`. With plain `readStream`, start the query \
again. With `format=debezium` no new start is needed: the columns are inside of the envelopes, under their \
present names.

During the snapshot, added and moved columns are crossed: a chunk whose watermark is before the statement is \
read as of then. A column that is dropped, renamed or widened while a chunk is read stops the query. A stream \
that starts at a place in the log (`startup.mode` earliest, timestamp, specific) must start after the last \
statement that altered its tables.

Servers keep hidden columns for indexes on expressions (MySQL) and for UNIQUE keys on BLOB, TEXT and other long \
columns (MariaDB); they are left out. With `binlog_row_metadata=FULL` the log tells their names. Without it a stream \
stops where such an index is added, and goes on when it is started again as it is. Where a MySQL table that has one \
loses, moves or gets columns, other than at its end, it stops; started again it goes on if it had read all that was \
before the ALTER TABLE, else it needs a new checkpoint.

Between two statements that both give one column another definition, both unread by the checkpoint, that \
column's type is not known: the query stops. `schemaChange=fail` stops at the first statement that may change \
columns; `evolve` goes on from there on the same checkpoint.

"""

_LAG = """## Backlog in the binary log

With `backlogLagThreshold` the binary log counts as backlog (`isProcessingBacklog`) from the end of a batch on that is
further behind the log's end than that, and until a batch comes closer; also right after a snapshot that took longer.
Batches are then sized as in the snapshot. As the backlog has updates and deletes, `DeltaUpsert` merges it.

"""

_LOGIN = """## Passwords and TLS

The password comes from `password`, a file or an environment variable; it is in no log, offset, progress report or
error text of the source. Spark's plans, and with them `explain`, errors of analysis and the event log, do not show
the option `password` as long as `spark.redaction.regex` has its default, and after `bs.register` whatever that is
(see hybrid's Secrets, also for sources that Spark finds by itself). `caching_sha2_password` works with TLS and,
through the server's public key, without it. `ssl.mode=verify_ca` or more should be used across networks: `preferred`
and `required` do not know whom they talk to. Files and variables are looked for on the driver's machine and on those
of the executors.

"""


def _metadata() -> str:
    rows = "".join(f"| `{name}` | {spark.simpleString()} | {says} |\n" for name, (spark, _, says) in METADATA.items())
    return "## Metadata columns\n\n| column | type | |\n|---|---|---|\n" + rows + "\n"


def pages() -> dict[str, str]:
    """File name -> text."""
    return {
        "settings.md": "# Settings\n\nGiven in spark-defaults or with `--conf`.\n\n" + settings_table(),
        "hybrid.md": hybrid.page(),
        "mysql_cdc.md": (
            "# mysql_cdc\n\n"
            "Reads MySQL 8.0 to 9.7 and MariaDB 10.11 and 11.4 (tested on MySQL 8.0.15 and 9.7.4, MariaDB 10.11.5 and "
            "11.4.5; on an installed one with BACKLOG_SPARK_MYSQLD=/usr/sbin/mysqld make test). Both "
            "need `log_bin`, `binlog_format=ROW` (MariaDB's default is MIXED), `binlog_row_image=FULL`, and a user "
            "with SELECT on the table, REPLICATION SLAVE and REPLICATION CLIENT (MariaDB calls the last one BINLOG "
            "MONITOR). MySQL also needs `binlog_order_commits=ON`, and `gtid_mode=ON` or a user with RELOAD: without "
            "GTIDs each batch of the snapshot begins with FLUSH BINARY LOGS. The table needs InnoDB, and a "
            "primary key unless one batch and no upserts will do (see Keys).\n\n"
            "ALTER TABLE is followed (see Schema changes). The query stops with an error at anything in the binary log "
            "that would lose changes, such as statement-format changes, or of which it cannot tell what tables they "
            "change. Statements that write only a table of the schema `mysql` pass, such as Amazon RDS's heartbeat; "
            "do not make a view of a captured table there. `_commit_seq` refers to one server's binary "
            "log, and grows on for each key after a move to another.\n\n"
            "A transaction may make a log file larger than 4 GiB. A batch that ends inside of such a file is followed "
            "by one that reads the file from its beginning. When a query starts, the server's log is compared with the "
            "GTIDs in the checkpoint: one that was reset, or restored to another state, is refused.\n\n"
            "With GTIDs on MySQL the query may go on at another server of the same replication: change `host`, or let "
            "the address move, and start it again. It goes on once the server has all that the checkpoint includes, "
            "whatever the order of transactions in its log; no task reads from a server that its batch was not planned "
            "for.\n\n"
            "A chunk of the snapshot is one SELECT in a transaction of its own. Its rows come in the server's binary "
            "protocol, which costs the server less than half of what text does; a server whose "
            "`max_prepared_stmt_count` is 0 is refused. A chunk of up to 28 MB is read as a whole before its rows go "
            "on to Spark, so that an ALTER TABLE has to wait for no longer than that read takes. Of a larger one rows "
            "go on as they come, and an ALTER TABLE waits until Spark has taken them: set `chunkSize` lower where rows "
            "are large.\n\n"
            + _unlogged()
            + _mariadb()
            + "## Options\n\n"
            + option_table()
            + "\n"
            + _START
            + _KEYS
            + _TABLES
            + _SCHEMA_CHANGES
            + _LAG
            + _metadata()
            + _LOGIN
            + "## Types\n\n"
            "Zero, partial and impossible dates become NULL, or stop the query with `zeroDate=error`. YEAR 0000 is 0. "
            "TIME is text as MySQL prints it. UUID, INET6 and INET4 are MariaDB's, where JSON is LONGTEXT and read as "
            "it was written. MySQL's JSON is the server's own text, "
            "with numbers that have a fraction or an exponent written without exponent and trailing zeros. "
            "Geometry is four bytes with the SRID, the least significant first, then WKB.\n\n"
            + type_table()
            + _CHARSETS
        ),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text.rstrip("\n") + "\n")
