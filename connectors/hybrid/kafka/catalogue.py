"""The options of the Kafka phase, as documented, with Spark's names (pure)."""

from __future__ import annotations

from ..option import Option

__all__ = ["OPTIONS"]


def _as_spark(name: str, kind: str, default: str, doc: str, bounds: str = "") -> Option:
    return Option(name, kind, default, doc, bounds, name)


OPTIONS = (
    _as_spark("subscribe", "names", "one of three", "Topics to read, separated by commas."),
    _as_spark(
        "subscribePattern",
        "regular expression",
        "one of three",
        "Reads topics whose whole name matches, in Python's syntax, also those that are created later. Never Kafka's "
        "internal topics.",
    ),
    Option(
        "allowEmpty",
        "boolean",
        "false",
        "true: `subscribePattern` may match no topic when the phase begins. false: the query is refused.",
        "true, false",
    ),
    _as_spark("assign", "JSON", "one of three", 'Reads only these partitions: `{"topic": [0, 1]}`.'),
    Option(
        "startingFrom",
        "string",
        "offsets",
        "Where to begin. offsets: as the options below say. lastFileTimestamp: at the first record that is as old as "
        "the newest row of the files before, minus `startingOverlap`; if there was no row, as the options below say. "
        "Records that arrive after the first start of the query are read whatever their time.",
        "offsets, lastFileTimestamp",
    ),
    Option(
        "startingOverlap",
        "duration",
        "0 s",
        "How long before the files' newest row to begin, for records that came late. `dedupKey` drops the duplicates "
        "that this causes.",
    ),
    Option(
        "dedupKey",
        "names",
        "unset",
        "Data columns that, together with the files' `timestampColumn`, match a record to a row of the files. A record "
        "is dropped if it equals a row in all of them, to the microsecond, and is not newer than the files' newest row "
        "by the record's own timestamp. The same key with another time is another version, and is read. "
        "A key that contains NULL is never de-duplicated.",
    ),
    _as_spark(
        "startingOffsets",
        "string or JSON",
        "earliest",
        "Where to begin: earliest, latest, or an offset for each partition, "
        '`{"topic": {"0": 23, "1": -2}}`, -2 for earliest and -1 for latest. Partitions that are added later are read '
        "from their beginning. Earliest and latest mean those at the query's first start. (Spark's default in streams "
        "is latest.)",
        "earliest, latest, JSON",
    ),
    _as_spark(
        "startingTimestamp",
        "int",
        "unset",
        "Begins with the first record of that time or later, milliseconds since 1970. Overrides "
        "`startingOffsetsByTimestamp`, which overrides `startingOffsets`.",
        ">= 0",
    ),
    _as_spark(
        "startingOffsetsByTimestamp", "JSON", "unset", 'The same for each partition: `{"topic": {"0": 1700000000000}}`.'
    ),
    _as_spark(
        "startingOffsetsByTimestampStrategy",
        "string",
        "error",
        "For a partition without a record of that time or later. error: stops the query. latest: begins at its end.",
        "error, latest",
    ),
    _as_spark(
        "endingOffsets",
        "string or JSON",
        "unset",
        "Where the phase ends. Without it the phase has no end. latest: the end when the phase begins. JSON: for each "
        "partition the offset after the last one, -1 for latest. The phase waits for offsets that do not exist yet.",
        "latest, JSON",
    ),
    _as_spark(
        "endingTimestamp",
        "int",
        "unset",
        "Ends before the first record of that time or later, milliseconds since 1970. Without such a record, ends at "
        "the end when the phase begins. Overrides `endingOffsetsByTimestamp`, which overrides `endingOffsets`.",
        ">= 0",
    ),
    _as_spark("endingOffsetsByTimestamp", "JSON", "unset", "The same for each partition."),
    _as_spark(
        "minPartitions",
        "int",
        "one task a partition",
        "Cuts partitions with many unread records, so that a batch has about this many tasks.",
        ">= 1",
    ),
    _as_spark(
        "failOnDataLoss",
        "bool",
        "true",
        "true: the query stops if unread records are gone (retention, a topic deleted or created again), also while "
        "earlier phases are read, or if the topic does not go back to the starting point. false: it warns and goes on "
        "with the earliest record.",
        "true, false",
    ),
    _as_spark("includeHeaders", "bool", "false", "With `valueFormat=raw`, adds a column `headers`.", "true, false"),
    Option(
        "tombstones",
        "string",
        "null",
        "What a record without a value becomes. null: a row with NULL in its data columns. drop: no row.",
        "null, drop",
    ),
    Option(
        "backlogLagThreshold",
        "duration",
        "unset",
        "The phase enters backlog while an unread record is older than this, by the records' timestamps (FLIP-309).",
        "> 0",
    ),
    Option(
        "backlogLagLeaveThreshold",
        "duration",
        "half of backlogLagThreshold",
        "It leaves backlog when no unread record is older than this.",
        "0..backlogLagThreshold",
    ),
    Option(
        "backlogOffsetsThreshold",
        "int",
        "unset",
        "The phase enters backlog while more offsets than this are unread, in all partitions together.",
        ">= 1",
    ),
    Option(
        "backlogOffsetsLeaveThreshold",
        "int",
        "half of backlogOffsetsThreshold",
        "It leaves backlog when at most this many are unread.",
        "0..backlogOffsetsThreshold",
    ),
    Option("backlogMinStay", "duration", "0 s", "Least time in or out of backlog before that changes."),
    _as_spark(
        "kafka.bootstrap.servers",
        "addresses",
        "required",
        "Brokers to contact first, as `host:port`, separated by commas.",
    ),
    Option(
        "kafka.*",
        "",
        "Kafka's",
        "Properties of Java's consumer that have a meaning here. Others are refused, with what to do instead. "
        "Defaults: `kafka.isolation.level` is read_committed, `kafka.check.crcs` is false.",
        spark="kafka.*",
    ),
    Option("kafka.sasl.username", "string", "unset", "Replaces `kafka.sasl.jaas.config`."),
    Option(
        "kafka.sasl.password", "string", "unset", "The same. Never written to logs, offsets or errors.", secret=True
    ),
    _as_spark(
        "groupIdPrefix",
        "string",
        "hybrid-kafka",
        "Prefix of the group ids that brokers see for the readers. (Nothing is committed under them.)",
    ),
    _as_spark(
        "kafkaConsumer.pollTimeoutMs",
        "int",
        "120000",
        "Milliseconds that a task waits for a broker before it fails.",
        ">= 1",
    ),
)
