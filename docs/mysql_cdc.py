"""The page of the source ``mysql_cdc``: its text, and tables from the code."""

from __future__ import annotations

from backlog_spark.connectors.mysql_cdc import documented_options
from backlog_spark.connectors.mysql_cdc.output.metadata import METADATA
from backlog_spark.connectors.mysql_cdc.schema.charsets import CHARSETS
from backlog_spark.connectors.mysql_cdc.schema.types import type_table
from docs.option_table import option_table

__all__ = ["pages"]

_INTRO = """# mysql_cdc

Reads the snapshot of a MySQL or MariaDB table, then its binary log.

| I look for | page |
|---|---|
| server settings, the user's rights | [Server settings](mysql_cdc_server.md#server-settings) |
| options | [Options](mysql_cdc_options.md), [Passwords and TLS](mysql_cdc_server.md#passwords-and-tls) |
| where the stream starts | [Where it starts](#where-it-starts) |
| what is guaranteed for tables with and without a primary key | [Keys](#keys) |
| excluded and masked columns | [Columns](#columns) |
| several tables, Debezium's format | [Many tables](#many-tables) |
| column types | [Types](#types), [Character sets](#character-sets) |
| how to read a table again while the stream runs | [mysql_cdc: signals](mysql_cdc_signals.md) |
| ALTER TABLE, gh-ost, TRUNCATE, DROP | [mysql_cdc: changes of tables](mysql_cdc_schema.md) |
| failover, lost connections, statement-format changes, XA, MariaDB | [mysql_cdc: server settings and \
operation](mysql_cdc_server.md) |
| whether the target is correct | [Verify a target](verify.md) |

If something in the binary log could lose changes, the query stops with an error.

"""

_OPTIONS = """# Options of mysql_cdc

The source itself is described in [mysql_cdc](mysql_cdc.md).

"""
_START = """## Where it starts

`startup.mode` is `initial` by default: a snapshot, then the log. With `latest`, `earliest`, `timestamp` and `specific`
there is no snapshot and no backlog. The first batch then has no rows. It chooses the position and stores it in its
offset. A restarted query resumes from there.

* `earliest` and `timestamp` may reach changes from before the table had its present columns. The query stops at these.
  Choose a later start.
* In MariaDB a position is a file and a byte.
* With `snapshot` the stream ends: the log is read up to one position, so that all rows are as of this position. The
  offset then says `isFinished`.

"""

_KEYS = """## Keys

The **primary key** identifies a row. It may have one or more columns, of any type [below](#types) except float and
double. Text must be in Unicode, ascii, latin1, latin2, cp1250, cp1251 or koi8r. Text keys are compared byte by byte,
as in Spark. So if `'a'` becomes `'A'`, the stream has a delete and an insert, even if the collation treats both as
equal. A zero or partial date in a key stops the query.

The snapshot is **cut** into chunks by the first columns of the primary key, or by `chunkKeyColumn`. These columns may
be integers, decimals, dates, times, binary or text. The server's own order is used, collations included. Some
collations cannot be used, because the server sorts in another order than it reports: MySQL's `cp1250_czech_cs`; in
MariaDB those that end in `_ai_cs`, `_as_ci`, `_as_cs`, `_w2` or `_0900_bin`, and the `_nopad_` ones except
`uca1400`'s.

| the table has | the snapshot is |
|---|---|
| a primary key, and is cut by its columns | any number of batches, read in parallel |
| a primary key, and is cut by another column | one batch, read in parallel |
| a primary key that begins with another type, with such a collation, a prefix or a mask | one batch, read by one task |
| no primary key, and `chunkKeyColumn` | one batch, read in parallel |
| no primary key | one batch, read by one task |

The guarantee is the same for all: each row as of its batch's watermark, then every later change, exactly once, and
the same rows again after a failure. Without a primary key this holds for the number of equal rows. An update is then a
pre- and a postimage, and no sink can upsert by a key.

Batches of different watermarks need a cut by primary key columns, because only these never change for a row.
Otherwise the snapshot is one batch, whatever `maxRowsPerBatch` and `intervalDuringBacklog` say.

**`messageKeyColumns`** makes a UNIQUE key of NOT NULL columns the key of a table without a primary key, for everything
on this page. A key that is not unique, may be NULL, or has only a prefix of a column is refused. The query stops if a
statement drops or renames the key, because rows could repeat it from then on.

**Without a primary key** a task begins its read while no commit of the table is under way (in MariaDB: while the
server does not begin a new binary log file). It tries this up to 500 times. Then the query stops and asks for a
primary key.

**Chunks** are cut in two ways:

* With a limit on rows, the chunks of a batch are counted along the index. This is exact, takes 0.25 to 0.7 s per
  million rows, and runs at most one batch ahead of reading. With `intervalDuringBacklog=0` and keys that arithmetic
  cannot cut, that batch is the whole table.
* With `intervalDuringBacklog`, chunks are cut by arithmetic if the key is one integer or decimal column, and its
  distribution factor is within the bounds. This takes about a millisecond per chunk. The source compares each piece
  with the server's estimate of its rows. So a gap in the keys makes no empty chunks. A range with many rows is counted
  instead, so no chunk is too large.

A table of 10^8 rows with gaps between its keys was planned in 20 s, by batches of two million rows. The source's
process took 106 MiB, and an offset 5 kB.

Rows with the same value of a `chunkKeyColumn` are always in one chunk.

**Offsets.** An offset lists the batches, each with its key range and its low watermark. From the 513th batch on,
neighbouring batches share a low watermark. So the list stays short: 30 kB after a billion rows in 5,000 batches. A task
reads the log from the shared watermark on. After 5,000 batches that is the log of about 10 batches.

**Total.** A query's progress shows the total number of rows. The server counts them if that takes less than half a
second, and the rows of each batch too. Otherwise the total comes from InnoDB's statistics, which may be wrong by half.
If the key is a number, each batch corrects the total.

**Memory.** A worker of a snapshot stays under 300 MB, however large the table and the changes during the snapshot
are. The log since the watermark, and the part of it that belongs to a chunk, are in temporary files (`TMPDIR`). A
single row takes a few times its own size. Without a primary key, a chunk takes long if most of its rows changed.

"""


_COLUMNS = """## Columns

`columns.include`, `columns.exclude` and `columns.mask` are regular expressions for the whole
`database.table.column`. Upper and lower case do not matter. At the first start a pattern without a match is refused.
The patterns apply to the present names, so check them before you rename a column.

* An **excluded** column is not selected, and is skipped in the log. It may have any type, also one that the source
  cannot read. The stream continues if such a column is added, changed or dropped. Columns of the key cannot be
  excluded.
* A **masked** column is text: SHA-256 of `columns.mask.secretSalt` and the value's text, in hexadecimal digits, as
  with Debezium's `column.mask.hash.v2.SHA-256`. The text of numbers, dates and times is Spark's. Binary values are
  hashed as they are. NULL stays NULL. Equal values have equal masks, in the snapshot, in the log and in all tables. So
  a masked key still identifies rows. But it does not cut the snapshot, because the ends of chunks are in the
  checkpoint.
* With `tinyInt1isBit=true` a **TINYINT(1)** is boolean. It may have values from -128 to 127: all but 0 become true.

**On the same checkpoint** you may change `tables.exclude` and `skipped.operations`. Other columns, another salt,
another `tinyInt1isBit` or another key are refused before the query starts (`readStream`: at its first batch).

`skipped.operations` drops changes of the log, but no rows of the snapshot. If deletes are dropped, the target keeps
rows that the table no longer has.

"""

_TABLES = """## Many tables

`table` takes several names. The first dot separates database and table. A name with another dot or a comma can be
quoted as in MySQL: `` `my.shop`.orders ``. `tablePattern` is a regular expression for the whole `database.table`. The
snapshots are read one after the other. A batch may end in the middle of a table, or contain many small ones. The
guarantee for each table is the same as for one table.

The checkpoint fixes which tables match. The source warns of tables that match later, and does not capture them unless
`scanNewlyAddedTables=true`. Tables may be dropped and created again, or removed from the options: see [Truncated and
dropped tables](mysql_cdc_schema.md#truncated-and-dropped-tables).

`scanNewlyAddedTables` looks every 10 seconds for new tables that match, and at a restart for new names in `table`. It
reads the snapshot of a new table in batches of `maxRowsPerBatch` rows while it follows the others. This is not
backlog (`isProcessingBacklog` stays false). With `format=row` a new table with other columns stops the query.

With `format=row`, the default, all tables must have the same columns, like shards. `_database` and `_table` name the
table of a row. They are the first two columns of the key for `DeltaUpsert`, because two shards may have rows with the
same key.

With `format=debezium` tables may have any columns. The stream has the columns `key` and `value`, then the metadata
columns. Both are JSON, as Debezium writes them without schemas:

| in the value | |
|---|---|
| `before`, `after` | The row's images. null if there is none. |
| `op` | `r` (snapshot), `c`, `u`, `d`, `t` (truncate). An update that changes the primary key is a `d` and a `c`. \
There are no tombstones. |
| `source` | `version`, `connector` (`mysql`), `name` (`mysql_cdc`), `db`, `table`, `ts_ms`, `snapshot`, `file`, \
`pos` (of the row image), `server_id`, `gtid`. |
| `ts_ms` | The time of the statement, as in `source`. In Debezium it is the connector's processing time. Here a \
replayed batch must have the same values. |
| `transaction` | null |

Values are as with Debezium's `decimal.handling.mode=string`, `time.precision.mode=adaptive_time_microseconds` and
`binary.handling.mode=base64`: DATE in days, DATETIME in milliseconds (with four or more digits of fraction in
microseconds), TIME in microseconds, TIMESTAMP as text in UTC, BIT(1) as boolean. `BIGINT UNSIGNED` is a number, also
beyond 2^63.

"""

_LAG = """## Backlog in the binary log

With `backlogLagThreshold` the binary log can be backlog too (`isProcessingBacklog`). It becomes backlog after a batch
that lags more than the threshold behind the end of the log, also right after a long snapshot. It stops being backlog
after a batch that lags less. Batches are then sized as in the snapshot. This backlog has updates and deletes, so
`DeltaUpsert` uses MERGE.

"""

_TYPES = """## Types

* Zero, partial and impossible dates become NULL. With `zeroDate=error` they stop the query.
* YEAR 0000 is 0.
* TIME is text as MySQL prints it.
* UUID, INET6 and INET4 are types of MariaDB. MariaDB's JSON is LONGTEXT, and is read as it was written.
* MySQL's JSON is the server's own text. Numbers with a fraction or an exponent are written without exponent and
  trailing zeros.
* Geometry is four bytes with the SRID, the least significant first, then WKB.

"""

_CHARSETS = f"""
## Character sets

{", ".join(sorted(CHARSETS))}.

These are all character sets of the servers. The text is the result of the servers' own conversion to utf8mb4, in the
snapshot and in the binary log. Bytes without a character in a set become `?`: 0x81 in cp1250, rows without an
assignment in the East Asian sets, halves of surrogate pairs in ucs2 and utf32. In a primary key they stop the query,
because different rows could get the same text. So do halves of surrogate pairs in MariaDB's utf8mb3 and utf8mb4.

In labels of ENUM and SET the servers show `?` for each character beyond U+FFFF. The source reads such labels from the
log in the same way.

"""


def _metadata() -> str:
    rows = "".join(f"| `{name}` | {spark.simpleString()} | {says} |\n" for name, (spark, _, says) in METADATA.items())
    return "## Metadata columns\n\n| column | type | |\n|---|---|---|\n" + rows + "\n"


def pages() -> dict[str, str]:
    """File name -> text: the source, and its options."""
    table = option_table(documented_options(), flink="Flink CDC", debezium="Debezium")
    text = (
        _INTRO
        + "All options are in [Options of mysql_cdc](mysql_cdc_options.md).\n\n"
        + _START
        + _KEYS
        + _COLUMNS
        + _TABLES
        + _LAG
        + _metadata()
        + _TYPES
        + type_table()
        + _CHARSETS
    )
    return {"mysql_cdc.md": text, "mysql_cdc_options.md": _OPTIONS + table.replace("](#", "](mysql_cdc.md#")}
