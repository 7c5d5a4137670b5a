"""The page about the source ``hybrid``: its text, and the tables of its options from the code."""

from __future__ import annotations

from backlog_spark.spark.session import REDACTION, redaction
from backlog_spark.spi.registry import CONNECTORS, data_source
from connectors.hybrid.catalogue import OPTIONS
from connectors.hybrid.decode.catalogue import OPTIONS as DECODE
from connectors.hybrid.files.catalogue import DELTA, FILES
from connectors.hybrid.kafka.catalogue import OPTIONS as KAFKA
from connectors.hybrid.option import option_table
from connectors.hybrid.phases import METADATA

__all__ = ["page", "redaction_line"]

_TEXT = """# hybrid

Old data from files or a Delta table, then a Kafka topic, as one source of one query: Flink's HybridSource with
`isProcessingBacklog` (FLIP-309). The flag is true until the last phase begins, and the batch that comes to that
place is the last one of the backlog. This holds for a last phase that has an end too. A source of one bounded phase is
in backlog until it ends.

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

`phases` names the phases in their order, each a kind (`files`, `delta`, `kafka`) or `name:kind`; by default `files,
kafka`. An option is for all phases that know it, `phase.<name>.<option>` for one: `phases="table:delta, more:files,
live:kafka"` with `phase.table.path` and `phase.more.path`. All phases give one schema: that of the option, or the
one that the first phase's data declare. Every phase but the last must have an end; a Kafka phase has one with
`endingOffsets`.

`spark.readStream.format("hybrid")` works alone too; it then needs `metadataLocation`, a directory beside the
checkpoint, which a query's runner sets by itself.

A query of `backlog_spark` looks once, before its first `start` returns, whether all that the options name is there:
directories, tables, topics, brokers, and columns as far as the data tell them. A path without any file is refused
(`allowEmpty=true` takes it for no history), and so is a `subscribePattern` that no topic matches. A plain `readStream`
finds the same mistakes when it reads.

## What is fixed

The list of files is made once, when the query first starts, for all phases, and kept in `metadataLocation`; the offset
only has its digest and a place. Files that come later are not read, and one that is gone or was changed is an error
unless `failOnDataLoss=false`. Of a Delta table the version of the first start is read: keep its files and its log
(VACUUM, `delta.logRetentionDuration`) until its phase has ended.
Where its columns change later and `schema` is not set, a
restart is refused, with what to set it to; the same holds when the phase is over, as long as the table's log has that
version. Where Kafka begins is logged with the batch that ends the phase before. So a replay reads the same rows.

There is no gap between the phases. The offsets of each partition are noted when the query first starts, before files
are listed, and `earliest` and `latest` mean what they were then,
so that all that comes while files are read is read later. Records that retention
removes meanwhile, a topic that is made anew meanwhile and first records that are gone of a partition that was added
meanwhile stop the query unless `failOnDataLoss=false`.

With `startingFrom=lastFileTimestamp` Kafka begins at the time of the files' newest row (`timestampColumn`), less
`startingOverlap`. Records that are in both are then left out by `dedupKey`: the keys of the files' rows within the
overlap are kept beside the checkpoint with their times. A record is left out if a row has its key and its time
(`timestampColumn`, which both must have to the same microsecond) and it is not newer than the files' newest time by its
own timestamp. A record with the key of a row and another time is a version that the files do not have: it is read. It
does not matter in which order records are and whether they came to the topic before its phase began. A key with a NULL
in it is never known: such records are rows like others.

The query stops where the topic does not go back to that time: the error names the partition, and from when to when
records may be missing. A partition goes back far enough if it has an older record, or if nothing was ever removed from
it. The query also stops where that time was in the future when the files were listed. With `failOnDataLoss=false` it
warns, and begins at the first record that there is, or at the time of the list.

A batch of backlog may hold the rest of one phase and the beginning of the next; with an interval during backlog of
0 all bounded phases are one. Large Parquet and ORC files are cut at row groups and stripes, for batches and for
tasks. In an object store (S3 through `s3fs`: `path=s3://bucket/data`, `fs.key`, `fs.secret`) a file is known by
its ETag.

## Kafka

Offsets are read up to the last stable one (`read_committed`), so aborted transactions are not seen. New partitions
and topics are read from their beginning. When retention has taken records that were not read, or a topic was
deleted and made again, the query stops with the place, or with `failOnDataLoss=false` goes on at the first record
there is, with a warning.

In the last phase there is backlog again while `backlogLagThreshold` or `backlogOffsetsThreshold` is exceeded: an
unread record is older, or more of them are unread. It ends below the lower threshold, and not before
`backlogMinStay`.

`kafka.client=confluent` (the default) is librdkafka, `kafka-python` is pure Python, with the same results and a
fraction of the speed. Properties `kafka.*` have Java's names, as in Spark; what librdkafka has no counterpart for
is refused.

## Records

JSON, CSV and Avro become columns as Spark's own `from_json`, `from_csv` and `from_avro` make them, and lines of
JSON and CSV files as the values of Kafka's records. A record without a value (a tombstone) is a row of NULLs, or
none with `tombstones=drop`.

## Old dates

Until version 3.0 Spark had the Julian calendar before 1582-10-15, and its files may have it today. Parquet and ORC
give the dates and times that Spark's own readers make of them, by the marks in each file. Parquet without
`org.apache.spark.version` is in today's calendar, as with Spark's default `datetimeRebaseModeInRead=CORRECTED`; ORC
that does not say its calendar, such as pyarrow's, is in the old one, as for ORC's Java reader. Refused, for Spark's
readers (`bs.hybrid`) to read, are timestamps before 1900 in a Parquet file that is so marked and was written in
another zone than UTC, dates before 1582-10-15 in ORC files compressed as LZ4 or LZO, and ORC's timestamps outside of
1677-09-21 to 2262-04-11, such as `9999-12-31 23:59:59`. Columns that are not declared are not looked at.

"""

_SECRETS = """## Secrets

Options that hold secrets (`fs.*`, passwords and keys of `kafka.*`, `schema.registry.basic.auth.user.info` and
`schema.registry.ssl.key.password`) are in no log, offset or error text of the source. Spark itself writes a stream's
options into its plans, and so into `explain`, errors of analysis, its UI and its event log. It leaves out those whose
name or value is found by `spark.redaction.regex` (by default secret, password, token and access key) or by
`spark.sql.redaction.options.regex` (by default url). `bs.register`, which each query of `backlog_spark` calls, puts
the options above before what the latter is in the session; set your own value before. Where Spark finds the source by
itself, from an installed package, nothing does so: set it in `spark-defaults.conf`, on one line:

```
{line}
```

What is in a path or in a value of another option is not a secret to Spark: give keys as `fs.*`.

"""


def redaction_line() -> str:
    """What `backlog_spark.register` sets in a session, as a line of spark-defaults.conf."""
    return f"{REDACTION}  {redaction([data_source(name) for name in CONNECTORS], '(?i)url')}"


def page() -> str:
    """The page in Markdown."""
    columns = "".join(f"| `{name}` | {kind} |\n" for name, kind in METADATA.items())
    return (
        _TEXT
        + _SECRETS.format(line=redaction_line())
        + "## Options of the source\n\n"
        + option_table(OPTIONS)
        + "\n## Options of a phase of files\n\n"
        + option_table(FILES)
        + "\n## Options of a phase of Delta\n\n"
        + option_table(DELTA)
        + "\n## Options of a phase of Kafka\n\n"
        + option_table(KAFKA)
        + "\n## Options of records\n\n"
        + option_table(DECODE)
        + "\n## Metadata columns\n\nNULL where a phase has no such thing.\n\n| column | type in Arrow |\n|---|---|\n"
        + columns
    )
