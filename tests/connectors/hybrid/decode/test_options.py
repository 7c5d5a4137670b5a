"""The options of decoding: valid values, and errors for invalid ones."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from backlog_spark.connectors.hybrid.decode import FORMATS, DecodeOptions, parse
from backlog_spark.connectors.hybrid.decode.patterns import Pattern
from backlog_spark.connectors.hybrid.decode.texts import Formats
from backlog_spark.errors import SettingError
from backlog_spark.spi.schema_registry import RegistryOptions


def test_defaults_are_those_of_spark() -> None:
    assert parse({"valueFormat": "json"}) == DecodeOptions(
        format="json", mode="PERMISSIVE", corrupt="_corrupt_record", formats=Formats(0), non_finite=True,
        sep=",", quote='"', escape="\\", null_value="", avro_schema="", avro_schema_file="", registry=None,
    )  # fmt: skip


def test_all() -> None:
    found = parse(
        {
            "VALUEFORMAT": "CSV",
            "Mode": "failfast",
            "columnNameOfCorruptRecord": "bad",
            "timeZone": "+02:00",
            "dateFormat": "dd/MM/yyyy",
            "timestampNTZFormat": "yyyy",
            "allowNonNumericNumbers": "FALSE",
            "sep": "\\t",
            "quote": "",
            "escape": '"',
            "nullValue": "NULL",
            "subscribe": "t",
        }
    )
    date, local = Pattern("dateFormat", "dd/MM/yyyy", "date"), Pattern("timestampNTZFormat", "yyyy", "timestamp_ntz")
    assert found == DecodeOptions(
        "csv", "FAILFAST", "bad", Formats(7200, date, None, local), False, "\t", "", '"', "NULL"
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(found)) == found
    assert found.formats.timestamp is None


REGISTRY = {"valueFormat": "avro", "schema.registry.url": "https://a:1/,https://b:2"}


def test_registry() -> None:
    found = parse(
        {
            **REGISTRY,
            "schema.registry.basic.auth.user.info": "me:secret",
            "schema.registry.ssl.ca.location": "/ca",
            "schema.registry.ssl.certificate.location": "/cert",
            "schema.registry.ssl.key.location": "/key",
            "schema.registry.ssl.key.password": "hidden",
        }
    )
    expected = RegistryOptions(("https://a:1", "https://b:2"), "me:secret", "/ca", "/cert", "/key", "hidden")
    assert found.registry == expected
    assert replace(found, registry=None) == DecodeOptions("avro")
    assert "secret" not in repr(found)
    assert "hidden" not in repr(found)


@pytest.mark.parametrize(
    ("setting", "value", "more"),
    [
        ("valueFormat", "xml", {}),
        ("valueFormat", "", {}),
        ("mode", "lenient", {}),
        ("columnNameOfCorruptRecord", "", {}),
        ("timeZone", "Mars/Olympus", {}),
        ("dateFormat", "yyyy-MM-dd EEE", {}),
        ("timestampFormat", "hh:mm", {}),
        ("timestampNTZFormat", "yyyyX", {}),
        ("allowNonNumericNumbers", "yes", {}),
        ("sep", "", {}),
        ("sep", "\n", {}),
        ("delimiter", ";", {"sep": ","}),
        ("quote", "''", {}),
        ("escape", "\\\\", {}),
    ],
)
def test_what_is_refused(setting: str, value: str, more: dict[str, str]) -> None:
    with pytest.raises(SettingError) as caught:
        parse({"valueFormat": "json", **more, setting: value})
    assert caught.value.setting == setting
    assert caught.value.value == value
    assert caught.value.hint


def test_a_format_is_needed() -> None:
    with pytest.raises(SettingError, match="valueFormat = None: must be given"):
        parse({})


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({}, "avroSchema"),
        ({"avroSchema": "x", "avroSchemaFile": "y"}, "avroSchemaFile"),
        ({"avroSchema": "x", "schema.registry.url": "http://a"}, "schema.registry.url"),
    ],
)
def test_avro_needs_one_schema(given: dict[str, str], setting: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse({"valueFormat": "avro", **given})
    assert caught.value.setting == setting


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("url", "ftp://a", "is not a registry"),
        ("url", "a:8081", "is not a registry"),
        ("url", ",", "has no URL"),
        ("url", "https://me:secret@a", "contains a login"),
        ("basic.auth.user.info", "secret", "is not user:password"),
        ("ssl.key.location", "/key", "needs schema.registry.ssl.certificate.location"),
        ("ssl.key.password", "secret", "needs schema.registry.ssl.certificate.location"),
    ],
)
def test_what_is_refused_of_a_registry(name: str, value: str, why: str) -> None:
    with pytest.raises(SettingError, match=why) as caught:
        parse({**REGISTRY, f"schema.registry.{name}": value})
    assert caught.value.setting == f"schema.registry.{name}"
    assert "secret" not in str(caught.value)


def test_tls_files_without_tls() -> None:
    with pytest.raises(SettingError, match="needs TLS"):
        parse({**REGISTRY, "schema.registry.url": "http://a", "schema.registry.ssl.ca.location": "/ca"})


def test_names() -> None:
    changes = ("debezium", "debezium-avro-confluent", "canal", "maxwell")
    assert ("json", "avro", "protobuf", "csv", *changes, "raw") == FORMATS
