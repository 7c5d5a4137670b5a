"""Parsing of options, and errors for wrong ones."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.connectors.hybrid.kafka.backlog import OffsetThresholds
from backlog_spark.connectors.hybrid.kafka.offsets import EARLIEST, LATEST
from backlog_spark.connectors.hybrid.kafka.options import Boundary, KafkaOptions, Topics
from backlog_spark.connectors.hybrid.kafka.properties import Properties
from backlog_spark.errors import SettingError
from backlog_spark.sinks.kafka.properties import ProducerProperties
from backlog_spark.spi.kafka_jaas import parse_jaas
from backlog_spark.spi.kafka_security import SECURITY_NAMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BASE = {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "t"}
PLAIN = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}
LOGIN = {**PLAIN, "kafka.sasl.username": "u", "kafka.sasl.password": "s3cret"}


def _parse(**options: str) -> KafkaOptions:
    return KafkaOptions.parse({**BASE, **_dotted(options)})


def _dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in options.items()}


def test_defaults() -> None:
    found = _parse()
    assert found.topics == Topics(names=("t",))
    assert found.starting == Boundary("startingOffsets", everywhere=EARLIEST)
    assert (found.ending, found.from_files, found.overlap_ms, found.dedup_key) == (None, False, 0, ())
    assert (found.min_partitions, found.fail_on_data_loss, found.include_headers) == (None, True, False)
    assert (found.drop_tombstones, found.thresholds, found.poll_timeout_ms) == (False, OffsetThresholds(), 120_000)
    assert found.properties.servers == "a:1,b:2"
    assert found.properties.read_committed


def test_names_in_any_case_as_spark_hands_them_on() -> None:
    given = {
        **{"startingoffsets": "LATEST", "FAILONDATALOSS": "False", "minpartitions": "3"},
        "KAFKA.fetch.MIN.bytes": "7",
    }
    found = KafkaOptions.parse({**BASE, **given})
    assert (found.starting.everywhere, found.fail_on_data_loss, found.min_partitions) == (LATEST, False, 3)
    assert found.properties.tuning == (("fetch.min.bytes", "7"),)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": " b , a "}, Topics(names=("a", "b"))),
        ({"subscribe": "", "subscribePattern": r"a_\d"}, Topics(pattern=r"a_\d")),
        ({"subscribe": "", "assign": '{"b": [1, 0], "a": [3]}'}, Topics(partitions=(("a", 3), ("b", 0), ("b", 1)))),
    ],
)
def test_topics(options: dict[str, str], expected: Topics) -> None:
    assert _parse(**options).topics == expected


@pytest.mark.parametrize(
    ("options", "starting", "ending"),
    [
        ({"startingOffsets": '{"t": {"0": -1, "1": 5}}'}, {"offsets": {("t", 0): -1, ("t", 1): 5}}, None),
        (
            {"startingTimestamp": "9", "startingOffsetsByTimestampStrategy": "latest"},
            {"option": "startingTimestamp", "timestamp": 9, "or_latest": True},
            None,
        ),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 5}}', "startingOffsets": "latest"},
            {"option": "startingOffsetsByTimestamp", "timestamps": {("t", 0): 5}},
            None,
        ),
        ({"endingOffsets": "latest"}, {}, Boundary("endingOffsets", everywhere=LATEST)),
        ({"endingOffsets": '{"t": {"0": -1}}'}, {}, Boundary("endingOffsets", offsets={("t", 0): -1})),
        ({"endingTimestamp": "5"}, {}, Boundary("endingTimestamp", timestamp=5, or_latest=True)),
    ],
)
def test_boundaries(options: dict[str, str], starting: dict[str, Any], ending: Boundary | None) -> None:
    found = _parse(**options)
    assert found.starting == Boundary(**{"option": "startingOffsets", **starting})
    assert found.ending == ending


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"backlogLagThreshold": "5 min"}, OffsetThresholds(lag_ms=300_000, lag_leave_ms=150_000)),
        (
            {"backlogLagThreshold": "5 min", "backlogLagLeaveThreshold": "0 s", "backlogMinStay": "2 s"},
            OffsetThresholds(lag_ms=300_000, lag_leave_ms=0, min_stay_ms=2000),
        ),
        ({"backlogOffsetsThreshold": "9"}, OffsetThresholds(offsets=9, offsets_leave=4)),
        (
            {"backlogOffsetsThreshold": "9", "backlogOffsetsLeaveThreshold": "9"},
            OffsetThresholds(offsets=9, offsets_leave=9),
        ),
    ],
)
def test_thresholds(options: dict[str, str], expected: OffsetThresholds) -> None:
    assert _parse(**options).thresholds == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": ""}, r"subscribe = None: the Kafka phase needs this, subscribePattern or assign\."),
        ({"subscribePattern": "a"}, r"subscribePattern = 'a': subscribe is given as well\. Give one of"),
        ({"subscribe": "a,,b"}, r"subscribe = 'a,,b': has an empty name"),
        ({"subscribe": "a,a"}, r"subscribe = 'a,a': names a twice"),
        ({"subscribe": "", "subscribePattern": "("}, r"subscribePattern = '\(': is not a regular expression"),
        ({"subscribe": "", "assign": "t"}, r"assign = 't': is not a JSON object\. For example"),
        ({"subscribe": "", "assign": '{"t": []}'}, r"assign = .*'t' has no list of partitions"),
        ({"subscribe": "", "assign": '{"t": [0, 0]}'}, r"assign = .*names t-0 twice"),
        ({"subscribe": "", "assign": '{"t": [-1]}'}, r"assign = .*-1 is not a partition number"),
        ({"kafka__bootstrap__servers": " "}, r"kafka\.bootstrap\.servers = .* needs this option"),
        ({"startingOffsets": "erliest"}, r"startingOffsets = 'erliest': is not a JSON object"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, r"-3 of t-0 is not an integer >= -2"),
        ({"startingOffsets": '{"t": {"0": true}}'}, r"True of t-0 is not an integer"),
        ({"startingOffsets": '{"t": {"x": 1}}'}, r"'x' is not a partition number"),
        ({"startingOffsets": '{"t": {}}'}, r"'t' has no object of partitions"),
        ({"startingOffsets": "{}"}, r"names no partition"),
        ({"startingTimestamp": "yesterday"}, r"startingTimestamp = 'yesterday': is not an integer >= 0"),
        ({"startingOffsetsByTimestampStrategy": "x"}, r"Strategy = 'x': is none of error, latest"),
        ({"endingOffsets": "earliest"}, r"endingOffsets = 'earliest': a phase cannot end where it may begin"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, r"-2 of t-0 is not an integer >= -1"),
        ({"startingFrom": "files"}, r"startingFrom = 'files': is none of offsets, lastFileTimestamp"),
        ({"startingOverlap": "1 s"}, r"startingOverlap = '1 s': has no meaning with startingFrom=offsets"),
        ({"minPartitions": "0"}, r"minPartitions = '0': is not an integer >= 1"),
        ({"failOnDataLoss": "maybe"}, r"failOnDataLoss = 'maybe': is none of true, false"),
        ({"tombstones": "keep"}, r"tombstones = 'keep': is none of null, drop"),
        ({"backlogLagThreshold": "0 s"}, r"backlogLagThreshold = '0 s': must be above 0"),
        ({"backlogLagThreshold": "300"}, r"backlogLagThreshold = '300': the number 300 has no unit"),
        ({"backlogLagLeaveThreshold": "1 s"}, r"LeaveThreshold = '1 s': has no meaning without backlogLagThreshold"),
        (
            {"backlogOffsetsThreshold": "5", "backlogOffsetsLeaveThreshold": "6"},
            r"backlogOffsetsLeaveThreshold = '6': is above backlogOffsetsThreshold",
        ),
        ({"startingOfsets": "latest"}, r"startingOfsets = '\*\*\*': .* no such option\. Did you mean startingOffsets"),
        ({"maxOffsetsPerTrigger": "5"}, r"maxOffsetsPerTrigger = .*Set it for the stream"),
        ({"kafka__client": "java"}, r"kafka\.client = .*confluent-kafka reads all topics\. Leave it out"),
        ({"kafka__bootstrap__server": "x"}, r"kafka\.bootstrap\.server = .*Did you mean kafka\.bootstrap\.servers"),
        ({"kafka__auto__offset__reset": "latest"}, r"kafka\.auto\.offset\.reset = .*Set startingOffsets"),
        ({"kafka__enable__auto__commit": "true"}, r"kafka\.enable\.auto\.commit = .*in the checkpoint"),
        ({"kafka__key__deserializer": "x"}, r"kafka\.key\.deserializer = .*read as bytes"),
        ({"kafka__interceptor__classes": "x"}, r"kafka\.interceptor\.classes = .*no Java classes"),
        ({"kafka__isolation__level": "none"}, r"kafka\.isolation\.level = 'none': is neither"),
        ({"kafka__fetch__min__bytes": "1k"}, r"kafka\.fetch\.min\.bytes = '1k': is not an integer >= 0"),
        ({"kafka__check__crcs": "yes"}, r"kafka\.check\.crcs = 'yes': is neither true nor false"),
    ],
)
def test_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(SettingError, match=expected):
        _parse(**options)


def test_options_of_others_are_left_to_them() -> None:
    given = {**BASE, "ValueFormat": "json"}
    assert KafkaOptions.parse(given, others=["valueFormat"]) == KafkaOptions.parse(BASE)
    with pytest.raises(SettingError, match="ValueFormat"):
        KafkaOptions.parse(given)


PACKAGE = "org.apache.kafka.common.security"


@pytest.mark.parametrize(
    ("text", "mechanism", "expected"),
    [
        (f'{PACKAGE}.plain.PlainLoginModule required username="u" password="p";', "PLAIN", ("u", "p")),
        ('a.PlainLoginModule   required\n password="a;\\"b\\\\ c" username=u ;', "PLAIN", ("u", 'a;"b\\ c')),
        (f"{PACKAGE}.scram.ScramLoginModule required username='u' password='p'", "SCRAM-SHA-256", ("u", "p")),
        (
            f'kafkashaded.{PACKAGE}.scram.ScramLoginModule required tokenauth="true" username="u" password="";',
            "SCRAM-SHA-512",
            ("u", ""),
        ),
    ],
)
def test_jaas(text: str, mechanism: str, expected: tuple[str, str]) -> None:
    assert parse_jaas(text, mechanism) == expected


@pytest.mark.parametrize(
    ("text", "mechanism", "expected"),
    [
        ("s3cret", "PLAIN", "is not a JAAS line"),
        (
            'a.PlainLoginModule required username="u" password="s3cret";',
            "SCRAM-SHA-256",
            "PlainLoginModule does not fit",
        ),
        ('a.PlainLoginModule required username="u" s3cret;', "PLAIN", "an option that is not name=value"),
        ('a.PlainLoginModule required password="s3cret";', "PLAIN", "no username and password"),
        ('a.Krb5LoginModule required useKeyTab="s3cret";', "GSSAPI", "Krb5LoginModule does not fit"),
    ],
)
def test_errors_of_jaas_show_no_secret(text: str, mechanism: str, expected: str) -> None:
    with pytest.raises(SettingError, match=expected) as caught:
        parse_jaas(text, mechanism)
    assert "s3cret" not in str(caught.value)


def test_login_by_jaas_is_login_by_name_and_password() -> None:
    jaas = 'x.PlainLoginModule required username="u" password="s3cret";'
    one = KafkaOptions.parse({**BASE, **PLAIN, "kafka.sasl.jaas.config": jaas}).properties.security
    two = KafkaOptions.parse({**BASE, **LOGIN}).properties.security
    assert one == two
    assert (one.username, one.password, one.has_tls, one.has_login) == ("u", "s3cret", True, True)


def test_nothing_shows_a_secret() -> None:
    keys = {
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "certificate",
        "kafka.ssl.keystore.key": "s3cret key",
        "kafka.ssl.key.password": "s3cret of the key",
    }
    found = KafkaOptions.parse({**BASE, **LOGIN, **keys})
    for shown in (repr(found), str(found.properties), str(found.properties.security)):
        assert "s3cret" not in shown
    assert "'u'" in repr(found)
    assert set(found.properties.security.secrets()) == {"s3cret", "s3cret key", "s3cret of the key"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kafka.security.protocol": "TLS"}, "'TLS': is none of PLAINTEXT, SSL"),
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism = 'GSSAPI': is Kerberos .*backlog_when"),
        (PLAIN, "kafka.sasl.jaas.config = None: .* needs a user and a password"),
        ({**LOGIN, "kafka.sasl.jaas.config": "x"}, "kafka.sasl.jaas.config is given too"),
        ({"kafka.sasl.password": "s3cret"}, "no meaning with kafka.security.protocol=PLAINTEXT. Set .*SASL_SSL"),
        ({"kafka.ssl.ca.location": "f"}, "kafka.ssl.ca.location = .*no meaning with .*=PLAINTEXT"),
        (
            {**LOGIN, "kafka.ssl.truststore.location": "f.jks"},
            "'JKS': .* only Java can read. Write .* `keytool -list -rfc -keystore f.jks > f.pem`",
        ),
        ({**LOGIN, "kafka.ssl.keystore.type": "PKCS12"}, "keystore.type = 'PKCS12'"),
        ({**LOGIN, "kafka.ssl.truststore.password": "s3cret"}, "ssl.truststore.type = 'JKS'"),
        (
            {**LOGIN, "kafka.ssl.keystore.password": "s3cret", "kafka.ssl.keystore.type": "PEM"},
            "kafka.ssl.keystore.password = .*has none. Leave it out. The key's",
        ),
        ({**LOGIN, "kafka.ssl.key.location": "f"}, "private key is given without its certificate"),
        ({**LOGIN, "kafka.ssl.endpoint.identification.algorithm": "x"}, "neither https nor none"),
        (
            {
                **LOGIN,
                "kafka.ssl.ca.pem": "f",
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.certificates": "f",
            },
            "kafka.ssl.truststore.certificates is the same option",
        ),
    ],
)
def test_errors_of_security_show_no_secret(options: dict[str, str], expected: str) -> None:
    with pytest.raises(SettingError, match=expected) as caught:
        KafkaOptions.parse({**BASE, **options})
    assert "s3cret" not in str(caught.value)


def test_properties_have_librdkafkas_names() -> None:
    given = {
        "kafka.fetch.max.wait.ms": "7",
        "kafka.request.timeout.ms": "8",
        "kafka.check.crcs": "TRUE",
        "kafka.client.id": "me",
        "kafka.receive.buffer.bytes": "-1",
    }
    found = KafkaOptions.parse({**BASE, **given}).properties
    assert found.for_librdkafka() == {
        "client.id": "me",
        "fetch.wait.max.ms": "7",
        "check.crcs": "true",
        "socket.receive.buffer.bytes": "-1",
        "socket.timeout.ms": "8",
    }
    native = KafkaOptions.parse({**BASE, "kafka.queued.min.messages": "5"}).properties
    assert native.for_librdkafka() == {"queued.min.messages": "5"}


@pytest.mark.parametrize("side", ["consumer", "producer"])
def test_each_property_of_javas_client_is_taken_or_has_a_next_step(spark: SparkSession, side: str) -> None:
    config = getattr(spark._jvm.org.apache.kafka.clients, side)
    names = {"consumer": "ConsumerConfig", "producer": "ProducerConfig"}
    parse = {"consumer": Properties.parse, "producer": ProducerProperties.parse}[side]
    told = {}
    for name in sorted(getattr(config, names[side]).configNames()):
        if name not in SECURITY_NAMES:
            with contextlib.suppress(SettingError):
                parse({"kafka.bootstrap.servers": "a:1", f"kafka.{name}": "1"})
                continue
            with pytest.raises(SettingError) as caught:
                parse({"kafka.bootstrap.servers": "a:1", f"kafka.{name}": "1"})
            told[name] = str(caught.value)
    assert {name: text for name, text in told.items() if "no such property" in text} == {}
