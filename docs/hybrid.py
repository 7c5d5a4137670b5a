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
schema: the option `schema`, or the schema of the first phase's data. Each phase except the last one must have an end.
A Kafka phase has an end with `endingOffsets`.

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
The offset has only its digest and a position. Files that arrive later are not read. If a file was removed or changed,
the query stops unless `failOnDataLoss=false`.

**Delta.** The query reads the version of its first start. Keep that version's files and log (VACUUM,
`delta.logRetentionDuration`) until its phase has ended. If the table's columns change later and `schema` is not set, a
restart is refused; the error says how to set `schema`. This also applies after the phase, while the table's log has
that version.

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
batches and for tasks. In an object store (S3 through `s3fs`: `path=s3://bucket/data`, `fs.key`, `fs.secret`) the ETag
identifies a file.

## Kafka

* The source reads up to the last stable offset (`read_committed`), so it does not see aborted transactions.
* New partitions and topics are read from their beginning.
* If retention has removed unread records, or a topic was deleted and created again, the query stops and names the
  position. With `failOnDataLoss=false` it warns and continues at the first record that exists.
* In the last phase there is backlog again while `backlogLagThreshold` (age of an unread record) or
  `backlogOffsetsThreshold` (number of unread records) is exceeded. It ends below a lower threshold, but not before
  `backlogMinStay`.
* confluent-kafka reads, which is librdkafka. Properties `kafka.*` have Java's names, as in Spark. Properties without a
  counterpart in librdkafka are refused.

## Records

JSON, CSV and Avro become the same columns as with Spark's own `from_json`, `from_csv` and `from_avro`. Lines of JSON
and CSV files are decoded like the values of Kafka's records. A record without a value (a tombstone) is a row of NULLs.
With `tombstones=drop` there is no row for it.

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
    ("formats of files", "Parquet, ORC, JSON, CSV", "all of Spark's streams of files, also text, XML and Avro"),
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
    ("dates in Spark's old calendar", "refused", "converted"),
    ("file systems", "of fsspec", "of Hadoop"),
    ("Avro in Kafka with a Schema Registry", "yes", "no: `from_avro` of Spark knows no registry"),
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
        "fixed at the first start; a file that was changed stops the query",
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
        + "## Metadata columns\n\nNULL in phases that do not have the column.\n\n"
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
