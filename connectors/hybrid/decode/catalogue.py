"""The options of decoding as the documentation lists them (pure)."""

from __future__ import annotations

from ..option import Option

__all__ = ["OPTIONS"]

OPTIONS = (
    Option(
        "valueFormat",
        "string",
        "raw",
        "What the values of Kafka's records are; of files `fileFormat` says. raw: the columns of Spark's Kafka source.",
        "raw, json, csv, avro",
    ),
    Option(
        "mode",
        "string",
        "PERMISSIVE",
        "A malformed record is a row with what could be read of it (PERMISSIVE), no row (DROPMALFORMED), or an error "
        "(FAILFAST, which names the topic, partition and offset). A record whose schema id the registry does not know "
        "is malformed; a registry that does not answer is asked again, then it is an error in each mode.",
        "PERMISSIVE, DROPMALFORMED, FAILFAST",
        "mode",
    ),
    Option(
        "columnNameOfCorruptRecord",
        "name",
        "_corrupt_record",
        "Text column, if the schema has it, that takes the text of malformed records.",
        spark="columnNameOfCorruptRecord",
    ),
    Option(
        "timeZone", "zone", "UTC", "Of times that do not say theirs, in records and in ORC files.", spark="timeZone"
    ),
    Option("dateFormat", "pattern", "ISO 8601", "How dates are written.", spark="dateFormat"),
    Option("timestampFormat", "pattern", "ISO 8601", "How timestamps are written.", spark="timestampFormat"),
    Option(
        "timestampNTZFormat", "pattern", "ISO 8601", "How timestamps without zone are written.",
        spark="timestampNTZFormat",
    ),
    Option(
        "allowNonNumericNumbers", "boolean", "true", "json: NaN and infinities are numbers.", "true, false",
        "allowNonNumericNumbers",
    ),
    Option("sep", "string", ",", "csv: what is between two fields; also `delimiter`.", spark="sep, delimiter"),
    Option("delimiter", "string", ",", "csv: the same as `sep`.", spark="delimiter"),
    Option("quote", "character", '"', "csv: around a field; empty for none.", spark="quote"),
    Option("escape", "character", "\\", "csv: before a quote within quotes; empty for none.", spark="escape"),
    Option("nullValue", "string", '""', "csv: what stands for NULL.", spark="nullValue"),
    Option("avroSchema", "JSON", "one of three", "avro: the schema that records were written with."),
    Option("avroSchemaFile", "path", "one of three", "avro: a file with it, which the driver can read."),
    Option("schema.registry.url", "URL", "one of three", "avro: the registry whose ids the records name."),
    Option(
        "schema.registry.basic.auth.user.info", "user:password", "unset",
        "avro: for the registry. Never written to logs, offsets or errors.", secret=True,
    ),
    Option("schema.registry.ssl.ca.location", "path", "the system's", "avro: who signed the registry's certificate."),
    Option("schema.registry.ssl.certificate.location", "path", "unset", "avro: the client's certificate."),
    Option("schema.registry.ssl.key.location", "path", "unset", "avro: its key."),
    Option("schema.registry.ssl.key.password", "string", "unset", "avro: the key's password. Secret.", secret=True),
)  # fmt: skip
