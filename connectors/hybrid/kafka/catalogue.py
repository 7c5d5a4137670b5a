"""The options of the Kafka phase as the documentation lists them, with Spark's names for them (pure)."""

from __future__ import annotations

from ..option import Option

__all__ = ["OPTIONS"]


def _as_spark(name: str, kind: str, default: str, doc: str, bounds: str = "") -> Option:
    return Option(name, kind, default, doc, bounds, name)


OPTIONS = (
    _as_spark("subscribe", "names", "one of three", "Topics to read, with commas between."),
    _as_spark(
        "subscribePattern",
        "regular expression",
        "one of three",
        "Topics to read: those whose whole name it matches, in Python's syntax, and those that are made later. Never "
        "Kafka's internal ones.",
    ),
    Option(
        "allowEmpty",
        "boolean",
        "false",
        "Whether `subscribePattern` may match no topic when the phase begins. false: the query is refused.",
        "true, false",
    ),
    _as_spark("assign", "JSON", "one of three", 'Partitions to read, and no others: `{"topic": [0, 1]}`.'),
    Option(
        "startingFrom",
        "string",
        "offsets",
        "offsets: where the options below say. lastFileTimestamp: at the first record that is as old as the newest row "
        "of the files before, less `startingOverlap`; where there was no row, as the options below say. What comes to "
        "the topic after the query has first started is read whatever its time.",
        "offsets, lastFileTimestamp",
    ),
    Option(
        "startingOverlap",
        "duration",
        "0 s",
        "How much earlier than the files' newest row to begin, for records that came late. Rows that come twice by it "
        "are left out with `dedupKey`.",
    ),
    Option(
        "dedupKey",
        "names",
        "unset",
        "Data columns that, with the files' `timestampColumn`, tell a record for a row of the files. A record that has "
        "the same values in all of them, to the microsecond, is left out, as far as it is not newer than the files' "
        "newest row by the record's own timestamp. The same key with another time is another version, and is read. "
        "A key with a NULL in it is never known.",
    ),
    _as_spark(
        "startingOffsets",
        "string or JSON",
        "earliest",
        "Where to begin: earliest, latest, or of each partition an offset, "
        '`{"topic": {"0": 23, "1": -2}}`, -2 for earliest and -1 for latest. Of partitions that come later all is '
        "read. Earliest and latest are meant as of the time when the query first starts. (Spark's default in streams "
        "is latest.)",
        "earliest, latest, JSON",
    ),
    _as_spark(
        "startingTimestamp",
        "int",
        "unset",
        "Begin with the first record of that time or later, milliseconds since 1970. Goes before "
        "`startingOffsetsByTimestamp`, which goes before `startingOffsets`.",
        ">= 0",
    ),
    _as_spark(
        "startingOffsetsByTimestamp", "JSON", "unset", 'The same, of each partition: `{"topic": {"0": 1700000000000}}`.'
    ),
    _as_spark(
        "startingOffsetsByTimestampStrategy",
        "string",
        "error",
        "What a partition does that has no record of that time or later: stop the query, or begin at its end.",
        "error, latest",
    ),
    _as_spark(
        "endingOffsets",
        "string or JSON",
        "unset",
        "Where the phase ends, which otherwise has no end: latest (when the phase begins), or of each partition the "
        "offset after the last, -1 for latest. Offsets that do not exist yet are waited for.",
        "latest, JSON",
    ),
    _as_spark(
        "endingTimestamp",
        "int",
        "unset",
        "End before the first record of that time or later, milliseconds since 1970; where there is none, at the end "
        "as it is when the phase begins. Goes before `endingOffsetsByTimestamp`, which goes before `endingOffsets`.",
        ">= 0",
    ),
    _as_spark("endingOffsetsByTimestamp", "JSON", "unset", "The same, of each partition."),
    _as_spark(
        "minPartitions",
        "int",
        "one task a partition",
        "Cut partitions with much to read, so that a batch has about so many tasks.",
        ">= 1",
    ),
    _as_spark(
        "failOnDataLoss",
        "bool",
        "true",
        "true: the query stops when records are gone that it has not read (retention, a topic deleted or made anew), "
        "also while the phases before are read, and when the topic no longer goes back to where it is to begin. false: "
        "it warns, and goes on with the earliest that there is.",
        "true, false",
    ),
    _as_spark("includeHeaders", "bool", "false", "With `valueFormat=raw`, a column `headers` as well.", "true, false"),
    Option(
        "tombstones",
        "string",
        "null",
        "What becomes of a record without a value. null: a row, its data columns NULL. drop: nothing.",
        "null, drop",
    ),
    Option(
        "backlogLagThreshold",
        "duration",
        "unset",
        "It is backlog while a record has not been read that is older than this, by the records' timestamps "
        "(FLIP-309).",
        "> 0",
    ),
    Option(
        "backlogLagLeaveThreshold",
        "duration",
        "half of backlogLagThreshold",
        "… and stays it until none is left that is older than this.",
        "0..backlogLagThreshold",
    ),
    Option(
        "backlogOffsetsThreshold",
        "int",
        "unset",
        "It is backlog while more offsets than these have not been read, in all partitions.",
        ">= 1",
    ),
    Option(
        "backlogOffsetsLeaveThreshold",
        "int",
        "half of backlogOffsetsThreshold",
        "… and stays it until no more than these are left.",
        "0..backlogOffsetsThreshold",
    ),
    Option("backlogMinStay", "duration", "0 s", "How long it is, or is not, backlog at least before that changes."),
    Option(
        "kafka.client",
        "string",
        "confluent",
        "Python library that reads, both with the same results; confluent is several times faster.",
        "confluent, kafka-python",
    ),
    _as_spark("kafka.bootstrap.servers", "addresses", "required", "Brokers to ask first, `host:port` and commas."),
    Option(
        "kafka.*",
        "",
        "Kafka's",
        "Properties of Java's consumer, as far as they have a meaning here; others are refused with what to do "
        "instead. By default `kafka.isolation.level` is read_committed and `kafka.check.crcs` false.",
        spark="kafka.*",
    ),
    Option("kafka.sasl.username", "string", "unset", "In the place of `kafka.sasl.jaas.config`."),
    Option(
        "kafka.sasl.password", "string", "unset", "Likewise. Never written to logs, offsets or errors.", secret=True
    ),
    _as_spark(
        "groupIdPrefix",
        "string",
        "hybrid-kafka",
        "What the names begin with under which brokers know the readers. (Nothing is committed under them.)",
    ),
    _as_spark(
        "kafkaConsumer.pollTimeoutMs",
        "int",
        "120000",
        "How long a task waits for a broker that does not answer before it fails, milliseconds.",
        ">= 1",
    ),
)
