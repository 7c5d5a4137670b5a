"""The page of the source ``mysql_cdc``: its text, and tables from the code."""

from __future__ import annotations

from backlog_spark.connectors.mysql_cdc.catalogue import option_table
from backlog_spark.connectors.mysql_cdc.output.metadata import METADATA
from backlog_spark.connectors.mysql_cdc.schema.charsets import CHARSETS
from backlog_spark.connectors.mysql_cdc.schema.types import type_table

__all__ = ["page"]

_MARIADB_REFUSALS = (
    (
        "`rpl_semi_sync_master_wait_point=AFTER_SYNC`, `binlog_optimize_thread_scheduling=OFF`",
        "The log position of a snapshot may then be ahead of the rows that it sees. Neither is the default.",
    ),
    ("`binlog_row_image=FULL_NODUP`", "Its images leave columns out."),
    ("System-versioned tables", "The log also has the rows of their history, with the same keys."),
    (
        "`COMPRESSED` columns, `YEAR(2)`, and those that SHOW CREATE TABLE marks `/* old */` or `/* mariadb-5.3 */`",
        "They are stored in other forms. `MODIFY` them, or use `ALTER TABLE … FORCE`.",
    ),
)


_SWAPS = """## Online schema change

gh-ost and pt-online-schema-change copy a table into a shadow table of the new form, and then rename the shadow to the
table's name. The stream follows the *name*, in the snapshot and in the log:

* It goes on with the table that has the name. Rows that the tool copied are changes of the shadow, not of the
  captured table. Later changes of the table that was renamed away are not read.
* The new columns are treated as after an ALTER TABLE (see Schema changes). Columns of both tables with the same name
  are the same column. A column that the tool renamed counts as dropped and added.
* The new table needs the same primary key.
* The snapshot is not read again: the tools' contract is that the new table has the old one's rows.
  pt-online-schema-change does not keep it on MariaDB under UPDATE IGNORE: triggers also fire for rows that stay as
  they are.

The same holds for `RENAME TABLE t TO t_old, t_new TO t` by hand, for two RENAMEs, and for ALTER TABLE … RENAME. For
20 s no table may have the name; then the query stops. It can be started again when a table has it.

**If `t_new` has other rows** than `t`, the target keeps the old rows and gets the changes of the new ones. The log
cannot tell this from a copy. So the source logs a warning at each swap whose table is not named as the tools name it
(`_t_gho`, `_t_new`, `__t_new`). With `tableSwap=tools` the query stops there instead. To replace a table's rows, use
DELETE and INSERT, or a new checkpoint and a new target. Two captured tables that swap their names stop the query.

**Several changes at once.** When the stream is behind, it also needs the columns between two swaps, or between a swap
and an ALTER TABLE that drops or moves columns. It has them if the shadow was made in the part of the log that it
reads, or with `binlog_row_metadata=FULL`. Otherwise it stops.

`tablePattern` does not capture tables that the tools make of a table that it matches too: `_t_gho`, `_t_ghc`,
`_t_del`, `_t_new`, `_t_old`. To capture one, name it in `table`, or use a pattern that does not match `t`.

"""

_STATEMENTS = """## Statement-format changes

A session with `binlog_format=STATEMENT` logs its statements instead of rows. The query stops at such a change if it
may reach a captured table: directly, or through a view, a trigger or a function. The error names the statement's
tables and none of its values. These pass:

* writes of tables in the schema `mysql`: heartbeats and settings of Amazon RDS and Aurora (`mysql.rds_…`), Google Cloud
  SQL (`mysql.heartbeat`), Azure and Alibaba Cloud. Do not make a view of a captured table there;
* writes of `percona.checksums` and `percona.heartbeat`: pt-table-checksum, which only reads the captured tables, and
  pt-heartbeat;
* writes of tables that `binlog.statement.ignore` matches: the same tools with other tables, your own heartbeats.

A statement passes if it is an INSERT, REPLACE, UPDATE or DELETE of one table, and calls only the server's own
functions. It may read any table, but no view whose functions write. The tables of the last two points must have no
triggers and be no views. The source refuses a `binlog.statement.ignore` that matches such a table, as far as its user
may see triggers, and stops where one is created.

"""

_UNLOGGED = """## What a server does not log

Refused before a row is read:

* foreign keys of a captured table that cascade;
* databases that `binlog-do-db` or `binlog-ignore-db` keep out of the log. If such an option concerns only other
  databases, the source logs a warning: an ALTER TABLE that runs from one of those is not logged;
* a replica with `log_slave_updates=OFF`. A MariaDB whose replication is stopped shows that it is a replica only to a
  user with SLAVE MONITOR.

**XA transactions** on a captured table stop the query. A transaction that was prepared before a stream began would be
missed. So a snapshot, and `startup.mode=latest`, begin when there is none, and are refused when one has existed for
10 s. MySQL lists them only with XA_RECOVER_ADMIN. Without it the source logs a warning if the server has had any.
With `timestamp` or `specific`, choose a position before which no transaction was prepared and not committed.

**Lost connections.** Each connection tries again after an error that may pass: a lost or idle connection, a server
that restarts, shuts down or has too many connections, a lock timeout, a failover. `connect.max-retries` and
`connect.backoff` bound this for all connections alike. Only a host that cannot be reached when a stream is declared is
reported at once. Reading that began by GTID resumes by GTID. A planner whose address moves to another server of the
replication goes on there; a task fails, and its batch is planned again.

**Session limits** of the server (`sql_select_limit`, `max_join_size`, `max_execution_time`, `max_statement_time`, a
short `wait_timeout`) do not apply to the source's sessions.

**Syncs.** MySQL writes a transaction to its log, then syncs the log (`sync_binlog=1`), and only then sends it and
shows its rows. A batch that is planned in between waits for the sync. So `binlog_group_commit_sync_delay` adds to its
latency, and a disk that stalls for a minute stops the query with an error.

"""


def _mariadb() -> str:
    rows = "".join(f"| {what} | {why} |\n" for what, why in _MARIADB_REFUSALS)
    return _MARIADB + "| refused | why |\n|---|---|\n" + rows + "\n"


_MARIADB = """## MariaDB

The source reads any number of replication domains, with or without `gtid_strict_mode`. A checkpoint belongs to one
server's binary log. It keeps byte positions, and the GTIDs there to verify that it is still the same log.

The query can move to another server of the same replication that has `log_slave_updates=ON`. It resumes at the
position in that server's log after the same last transaction of each domain. It is refused if there is no such
position: the server has not caught up, has purged it, has transactions of its own, or has the domains' transactions
in another order.

JSON is text, as in MariaDB itself. Galera has not been tried.

"""

_KEYS = """## Keys

The **primary key** identifies a row. It may have one column or several, of any type of the table below except float
and double. Text must be in Unicode, ascii, latin1, latin2, cp1250, cp1251 or koi8r. Text keys are compared byte by
byte, as in Spark: when `'a'` becomes `'A'`, which MySQL may hold equal, the stream has a delete and an insert. A zero
or partial date in a key stops the query.

The snapshot is **cut by** the primary key's leading columns that are integers, decimals, dates and times, binary or
text, or by `chunkKeyColumn`. The order is the server's own, collations included. Some collations cannot cut, because
the server does not sort by the order that it reports: MySQL's `cp1250_czech_cs`, and in MariaDB those that end in
`_ai_cs`, `_as_ci`, `_as_cs`, `_w2` or `_0900_bin`, and the `_nopad_` ones except `uca1400`'s.

| the table has | the snapshot is |
|---|---|
| a primary key, and is cut by columns of it | any number of batches, read in parallel |
| a primary key, and is cut by a column outside of it | one batch, read in parallel |
| a primary key that begins with another type, such a collation, a prefix or a mask | one batch, read by one task |
| no primary key, and `chunkKeyColumn` | one batch, read in parallel |
| no primary key | one batch, read by one task |

The guarantee is the same for all: each row as of its batch's watermark, then every later change, exactly once, and
the same rows again after a failure. Without a primary key this holds for the number of equal rows: an update is a
pre- and a postimage, and no sink can upsert by a key.

Only columns of the primary key stay with a row. So only they may cut the snapshot into batches of different times.
Otherwise `maxRowsPerBatch` and `intervalDuringBacklog` do not bound the snapshot.

**`messageKeyColumns`** makes a UNIQUE key of NOT NULL columns the key of a table without a primary key, for everything
on this page. A key that is not unique, may be NULL, or has only a prefix of a column is refused. The query stops at a
statement that drops or renames the key, since rows could repeat it from there on.

Without a primary key a task must begin its read while no
commit of the table is under way (in MariaDB: while the server begins no new binary log file). It tries up to 500
times, and then asks for a primary key.

**Chunks.** There are two ways to cut chunks:

* With a limit on rows, the chunks of a batch are counted along the index. This is exact, takes 0.25 to 0.7 s per
  million rows, and runs at most one batch ahead of reading. With `intervalDuringBacklog=0` and keys that arithmetic
  cannot cut, that batch is the whole table.
* With `intervalDuringBacklog`, and one integer or decimal key column whose distribution factor is within its bounds,
  chunks are cut by arithmetic. This takes about a millisecond per chunk.

Each piece cut by arithmetic is checked against the server's estimate of its rows. So gaps make no empty chunks, and a
crowded range, which is counted, makes no giant ones. Rows that share one value of a `chunkKeyColumn` are always in
one chunk. A chunk of more than 28 MB goes on to Spark while it is read.

**Offsets.** An offset has the key range and the low watermark of each batch. After 512 batches some go on at the
watermark of the batch before, so offsets stay small: 30 kB after a billion rows in 5,000 batches. A task of such a
batch reads the log since then once more, at most that of 10 batches.

**Total.** The total in a query's progress is counted if the server does that within half a second. Otherwise it
begins as InnoDB's statistics, which may be wrong by half, and each batch corrects it where the key is a number.

**Memory.** A worker of a snapshot stays under 300 MB, however large the table, its rows together and the changes
meanwhile are. The log since the watermark, and the part of it to subtract from a chunk, are in temporary files
(`TMPDIR`). A single row takes a few times its own size. Without a primary key a chunk is compared with all its
changes one part at a time, which takes long if most of a large chunk changed.

"""


_COLUMNS = """## Columns

`columns.include`, `columns.exclude` and `columns.mask` are regular expressions for the whole
`database.table.column`, without regard to upper and lower case. At the first start a pattern that matches nothing is
refused. The patterns mean the present names: look at them before you rename a column.

* An **excluded** column is not selected, and skipped in the log. It may have any type, so a table with a column that
  the source does not read can be captured without it. Adding, changing or dropping such a column does not stop the
  stream. Columns of the key are always read.
* A **masked** column is text: SHA-256 of `columns.mask.secretSalt` and the value's text, in hexadecimal digits, as
  with Debezium's `column.mask.hash.v2.SHA-256`. Numbers, dates and times are hashed as Spark prints them, binary values
  as they are. NULL stays NULL. Equal values have equal masks, in the snapshot, in the log and in all tables. So a
  masked key still identifies rows. It does not cut the snapshot, since the ends of chunks are in the checkpoint.
* With `tinyInt1isBit=true` a **TINYINT(1)** is boolean. The server lets it hold -128 to 127; all but 0 become true.

**On the same checkpoint** `tables.exclude` and `skipped.operations` may change. Other columns, another salt, another
`tinyInt1isBit` or key are refused before the query starts (`readStream`: at its first batch), and the error names both.

`skipped.operations` drops changes of the log, never rows of the snapshot. Without deletes, a target keeps rows that the
table has not.

"""

_INTRO = """# mysql_cdc

Reads the snapshot of a MySQL or MariaDB table, then its binary log.

| | |
|---|---|
| MySQL | 8.0 to 9.7 (tested on 8.0.15 and 9.7.4) |
| MariaDB | 10.11 and 11.4 (tested on 10.11.5 and 11.4.5) |
| server settings | `log_bin`, `binlog_format=ROW` (MariaDB's default is MIXED), `binlog_row_image=FULL` |
| MySQL also | `binlog_order_commits=ON`, and `gtid_mode=ON` or a user with RELOAD |
| user | SELECT on the table, REPLICATION SLAVE and REPLICATION CLIENT (MariaDB: BINLOG MONITOR) |
| table | InnoDB, and a primary key unless one batch and no upserts will do (see Keys) |

Without GTIDs each batch of the snapshot begins with FLUSH BINARY LOGS. `BACKLOG_SPARK_MYSQLD=/usr/sbin/mysqld make
test` tests an installed server.

**Changes of the schema.** The source follows ALTER TABLE (see Schema changes). The query stops with an error at
anything in the binary log that would lose changes, such as statement-format changes of captured tables, and at
statements whose tables it cannot determine.

**Order.** `_commit_seq` refers to one server's binary log. It keeps growing for each key after a move to another
server.

**Compressed logs.** The source reads compressed transactions (MySQL's `binlog_transaction_compression`) and compressed
events (MariaDB's `log_bin_compress`). A transaction is inflated piece by piece; a batch never ends inside of it. What
inflates to more than `maxInflatedBytes` stops the query. Rows that take less than a byte in the log get numbers of
their own: `_commit_seq` then runs ahead of the bytes.

**Partial JSON updates** (`binlog_row_value_options=PARTIAL_JSON`) are applied to the document in the before-image, so
the stream has whole documents.

**Tagged GTIDs** (`uuid:tag:number`, since MySQL 8.3) are GTIDs like others.

**Large log files.** A transaction may make a log file larger than 4 GiB. After a batch that ends inside such a file,
the next one reads the file from its beginning.

**Reset servers.** When a query starts, the server's log is compared with the GTIDs in the checkpoint. A server that
was reset, or restored to another state, is refused.

**Failover.** With GTIDs on MySQL the query may move to another server of the same replication. Change `host`, or let
the address move, and restart the query. It resumes once the server has everything that the checkpoint includes,
whatever the order of transactions in its log. No task reads from a server that its batch was not planned for.

**Snapshot reads.** A chunk of the snapshot is one SELECT in its own transaction. Rows come in the server's binary
protocol, which costs the server less than half of what text does. A server whose `max_prepared_stmt_count` is 0 is
refused. A chunk of up to 28 MB is read as a whole before its rows go on to Spark, so an ALTER TABLE waits only for
that read. Rows of a larger chunk go on while they are read, and an ALTER TABLE waits until Spark has taken them: set
a lower `chunkSize` where rows are large.

"""

_TYPES = """## Types

* Zero, partial and impossible dates become NULL, or stop the query with `zeroDate=error`.
* YEAR 0000 is 0.
* TIME is text as MySQL prints it.
* UUID, INET6 and INET4 are MariaDB's. There JSON is LONGTEXT and is read as it was written.
* MySQL's JSON is the server's own text. Numbers with a fraction or an exponent are written without exponent and
  trailing zeros.
* Geometry is four bytes with the SRID, the least significant first, then WKB.

"""

_CHARSETS = f"""
## Character sets

{", ".join(sorted(CHARSETS))}.

These are all character sets of the servers. The text is the result of the servers' own conversion to utf8mb4, in the
snapshot and in the binary log. Bytes without a character in a set become `?`: 0x81 in cp1250, rows without an
assignment in the East Asian sets, halves of surrogate pairs in ucs2 and utf32. In a primary key, where such texts
would not distinguish rows, they stop the query. So do halves of surrogate pairs in MariaDB's utf8mb3 and utf8mb4. The
servers list labels of ENUM and SET with characters beyond U+FFFF with `?` for each such character, so the source
reads them like that from the log too.

"""

_START = """## Where it starts

Without a snapshot (`startup.mode` latest, earliest, timestamp, specific) nothing is backlog. The first batch has no
rows. It decides the position and keeps it in its offset. A restarted query resumes from there.

* `earliest` and `timestamp` may reach changes from before the table had its present columns. These stop the query;
  start later then.
* In MariaDB a position is given by file and byte.
* With `snapshot` all rows end up as of one log position, and the log is read up to it. The offset then says
  `isFinished`, and the source is not asked for more.

"""

_TABLES = """## Many tables

`table` takes several names, `tablePattern` a regular expression over `database.table`. The snapshots are taken one
after the other, in batches that may end in the middle of one table or hold many small ones. Each table is as exact as
it would be alone. The checkpoint fixes which tables match. The source warns of later ones and does not capture them,
unless `scanNewlyAddedTables=true`. Other tables may be dropped and come back, and be taken off the list (see Truncated
and dropped tables).

`scanNewlyAddedTables` looks every 10 seconds for tables that match, or that `table` names when the query is
restarted. It reads the snapshot of a new table in batches of `maxRowsPerBatch` rows while it follows the others. That
is not backlog (`isProcessingBacklog` stays false). With `format=row` a new table with other columns stops the query.

With `format=row`, the default, all tables must have the same columns, as shards have. `_database` and `_table` then
name the table of a row. They are the first two columns of its key for `DeltaUpsert`, since two shards may have rows
with the same key.

With `format=debezium` tables may have any columns. The stream has a `key` and a `value`, both JSON, as Debezium
writes them without schemas, then the metadata columns:

| in the value | |
|---|---|
| `before`, `after` | The row's images; null where there is none. |
| `op` | `r` (snapshot), `c`, `u`, `d`, `t` (truncate). An update that changes the primary key is a `d` and a `c`. No \
tombstones. |
| `source` | `version`, `connector` (`mysql`), `name` (`mysql_cdc`), `db`, `table`, `ts_ms`, `snapshot`, `file`, \
`pos` (of the row image), `server_id`, `gtid`. |
| `ts_ms` | When the statement ran, also outside of `source`, where Debezium has its processing time: a batch that \
is read again is the same. |
| `transaction` | null |

Values are as with Debezium's `decimal.handling.mode=string`, `time.precision.mode=adaptive_time_microseconds` and
`binary.handling.mode=base64`: DATE in days, DATETIME in milliseconds (from four digits on in microseconds), TIME in
microseconds, TIMESTAMP as text in UTC, BIT(1) as boolean. `BIGINT UNSIGNED` is its number, also beyond 2^63.

"""

_SCHEMA_CHANGES = """## Schema changes

The rows of the binary log have no column names unless `binlog_row_metadata=FULL`. So the source derives a row's
columns from the statements in the log. With `schemaChange=evolve`, the default, it follows each `ALTER TABLE` of a
captured table. The offset, in the checkpoint, keeps the columns at its position. The statements after it must lead to
what `information_schema` says now; if they do not, the query stops. A value never goes into another column. A batch
ends with the statement.

Spark fixes a stream's columns when it is declared, so:

| the statement | the stream |
|---|---|
| adds a column | Reads everything before it, then stops and says so. Restarted as it is, it resumes from its \
checkpoint and has the column: NULL in earlier rows, whatever default the server gave them. |
| drops a column | Goes on; the column is NULL from there. After a restart it is gone. |
| renames a column, or gives it a wider type | Stops as for an added one. After a restart it has the new name or type \
throughout, also in rows that were logged before. |
| moves columns, adds or drops an index, a comment, a default | Goes on. |
| changes the primary key, a type so that old values do not fit, a key's collation; partitions emptied or \
exchanged | Stops after everything before it; a new checkpoint is needed. |

A `BacklogQuery` restarts by itself (`spark.backlog.restart.maxAttempts`). `DeltaUpsert` and `DeltaAppend` add the
column to their table with `merge_schema=True`. With plain `readStream`, restart the query. With `format=debezium` no
restart is needed: the columns are inside the envelopes, under their present names.

**During the snapshot**, added and moved columns are crossed: a chunk whose watermark is before the statement is read
as of then. A column that is dropped, renamed or widened while a chunk is read stops the query. A stream that starts
at a position in the log (`startup.mode` earliest, timestamp, specific) must start after the last statement that
altered its tables.

**Hidden columns.** Servers keep hidden columns for indexes on expressions (MySQL) and for UNIQUE keys on BLOB, TEXT
and other long columns (MariaDB). The stream leaves them out. With `binlog_row_metadata=FULL` the log has their names.
Without it:

* A stream stops where such an index is added. Restarted as it is, it goes on.
* A stream stops where a MySQL table with such an index loses, moves or gets columns, other than at its end.
  Restarted, it goes on if it had read everything before the ALTER TABLE, else it needs a new checkpoint.

**Two unread statements** that both give one column another definition leave the column's type between them unknown:
the query stops.

`schemaChange=fail` stops at the first statement that may change columns. `evolve` goes on from there on the same
checkpoint.

"""

_TABLE_EVENTS = """## Truncated and dropped tables

The log has no images of the rows that TRUNCATE and DROP remove. With `tableEvents=emit`, the default, the stream has
one row for such a statement, at its place in the log:

| `format` | the row |
|---|---|
| `row` | `_change_type` is `truncate` or `drop`. `_commit_timestamp`, `_commit_seq`, `_database`, `_table` and \
`_gtid` are those of the statement. The table's own columns are NULL. |
| `debezium` | TRUNCATE: `key` is null and `op` is `t`, as in Debezium. DROP: Debezium's schema change event, with \
`ddl` and `tableChanges`; its key is the database. |

* `DeltaUpsert` removes the older rows of the table in the commit of the same batch. Rows that came after the statement
  stay. It finds the table's rows by `_database` and `_table`. In a query of one table it needs no such columns.
* `DeltaAppend` appends the row.
* Aggregates and joins stop with an error, since the row does not say which results to retract. Functions of your own
  get it like any row, under the key NULL.
* A filter such as `n > 0` drops the row, because its columns are NULL. Write `n > 0 OR _change_type IN ('truncate',
  'drop')`.

`skip` leaves the row out, so the target keeps the table's rows. `fail` stops the query; restarted with another value
it goes on. With several tables, DROP DATABASE is a DROP of each. MariaDB's CREATE OR REPLACE TABLE is a DROP too.

**A dropped table that comes back** under its name is captured again, on the same checkpoint and without
`scanNewlyAddedTables`. The source looks every 10 seconds and reads its snapshot while it follows the other tables. With
`format=row` the table must have the stream's columns. If it is the only one, the stream stops and has the new columns
after a restart; another primary key needs a new checkpoint. While the only table is away a running query waits, but
none can start.

A table that was altered and then dropped, before the stream has read either, stops the query: nothing tells its columns
in between. The query goes on without the table.

**During the snapshot.** A chunk that is read after a TRUNCATE or DROP has just those rows that the log has changes of.
The others are gone before the stream has them. If a part of the table was read before the statement and another part
after it, the stream has the row for the statement, and then the whole table again.

**A table that the options no longer name**, or that `tablePattern` no longer matches, leaves the stream when the query
is restarted. A warning says so. The target keeps its rows. Named again, it is a new table: `scanNewlyAddedTables=true`
reads its snapshot. `DeltaUpsert` keeps rows of it that were deleted meanwhile, so delete the table's rows there first.

"""

_LAG = """## Backlog in the binary log

With `backlogLagThreshold` the binary log counts as backlog too (`isProcessingBacklog`). This starts at the end of a
batch that is further than the threshold behind the log's end, also right after a snapshot that took longer. It ends
when a batch comes closer. Batches are then sized as in the snapshot. This backlog has updates and deletes, so
`DeltaUpsert` merges it.

"""

_LOGIN = """## Passwords and TLS

The password comes from `password`, a file or an environment variable. It is in no log, offset, progress report or
error text of the source. Spark's plans, and with them `explain`, errors of analysis and the event log, hide the
option `password` as long as `spark.redaction.regex` has its default. After `bs.register` they hide it whatever that
is (see hybrid's Secrets, also for sources that Spark finds by itself). Driver and executors each look for files and
variables on their own machine.

Use `ssl.mode=verify_ca` or more across networks: `preferred` and `required` do not verify the server, and `preferred`
goes on without TLS where the server has none. The source warns once of `preferred` to another machine.

| the server asks for the password | the source |
|---|---|
| as it is (`mysql_clear_password`, MariaDB's `dialog`) | needs `ssl.mode=verify_ca` or `verify_identity` |
| for `caching_sha2_password` or `sha256_password`, with TLS | sends it inside TLS |
| for these, without TLS | needs `allowPublicKeyRetrieval=true`; not if `caching_sha2_password` remembers the user |
| for other plugins | sends an answer that does not contain it |

"""


_VERIFY = """## Verify

`bs.verify(query)` compares the target with the tables, exactly, while the query and the writers go on. It names the
keys that differ and can repair them: [docs/verify.md](verify.md).

"""


def _metadata() -> str:
    rows = "".join(f"| `{name}` | {spark.simpleString()} | {says} |\n" for name, (spark, _, says) in METADATA.items())
    return "## Metadata columns\n\n| column | type | |\n|---|---|---|\n" + rows + "\n"


def page() -> str:
    """The text of mysql_cdc.md."""
    return (
        _INTRO
        + _STATEMENTS
        + _UNLOGGED
        + _mariadb()
        + "## Options\n\n"
        + option_table()
        + "\n"
        + _START
        + _KEYS
        + _COLUMNS
        + _TABLES
        + _SCHEMA_CHANGES
        + _SWAPS
        + _TABLE_EVENTS
        + _LAG
        + _metadata()
        + _VERIFY
        + _LOGIN
        + _TYPES
        + type_table()
        + _CHARSETS
    )
