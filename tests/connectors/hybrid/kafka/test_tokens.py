"""Logins by token on a real broker, which ends a connection when its token ends."""

from __future__ import annotations

import logging
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

import backlog_spark as bs
from backlog_spark.connectors.hybrid.kafka.client import Unreachable
from backlog_spark.connectors.hybrid.kafka.confluent import KafkaClient
from backlog_spark.connectors.hybrid.kafka.phase import KafkaPhase
from backlog_spark.connectors.hybrid.kafka.properties import Properties
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.kafka.brokers import Brokers
from backlog_spark.sinks.kafka.properties import ProducerProperties
from backlog_spark.spi.kafka_oauth import OAuth
from backlog_spark.spi.kafka_security import Security
from backlog_spark.spi.kafka_tokens import new_token

from . import tokens
from .broker import Broker, read, step
from .tokens import SECRET, token_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = "tests.connectors.hybrid.kafka.tokens"
OAUTH = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def function(name: str) -> dict[str, str]:
    return {**OAUTH, "sasl.oauthbearer.token.function": f"{HERE}:{name}"}


def options(broker: Broker, given: dict[str, str]) -> dict[str, str]:
    servers = {"bootstrap.servers": broker.server.address("SASL_PLAINTEXT")}
    return {f"kafka.{name}": value for name, value in {**servers, **given}.items()}


def phase(broker: Broker, topic: str, given: dict[str, str]) -> KafkaPhase:
    return broker.phase(subscribe=topic, **options(broker, given))


def test_a_function_logs_in_and_renews_tokens_while_it_reads(broker: Broker) -> None:
    topic = broker.topic(2)
    tokens.calls.clear()
    reader = phase(broker, topic, function("short"))
    at = reader.begin({})
    sent, seen, end = 0, [], time.monotonic() + 10  # more than two tokens' lives
    while time.monotonic() < end:
        some = random.randrange(1, 50)
        broker.send(topic, [str(sent + i) for i in range(some)], random.randrange(2))
        sent += some
        then = step(reader, at).position
        seen += [int(row["value"]) for row in read(reader, at, then)]
        at = then
        time.sleep(0.3)
    seen += [int(row["value"]) for row in read(reader, at, step(reader, at).position)]
    assert sorted(seen) == list(range(sent))
    assert len(tokens.calls) >= 4  # the planner's client and the worker's, each more than once
    assert SECRET not in repr(reader) + str(at)


def test_a_token_that_expires_while_a_reader_waits_does_not_end_the_batch() -> None:
    """The client's own request fails, and it logs in again."""
    client = KafkaClient(Properties(servers="a:1"), "group", 1.0)
    failed = KafkaError(KafkaError._AUTHENTICATION, "FindCoordinator response error")
    assert client._end(SimpleNamespace(error=lambda: failed)) == -1
    assert client._last_error is failed


@pytest.mark.grid
def test_a_query_that_runs_longer_than_its_tokens(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic(2)
    given = {**options(broker, function("short")), "subscribe": topic, "startingOffsets": "earliest"}
    source = bs.source("hybrid", name="records", phases="kafka", options=given)
    writer = source.write("records").trigger(processing_time="300 ms")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).to(bs.DeltaAppend(str(tmp_path / "t")))
    query, sent, end = writer.start(spark), 0, time.monotonic() + 10
    while time.monotonic() < end:
        broker.send(topic, [str(sent + i) for i in range(20)], random.randrange(2))
        sent += 20
        time.sleep(0.2)
    limit = time.monotonic() + 60
    while query.backlogProgress.rows < sent:
        assert query.isActive, query.exception()
        assert time.monotonic() < limit
        time.sleep(0.1)
    query.stop()
    rows = spark.read.format("delta").load(str(tmp_path / "t")).selectExpr("int(string(value)) AS n").collect()
    assert sorted(row.n for row in rows) == list(range(sent))
    kept = [path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in each for each in kept)


def test_librdkafka_fetches_tokens_by_javas_names(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, ["a", "b"])
    with token_server(4, "me", "s3cret-7") as (url, asked):
        jaas = f'{MODULE} required clientId="me" clientSecret="s3cret-7" scope="read" extension_logicalCluster="c1";'
        reader = phase(broker, topic, {
            **OAUTH, "sasl.jaas.config": jaas, "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.login.callback.handler.class": HANDLER,
        })  # fmt: skip
        at = reader.begin({})
        then = step(reader, at).position
        assert [row["value"] for row in read(reader, at, then)] == [b"a", b"b"]
        while len(asked) < 6:  # they end after 4 s
            step(reader, then)
            time.sleep(0.1)
        broker.send(topic, ["c"])
        assert [row["value"] for row in read(reader, then, step(reader, then).position)] == [b"c"]
        assert asked[0]["scope"] == ["read"]
        assert "s3cret-7" not in repr(reader)
        broker.close_phases()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("refused", "by a token cannot be reached: .*invalid_token.*(or token)"),
        ("failing", "raised ValueError. Call it by hand"),
        ("expired", "gave a token that has expired"),
        ("in_milliseconds", "expires in more than ten years. Return .*in seconds"),
        ("without_time", "gave no token and time"),
        ("missing", "cannot be imported. Write module:function"),
    ],
)
def test_no_token_or_a_refused_one_is_an_error_at_once(
    broker: Broker, name: str, said: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    given = options(broker, function(name))
    with pytest.raises(BacklogError, match=said) as caught:
        phase(broker, "t", function(name)).begin({})
    with pytest.raises(BacklogError, match=said) as other:
        Brokers(ProducerProperties.parse(given)).partitions_of("t")
    assert not isinstance(caught.value, Unreachable)
    assert SECRET not in str(caught.value) + str(other.value) + caplog.text + "".join(capfd.readouterr())


def test_a_refused_client_of_the_token_server(broker: Broker) -> None:
    with token_server(60, "me", "other") as (url, _):
        given = {
            **OAUTH, "sasl.oauthbearer.token.endpoint.url": url, "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": SECRET, "default.api.timeout.ms": "3000",
        }  # fmt: skip
        with pytest.raises(BacklogError, match=r"as 'me' cannot be reached: .*invalid_client") as caught:
            phase(broker, "t", given).begin({})
        assert SECRET not in str(caught.value)


def test_a_sink_logs_in_by_function(broker: Broker) -> None:
    topic = broker.topic(3)
    assert Brokers(ProducerProperties.parse(options(broker, function("long")))).partitions_of(topic) == 3


IDP = {"sasl.oauthbearer.token.endpoint.url": "http://h/t"}
CLIENT = {"sasl.oauthbearer.client.id": "a", "sasl.oauthbearer.client.secret": SECRET}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "token.function = None: .*needs a way to get tokens"),
        (IDP, "needs a way to get tokens"),
        ({**IDP, **CLIENT, "sasl.username": "u"}, "sasl.username = .*no meaning with kafka.sasl.mechanism=OAUTH"),
        ({**IDP, **CLIENT, "sasl.oauthbearer.method": "x"}, "method = 'x': is not supported: only oidc"),
        (
            {**CLIENT, "sasl.oauthbearer.token.function": "m:f"},
            r"client.id = '\*\*\*': has no meaning with kafka.sasl.o",
        ),
        ({"sasl.login.callback.handler.class": "a.MyHandler"}, "'a.MyHandler': a Python client has no Java.*Write a"),
        ({"sasl.client.callback.handler.class": "a.Mine"}, "Leave it out. For AWS's IAM set"),
        ({"sasl.jaas.config": f'{MODULE} required unsecuredLoginStringClaim_sub="{SECRET}";'}, "option unsecuredLogin"),
        ({"sasl.jaas.config": f'a.PlainLoginModule required username="{SECRET}";'}, "PlainLoginModule does not fit"),
        ({**IDP, **CLIENT, "sasl.jaas.config": f'{MODULE} required clientSecret="{SECRET}";'}, "gives it too"),
        ({**CLIENT, "sasl.mechanism": "PLAIN"}, "has no meaning with kafka.sasl.mechanism=PLAIN. Set .*OAUTHBEARER"),
        ({**CLIENT, "sasl.mechanism": "AWS_MSK_IAM"}, "has no meaning with AWS_MSK_IAM"),
        ({"sasl.aws.region": "x"}, "region = 'x': is only for AWS"),
        (
            {"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": "a.IAMLoginModule required awsRoleArn=r;"},
            "its option awsRoleArn is only for Java's clients. Set the profile or role by AWS's",
        ),
    ],
)
def test_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(SettingError, match=said) as caught:
        Security.parse({**OAUTH, **given})
    assert SECRET not in str(caught.value)


AWS: dict[str, str] = {
    "security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "a.b.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}  # fmt: skip


def test_aws_by_javas_names_without_its_library(monkeypatch: Any) -> None:
    found = Security.parse({**AWS, "sasl.aws.region": "eu-west-1"})
    assert (found.mechanism, found.oauth) == ("OAUTHBEARER", OAuth(is_aws=True, aws_region="eu-west-1"))
    monkeypatch.setitem(__import__("sys").modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(BacklogError, match=r"needs the package aws-msk.*pip install 'backlog-spark\[msk\]'"):
        found.for_librdkafka()


@pytest.mark.outside
def test_aws_signs_locally(monkeypatch: Any) -> None:
    import base64
    from urllib.parse import parse_qs, urlsplit

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.delenv("AWS_REGION", raising=False)
    with pytest.raises(SettingError, match=r"kafka.sasl.aws.region = None: .*region. Set it, or AWS_REGION"):
        new_token(OAuth(is_aws=True))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    for region, oauth in (("eu-west-1", OAuth(is_aws=True)), ("us-east-2", OAuth(is_aws=True, aws_region="us-east-2"))):
        token, end = new_token(oauth)
        url = urlsplit(base64.urlsafe_b64decode(token + "==").decode())
        asked = parse_qs(url.query)
        assert url.hostname == f"kafka.{region}.amazonaws.com"
        assert asked["Action"] == ["kafka-cluster:Connect"]
        assert asked["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
        assert f"/{region}/kafka-cluster/aws4_request" in asked["X-Amz-Credential"][0]
        assert len(asked["X-Amz-Signature"][0]) == 64
        assert 0 < end - time.time() <= 900
        assert SECRET not in url.query
