"""The page of the source ``hybrid``: its text, and option tables from the code."""

from __future__ import annotations

from backlog_spark.connectors.hybrid.decode import DecodeOptions
from backlog_spark.connectors.hybrid.files.options import DeltaOptions, FileOptions
from backlog_spark.connectors.hybrid.kafka.options import KafkaOptions
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.phases import METADATA
from backlog_spark.spark.jvm.session import REDACTION, redaction
from backlog_spark.spi.options import options_of
from backlog_spark.spi.registry import CONNECTORS, data_source
from docs.option_table import option_table

__all__ = ["pages", "redaction_line"]

_TEXT = """# hybrid

Reads old data from files or a Delta table, then a Kafka topic, as one source of one query. It is like Flink's
HybridSource with `isProcessingBacklog` (FLIP-309). All phases but the last one are
backlog. The batch that ends the phase before it is the last batch of the backlog. If there is only one phase, and it
has an end, all of it is backlog.

```python
import backlog_spark as bs

orders = bs.source(
    "hybrid",
    name="orders",
    schema="id BIGINT, at TIMESTAMP, amount DECIMAL(12,2)",
    path="/lake/history",
    subscribe="orders",
    options={"kafka.bootstrap.servers": "broker:9092", "startingOffsets": "earliest", "valueFormat": "json"},
)
query = (
    orders.write("orders")
    .trigger(processing_time="10 seconds", interval_during_backlog="10 minutes")
    .option("checkpointLocation", "/lake/checkpoints/orders")
    .to(bs.DeltaAppend("/lake/orders"))
    .start(spark)
)
```

`phases` lists the phases in their order, each a kind (`files`, `delta`, `kafka`) or `name:kind`. The default is
`files, kafka`. An option applies to all phases that have it, `phase.<name>.<option>` to one phase:
`phases="table:delta, more:files, live:kafka"` with `phase.table.path` and `phase.more.path`. All phases have the same
schema: the option `schema`, or the schema of the first phase's data, or columns that are
[inferred](#columns-without-a-schema) from files. Each phase except the last one must have an end.
A Kafka phase has an end with `endingOffsets`. The last phase may also be files that [go on to come](#new-files).

`spark.readStream.format("hybrid")` works alone too. Then set `metadataLocation`, a directory beside the checkpoint. A
query of `backlog_spark` sets it itself.

## This source, or Spark's own readers

There are two ways to read files and then Kafka. **Take this source, `bs.source("hybrid")`.** Take
[`bs.hybrid`](rules.md#sparks-own-readers-as-phases), which runs Spark's own readers one after the other, if reading the
files takes too long, or if only Spark reads their format. `make bench CASE=hybrids` measures both on your machine, and
`bs.explain(query)` says which of the two a query has.

Measured once on two cores, with 8 mixed columns, and a tenth as many records of Kafka:

| rows of files | `bs.source("hybrid")`: files; switch; Kafka | `bs.hybrid` |
|---|---|---|
| 10 million, Parquet | 448,000 rows/s; 3.9 s; 78,000 rows/s | 558,000 rows/s; 5.9 s; 53,000 rows/s |
| 10 million, JSON | 178,000 rows/s; 3.6 s; 95,000 rows/s | 281,000 rows/s; 5.6 s; 50,000 rows/s |
| 10 million, CSV | 143,000 rows/s; 3.1 s; 87,000 rows/s | 223,000 rows/s; 5.8 s; 46,000 rows/s |

The switch is the time from the end of the files to the first live commit.

@both@
Both fix Kafka's start before they read files, can begin at the time of the newest row, drop duplicates by key, and
read each row once.

Before its first `start` returns, a query of `backlog_spark` checks that everything in the options exists: directories,
tables, topics, brokers, and columns if the data declare them. It refuses a path without any file (`allowEmpty=true`
accepts it), and a `subscribePattern` that matches no topic. A plain `readStream` finds the same mistakes when it reads.

## What is fixed

**Files.** The files of all phases are listed once, at the query's first start. The list is kept in `metadataLocation`.
The offset has only its digest and a position. Files that arrive later are not read, except with
[`discovery=continuous`](#new-files). If a file was removed or changed, the query stops unless `failOnDataLoss=false`.

**Delta.** The query reads the version of its first start, and with
[`discovery=continuous`](#new-commits-of-a-delta-table) the later commits too. Keep that version's files and log
(VACUUM, `delta.logRetentionDuration`) until its phase has ended. If the table's columns change later and `schema` is
not set, a restart is refused; the error says how to set `schema`. This also applies after the phase, while the table's
log has that version.

**Kafka.** The last batch of the phase before logs the offsets where Kafka begins.

So a replay reads the same rows.

There is no gap between the phases. The query stores the offsets of each partition at its first start, before it lists
files. `earliest` and `latest` mean the offsets at that time, so records that arrive while files are read are read
later. Three events before that stop the query unless `failOnDataLoss=false`:

* retention removes such records,
* a topic is deleted and created again,
* a partition is added, and its first records are removed.

**Start where the files end.** With `startingFrom=lastFileTimestamp` Kafka begins at the time of the files' newest row
(`timestampColumn`), minus `startingOverlap`. `dedupKey` then drops duplicates. The keys and times of the files' rows
within the overlap are kept beside the checkpoint.

| a record | is |
|---|---|
| has the key and time of a row, and is not newer than the files' newest time by its own timestamp | dropped |
| has the key of a row and another time | read: it is a version that the files do not have |
| has a key that contains NULL | read: such a key is never de-duplicated |

Times are compared in `timestampColumn`, to the microsecond. The order of the records, and when they came to the topic,
make no difference.

The query stops if the topic does not go back to that time. The error names the partition and the range of time in
which records may be missing. A partition goes back far enough if it has an older record, or if nothing was ever
removed from it. The query also stops if that time was in the future when the files were listed. With
`failOnDataLoss=false` it warns, and begins at the first record that exists, or at the time of the listing.

**Batches.** A backlog batch may contain the end of one phase and the beginning of the next one. With an interval during
backlog of 0, all phases with an end are one batch. Large Parquet and ORC files are split at row groups and stripes, for
batches and for tasks. In an object store (S3 through `s3fs`: `path=s3a://bucket/data`) the ETag identifies a file.
[Which stores, and whose keys](cluster.md#which-reader-reads-which-store).

## New files

With `discovery=continuous` a phase of files has no end: it also reads files that come later, like Spark's file stream
and Databricks Auto Loader. It is the last phase, alone or after others. The files of its first listing are backlog. So
with an interval during backlog of 0 they are one commit.

```python
import backlog_spark as bs

events = bs.source(
    "hybrid",
    name="events",
    phases="files",
    schema="id BIGINT, at TIMESTAMP, amount DECIMAL(12,2)",
    path="/lake/landing",
    options={
        "fileFormat": "json",
        "allowEmpty": "true",
        "discovery": "continuous",
        "discoveryInterval": "2 seconds",
        "backlogFilesThreshold": "10000",
        "cleanSource": "archive",
        "sourceArchiveDir": "/lake/archive",
    },
)
query = (
    events.write("events")
    .trigger(processing_time="1 second", interval_during_backlog="10 minutes")
    .option("checkpointLocation", "/lake/checkpoints/events")
    .to(bs.DeltaAppend("/lake/events"))
    .start(spark)
)
```

**Listings.** At most every `discoveryInterval` the directories are listed, and compared with the durable list of all
files found so far. The list is in `metadataLocation`, in files that never change. It is written before an offset names
it, so a replay reads the same files. Nothing is forgotten, so no file is read twice, however old it is: 100,000 files
take about 1 MB. Parts of the list that the offsets of the last 100 listings do not name are deleted, so copy
`metadataLocation` together with the checkpoint. A file must come complete: write it under a name that begins with `.`
or `_`, or in another directory, and rename it. Object stores show complete files only.

**Names that grow.** With `discoveryOrder=name` files are read in the order of their paths, for example
`2026/01/31/…`. A new file is *late* if its path is smaller than one that was found before. With `lateFiles=ignore` and
`rewrittenFiles=ignore` a listing of S3 begins after the last path, so its cost follows the new files. It then sees no
late files, so no warning names them.

| a file | option | refuse (default) | ignore | read |
|---|---|---|---|---|
| is late | `lateFiles` | the query stops and names it | not read; a warning names it | read |
| was written again: another size, ETag or time of change | `rewrittenFiles` | the same | the same | read again, whole |

Both are refused by default, because either could lose rows or repeat them without a word: rows of the earlier content
may be in the target already. With `rewrittenFiles=read` an earlier content that is gone before it was read is skipped.

**Backlog.** The phase is in backlog until the files of the first listing are read. Later it is in backlog again while
more than `backlogFilesThreshold` files or `backlogBytesThreshold` bytes are unread, or while an unread file is older
than `backlogLagThreshold`. It leaves below a lower threshold, but not before `backlogMinStay`.

**Cleaning.** `cleanSource=archive` moves and `cleanSource=delete` deletes a file after the batch with its last row was
committed. That happens when the next batch is planned, or at the next start, so a crash leaves nothing behind. A file
that was written again meanwhile stays. A file that cannot be moved is tried again each minute, with a warning. Only one
query may clean a directory, and no other may read it. Set `schema`, or let it be stored, because at a restart there may
be no file with columns.

Events of a store (SQS, Event Grid) are not used: files are found by listing.

## Columns without a schema

A phase of files can find its columns itself, like Databricks Auto Loader. If no schema is declared, it looks at a
sample of the files (`schemaInferenceFiles`, `schemaInferenceBytes`), and stores the columns at the query's first start.
Each later start takes the stored columns, whatever files there are.

```python
import backlog_spark as bs

events = bs.source(
    "hybrid",
    name="events",
    phases="files",
    path="/lake/inbox",
    options={
        "fileFormat": "json",
        "discovery": "continuous",
        "inferColumnTypes": "true",
        "schemaHints": "at TIMESTAMP, item.price DECIMAL(10,2)",
    },
)
query = (
    events.write("inbox")
    .option("checkpointLocation", "/lake/checkpoints/inbox")
    .to(bs.DeltaAppend("/lake/inbox_rows", merge_schema=True))
    .start(spark)
)
```

| `fileFormat` | without a schema | types |
|---|---|---|
| `json`, `csv` | inferred and stored | strings, as in Auto Loader; with `inferColumnTypes=true` those of the values |
| `parquet`, `orc`, `avro` | those of the first file, not stored | its own |
| the same with `schemaLocation`, `schemaHints` or `schemaEvolutionMode` | inferred and stored | the widest ones |
| `text`, `binaryFile` | always the same | |

Without `inferColumnTypes` an object or array of JSON is one string. With it the types are those of Spark's batch reader
(`spark.read.json`, and `spark.read.csv` with `inferSchema`), except that a time of day alone is text. Malformed records
of JSON do not count.

For CSV set `header`. A file then may lack columns. Directories `name=value` become columns; those that come later do
not.

**Where it is stored.** In `schemaLocation`, by default `metadataLocation`, which is in the checkpoint of a query of
`backlog_spark`. `_schemas` below it has one file for each version, with Spark's StructType as JSON. If Delta's
extension is in the session, it refuses a `schemaLocation` outside of the checkpoint. Only one source may use the
directory, and the executors must reach it too.

**Hints.** `schemaHints` gives types in place of the inferred ones, for columns and nested fields: `a INT`,
`item.price DECIMAL(10,2)`, `items.element.at DATE`, `counts MAP<STRING, INT>`, `counts.value BIGINT`. Columns that no
file has are added. Hints count when the schema is first inferred. Other hints later are refused.

### New columns

| `schemaEvolutionMode` | if a file has a column, or a field of a struct, that the schema does not have |
|---|---|
| `addNewColumns` (default) | The column is stored, and the query stops. The next start has the column. |
| `rescue` | The schema stays. The value goes to `_rescued_data`. |
| `failOnNewColumns` | The query stops. So does the next start. |
| `none` (default with a declared schema) | The column is ignored. |

Errors name the file and the columns. A new column comes after the others, and types of other columns stay. A name that
differs in case only is no new column, and neither is one whose values are all NULL.

After `addNewColumns` a query of `backlog_spark` restarts by itself (`spark.backlog.restart.maxAttempts`); start a plain
`readStream` again. The batch is read again, and no row is lost or repeated, as nothing of it was committed. Targets
get the column with `merge_schema=True`. With a declared schema `addNewColumns` is refused: give its columns as
`schemaHints` instead. A task stores all new columns that its files have. Tasks that find different columns may take
several restarts.

### Rescued data

If the mode is not `none`, or `rescuedDataColumn` is set, the last data column is `_rescued_data`. It is an object of
JSON with what does not fit the schema, such as
`{"amount": "n/a", "ID": 7, "item": {"colour": "red"}, "_file_path": "/lake/inbox/7.json"}`. It is NULL if everything
fits.

| a value | its column | `_rescued_data` |
|---|---|---|
| of another type | NULL | has it |
| whose name differs in case | NULL | has it under its name |
| of a column or field that the schema does not have | | has it |
| in an array or map of which a part does not fit | the part that fits, or NULL | has the whole array or map |
| after the last column of a line of CSV | | has it as `_c` and its number |
| that is a malformed record of JSON | all NULL | has its text under `_corrupt_record` |

So a value of another type makes no record malformed for `mode`. The type of a value of Parquet, ORC and Avro is that of
the file; it fits if it is the same value in the schema's type. Phases of Delta and Kafka have NULL in this column.

## New commits of a Delta table

With `discovery=continuous` a phase of Delta has no end either. It reads one version of the table (the latest one, or
`versionAsOf`), then each later commit in its order, like Spark's own stream of a Delta table. It is the last phase,
alone or after others. No JVM reads the table or its log.

```python
import backlog_spark as bs

orders = bs.source(
    "hybrid",
    name="orders",
    phases="delta",
    path="/lake/orders",
    options={"discovery": "continuous", "discoveryInterval": "2 seconds", "backlogVersionsThreshold": "100"},
)
query = (
    orders.write("copy")
    .trigger(processing_time="1 second", interval_during_backlog="10 minutes")
    .option("checkpointLocation", "/lake/checkpoints/copy")
    .to(bs.DeltaAppend("/lake/copy"))
    .start(spark)
)
```

| a commit | gives |
|---|---|
| appends rows | its rows |
| changes no rows: OPTIMIZE, a checkpoint, properties | none |
| deletes or changes rows, adds a deletion vector, or is a RESTORE | refused; `skipChangeCommits=true`: none |
| adds a column that the stream does not have | refused; `addedColumns=ignore`: its rows without the column |
| drops, renames or retypes a column of the stream, also by type widening | refused |
| sets a table feature that is not supported here | refused |

Refused means that the query stops and names the version. Ignored and skipped ones are in a warning. After an added
column the next start has it, with NULL in earlier rows, or set `schema` with it. Rows of commits before such a commit
are read first.

**Changes.** With `readChangeFeed=true` the later commits are changes: inserts, both images of updates, and deletes, in
the columns `_change_type`, `_commit_timestamp` and `_commit_seq`. The table needs
`delta.enableChangeDataFeed=true` from the first version on. Rows of the first version are `insert` with a `_commit_seq`
of 0. Then it is twice the version, plus 1 for rows that the version adds, so a version's deletes come before its
inserts. `_commit_timestamp` is the time in the commit. A commit with updates is never divided. A commit that has
deletion vectors and no files of the feed stops the query.

**What is fixed.** An offset has a version and a place in its files, and commits never change. So a replay reads the
same rows. `maxFilesPerBatch`, `maxBytesPerBatch` and `maxRowsPerBatch` divide large versions and commits.

**What must stay.** The query stops if it needs a commit or a file that is gone. A query may stop, or be behind, for at
most `delta.logRetentionDuration` (30 days by default) and `delta.deletedFileRetentionDuration` (7 days). The error
names the version and the property. It also stops if the table was created anew, or its directory was put back to an
earlier state. The whole log is compared at each start, and once a minute while there is nothing new.

**Backlog.** The phase is in backlog until the first version is read. Later it is in backlog again while more than
`backlogVersionsThreshold` commits or `backlogBytesThreshold` bytes are unread, or while an unread commit is older than
`backlogLagThreshold`. At most 1,000 unread commits are counted.

## Kafka

* The source reads up to the last stable offset (`read_committed`), so it does not see aborted transactions.
* New partitions and topics are read from their beginning.
* If retention has removed unread records, or a topic was deleted and created again, the query stops and names the
  position. With `failOnDataLoss=false` it warns and continues at the first record that exists. A topic or partition
  that brokers do not know is looked for during 3 seconds: a broker that restarts does not know it for a moment.
* In the last phase there is backlog again while `backlogLagThreshold` (age of an unread record) or
  `backlogOffsetsThreshold` (number of unread records) is exceeded. It ends below a lower threshold, but not before
  `backlogMinStay`.
* With `minOffsetsPerTrigger` a live batch waits until that many new offsets exist, or `maxTriggerDelay` is over, as in
  Spark. Backlog, runs that end, and a change of the flag never wait.
* confluent-kafka reads, which is librdkafka. Properties `kafka.*` have Java's names, as in Spark. Properties without a
  counterpart in librdkafka are refused.

### Columns of the key

The columns come from the records' values. With `keyFormat` some come from their keys, as with `key.format` in Flink:

```python
import backlog_spark as bs

orders = bs.source(
    "hybrid",
    name="orders",
    phases="kafka",
    schema="key_id BIGINT, key_region STRING, amount DECIMAL(12,2)",
    subscribe="orders",
    options={
        "kafka.bootstrap.servers": "broker:9092",
        "valueFormat": "json",
        "keyFormat": "json",
        "keyFieldsPrefix": "key_",
    },
)
```

`key_id` is the field `id` of the key. `keyFields` names the columns of the key where a prefix is not enough; without a
prefix they have the names of the key's fields. A column of the key is not looked for in the value, which is Flink's
`value.fields-include` = `EXCEPT_KEY`. A record without a key has NULL in these columns. `mode` is for keys too: a
record with a malformed key is malformed. In phases of files they are columns like others.

### Logins by token

Source and `KafkaSink` take the same properties. With `kafka.sasl.mechanism=OAUTHBEARER` set one of these:

* `kafka.sasl.oauthbearer.token.function=module:function`: a Python function without arguments that returns a token and
  the time at which it expires, in seconds since 1970. Driver and executors call it.
* `kafka.sasl.oauthbearer.token.endpoint.url`, with `kafka.sasl.oauthbearer.client.id` and
  `kafka.sasl.oauthbearer.client.secret`: librdkafka asks a server of OpenID Connect. `clientId` and `clientSecret` in
  `kafka.sasl.jaas.config` work as well, and so does Java's `OAuthBearerLoginCallbackHandler`.

`kafka.sasl.mechanism=AWS_MSK_IAM` needs the extra `msk` and a region: `kafka.sasl.aws.region`, or the variable
`AWS_REGION`. AWS's library finds the credentials of each machine. Kerberos is refused.

## Records

JSON, CSV, Avro and Protobuf become the same columns as with Spark's own `from_json`, `from_csv`, `from_avro` and
`from_protobuf`. Lines of JSON
and CSV files are decoded like the values of Kafka's records. A record without a value (a tombstone) is a row of NULLs.
With `tombstones=drop` there is no row for it. [Formats of files](file_formats.md) has the rules for files.

With `schema.registry.url` each Avro or Protobuf record begins with the id of its schema in a registry. A schema may
refer to others of the registry. If the registry does not answer, it is asked again for 13 seconds, all its URLs each
time.

Changes of a table, as Debezium, Canal and Maxwell write them, become rows with change columns: [Change
topics](change_topics.md).

### Protobuf

With `valueFormat=protobuf` the messages are described by a registry, or by `protobufDescriptorFile`, as Spark's
`from_protobuf` takes it: `protoc --include_imports --descriptor_set_out=orders.desc orders.proto`. No jar and no
generated class is needed. The registry must give descriptors (`format=serialized`), as Confluent's does. With another
one take a file: it reads records with a registry's header too. A record names its message by an index. If a topic mixes
messages, `protobufMessage` chooses one, and records of the others give no row.

```python
import backlog_spark as bs

orders = bs.source(
    "hybrid",
    name="orders",
    phases="kafka",
    schema="id BIGINT, at TIMESTAMP, state STRING, items ARRAY<STRUCT<sku: STRING, count: INT>>",
    subscribe="orders",
    options={
        "kafka.bootstrap.servers": "broker:9092",
        "valueFormat": "protobuf",
        "schema.registry.url": "http://registry:8081",
        "protobufMessage": "shop.Order",
    },
)
```

A column has the type that `from_protobuf` gives. Where Spark has an option for it, the declared type decides:

| Protobuf | declared as | or as |
|---|---|---|
| `bool`, `string`, `bytes`, `double` | BOOLEAN, STRING, BINARY, DOUBLE | |
| `int32`, `sint32`, `sfixed32` | INT | BIGINT |
| `uint32`, `fixed32` | INT, negative from 2^31 on | BIGINT |
| `int64`, `sint64`, `sfixed64` | BIGINT | |
| `uint64`, `fixed64` | BIGINT, negative from 2^63 on | DECIMAL(20, 0) |
| `float` | FLOAT | DOUBLE |
| an enum | STRING, its name | INT, its number |
| `Timestamp`, `Duration` | TIMESTAMP, INTERVAL DAY TO SECOND | a STRUCT of `seconds` and `nanos` |
| a wrapper such as `Int32Value` | a STRUCT of `value` | the type of its value |
| a message; `repeated`; `map` | STRUCT; ARRAY; MAP | |

A field of proto3 without `optional` that is 0 or empty is NULL, as with `from_protobuf`. `emit.default.values=true`
gives 0 or the empty value. A message that contains itself is read as deep as its columns are declared. Extensions are
not read.

## Old dates

Before version 3.0 Spark wrote dates before 1582-10-15 in the Julian calendar. This source does not convert them, but
refuses them. Spark's own readers (`bs.hybrid`) read them. Refused are:

* Parquet: a date before 1582-10-15, or a timestamp before 1900, if the file's metadata say that it was written in the
  old calendar. Files without `org.apache.spark.version` are in the present calendar, as with Spark's default
  `datetimeRebaseModeInRead=CORRECTED`.
* ORC: a date before 1582-10-15 in any file, because the reader does not know the file's calendar. Also a timestamp
  outside of 1677-09-21 to 2262-04-11, such as `9999-12-31 23:59:59`.

Columns that are not declared are not checked.

"""

_BOTH = (
    (
        "[formats of files](file_formats.md)",
        "Parquet, ORC, Avro, JSON, CSV, text, whole files (`binaryFile`)",
        "all of Spark's streams of files, also XML",
    ),
    ("columns of CSV with a header", "matched by name, file by file", "by position"),
    (
        "other old data",
        "a version of a Delta table",
        "any source that can be read as a stream and ends with `availableNow`",
    ),
    ("reading files", "in Python", "in the JVM: faster"),
    (
        "columns that a query does not read",
        "not read from Parquet, ORC and Delta, nor fields of structs from Parquet, up to the first `transform`; a "
        "plain `readStream` reads all",
        "not read",
    ),
    (
        "files without a declared schema",
        "columns are [inferred once and stored](#columns-without-a-schema); new ones stop the query or are rescued",
        "a function of yours declares them",
    ),
    ("dates in Spark's old calendar", "refused", "converted"),
    ("file systems", "of fsspec", "of Hadoop"),
    ("columns from the key of a record", "`keyFormat`", "`from_json` or `from_avro` in the phase's function"),
    ("Avro in Kafka with a Schema Registry", "yes", "no: `from_avro` of Spark knows no registry"),
    ("Protobuf in Kafka", "yes, also with a Schema Registry", "`from_protobuf`, without a registry"),
    ("keyed operators, SQL, pipelines", "yes", "no: one DataFrame, changed by Spark's own operations"),
    ("where rows go", "sinks of `bs`, such as `DeltaUpsert`", "your own `DataStreamWriter`, also `foreachBatch`"),
    ("plain `spark.readStream`", "yes, also in [other versions of Spark](spark_versions.md) and Spark Connect", "no"),
    (
        "a query of its own for each phase",
        "no: all phases give the columns of `schema`",
        "a function for each phase selects, casts, filters",
    ),
    ("from one phase to the next", "the same run goes on", "the run ends and another one starts, which takes seconds"),
    ("interval during backlog of 0", "one commit for all phases with an end", "one commit for each"),
    (
        "interval during backlog above 0",
        "sizes batches; large Parquet and ORC files are cut",
        "limits that your function takes from `ctx.read_limit` or `ctx.scaled`; whole files",
    ),
    (
        "list of files",
        "fixed at the first start, or [continued](#new-files); a file that was changed stops the query",
        "made again at each start of the phase",
    ),
    (
        "mistakes in paths, topics and columns",
        "refused before the first `start` returns",
        "found when Spark reads the phase",
    ),
    (
        "Kafka is backlog again",
        "`backlogLagThreshold`, `backlogOffsetsThreshold`",
        "[rules](rules.md), also on watermark and busy ratio",
    ),
    ("open and aborted transactions", "not read (`read_committed`)", "read, unless `kafka.isolation.level` is set"),
    (
        "malformed record of Kafka, FAILFAST",
        "the error has topic, partition and offset, and no value",
        "the error has the value, and no partition or offset",
    ),
    ("malformed record of Kafka, DROPMALFORMED", "no row", "not possible: `from_json` and `from_csv` refuse this mode"),
    (
        "a time of day without a date, as a timestamp",
        "malformed: a replay would give another day",
        "that time on the day of the read",
    ),
    (
        "topic, partition, offset or file of a row",
        "`metadataColumns`",
        "select Spark's columns in the phase's function",
    ),
    (
        "Kafka's client",
        "librdkafka; no jar. Some of Java's properties are refused",
        "Java's, from Spark's Kafka package",
    ),
    (
        "another thread starts a plain query meanwhile",
        "works",
        "may be refused while a phase starts ([sessions](rules.md#sparks-own-readers-as-phases))",
    ),
)

_OPTIONS = """# Options of hybrid

The source itself is described in [hybrid](hybrid.md).

"""
_SECRETS = """## Secrets

The source writes no secret option to logs, offsets or errors: `fs.*`, passwords and keys of `kafka.*`,
`schema.registry.basic.auth.user.info` and `schema.registry.ssl.key.password`.

Spark itself writes a stream's options into its plans, and so into `explain`, analysis errors, its UI and its event
log. It hides options whose name or value matches `spark.redaction.regex` (by default secret, password, token and
access key) or `spark.sql.redaction.options.regex` (by default url). `bs.register` adds the options above to the
second setting. Each query of `backlog_spark` calls it. Set your own value before that call. If you only use
`readStream` with an installed package, `bs.register` is not called. Then set it in `spark-defaults.conf`, on one line:

```properties
{line}
```

Spark does not treat a path, or the value of another option, as a secret: give keys as `fs.*`.

"""


def redaction_line() -> str:
    """What `backlog_spark.register` sets in a session, as a line of spark-defaults.conf."""
    return f"{REDACTION}  {redaction([data_source(name) for name in CONNECTORS], '(?i)url')}"


def pages() -> dict[str, str]:
    """File name -> text: the source, and its options."""
    columns = "".join(f"| `{name}` | {kind} |\n" for name, kind in METADATA.items())
    both = "".join(f"| {' | '.join(row)} |\n" for row in _BOTH)
    text = (
        _TEXT.replace("@both@", '| | `bs.source("hybrid")` | `bs.hybrid` |\n|---|---|---|\n' + both)
        + "All options are in [Options of hybrid](hybrid_options.md).\n\n"
        + _SECRETS.format(line=redaction_line())
        + "## Metadata columns\n\nNULL in phases that do not have the column. `_metadata` has the fields of "
        + "[Spark's own](file_formats.md#metadata) for files. "
        + "The last five are of [changes](change_topics.md)."
        + " In other phases `_change_type` is `insert` and `_commit_seq` is 0.\n\n"
        + "| column | type in Arrow |\n|---|---|\n"
        + columns
    )
    parts = {
        "the source": HybridOptions,
        "a file phase": FileOptions,
        "a Delta phase": DeltaOptions,
        "a Kafka phase": KafkaOptions,
        "records": DecodeOptions,
    }
    tables = "\n".join(
        f"## Options of {name}\n\n{option_table(options_of(kind, with_docs=True), spark='Spark')}"
        for name, kind in parts.items()
    )
    return {"hybrid.md": text, "hybrid_options.md": _OPTIONS + tables.replace("](#", "](hybrid.md#")}
