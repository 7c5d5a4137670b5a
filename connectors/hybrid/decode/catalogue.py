"""The documented options of decoding (pure)."""

from __future__ import annotations

from ..option import Option

__all__ = ["OPTIONS"]

OPTIONS = (
    Option(
        "valueFormat",
        "string",
        "raw",
        "Format of the values of Kafka's records; for files use `fileFormat`. raw: the columns of Spark's Kafka "
        "source.",
        "raw, json, csv, avro",
    ),
    Option(
        "mode",
        "string",
        "PERMISSIVE",
        "What happens to a malformed record. PERMISSIVE: a row with the values that could be read. DROPMALFORMED: no "
        "row. FAILFAST: an error with topic, partition and offset. A record whose schema id the registry does not know "
        "is malformed. If the registry does not answer, the request is repeated; then it is an error in each mode.",
        "PERMISSIVE, DROPMALFORMED, FAILFAST",
        "mode",
    ),
    Option(
        "columnNameOfCorruptRecord",
        "name",
        "_corrupt_record",
        "Text column for the text of malformed records, if the schema has it.",
        spark="columnNameOfCorruptRecord",
    ),
    Option(
        "timeZone", "zone", "UTC", "Zone of times without one, in records and in ORC files.", spark="timeZone"
    ),
    Option("dateFormat", "pattern", "ISO 8601", "Format of dates.", spark="dateFormat"),
    Option("timestampFormat", "pattern", "ISO 8601", "Format of timestamps.", spark="timestampFormat"),
    Option(
        "timestampNTZFormat", "pattern", "ISO 8601", "Format of timestamps without zone.",
        spark="timestampNTZFormat",
    ),
    Option(
        "allowNonNumericNumbers", "boolean", "true", "json: NaN and infinities are numbers.", "true, false",
        "allowNonNumericNumbers",
    ),
    Option("sep", "string", ",", "csv: field separator; also `delimiter`.", spark="sep, delimiter"),
    Option("delimiter", "string", ",", "csv: the same as `sep`.", spark="delimiter"),
    Option("quote", "character", '"', "csv: quotes a field; empty for none.", spark="quote"),
    Option("escape", "character", "\\", "csv: escapes a quote within quotes; empty for none.", spark="escape"),
    Option("nullValue", "string", '""', "csv: text that means NULL.", spark="nullValue"),
    Option("avroSchema", "JSON", "one of three", "avro: the writer schema of the records."),
    Option("avroSchemaFile", "path", "one of three", "avro: a file with the writer schema, readable by the driver."),
    Option("schema.registry.url", "URL", "one of three", "avro: the registry with the schema ids of the records."),
    Option(
        "schema.registry.basic.auth.user.info", "user:password", "unset",
        "avro: login for the registry. Never written to logs, offsets or errors.", secret=True,
    ),
    Option("schema.registry.ssl.ca.location", "path", "the system's", "avro: the registry's authorities."),
    Option("schema.registry.ssl.certificate.location", "path", "unset", "avro: the client's certificate."),
    Option("schema.registry.ssl.key.location", "path", "unset", "avro: its key."),
    Option("schema.registry.ssl.key.password", "string", "unset", "avro: the key's password. Secret.", secret=True),
)  # fmt: skip
