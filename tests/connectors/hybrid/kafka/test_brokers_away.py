"""Real brokers that stop, refuse, or cannot be reached."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from backlog_spark.connectors.hybrid.kafka.client import Unreachable
from backlog_spark.connectors.hybrid.kafka.phase import KafkaPhase
from backlog_spark.errors import BacklogError
from servers.kafka import KafkaServer

from .broker import PASSWORD, USER, Broker, read, step


@pytest.fixture(scope="module")
def fragile() -> Iterator[Broker]:
    """A broker that tests stop."""
    with KafkaServer() as server:
        yield Broker(server)


def _large(broker: Broker) -> str:
    topic = broker.topic()
    text = "x" * 20_000
    broker.send(topic, [f"{i} {text}" for i in range(2000)])
    return topic


# Most of a range is still unread when its first rows arrive.
SMALL_FETCHES = {
    "kafka__fetch__max__bytes": "1000000",
    "kafka__max__partition__fetch__bytes": "1000000",
    "kafka__queued__max__messages__kbytes": "1000",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_restart_in_the_middle_of_a_read_loses_and_repeats_nothing(fragile: Broker, how: str) -> None:
    topic = _large(fragile)
    phase = fragile.phase(subscribe=topic, **SMALL_FETCHES)
    begin = phase.begin({})
    end = step(phase, begin).position
    (partition,) = phase.partitions(begin, end)
    batches = phase.read(partition)
    offsets = next(batches).column("offset").to_pylist()
    getattr(fragile.server, how)()
    back = threading.Timer(1, fragile.server.start)
    back.start()
    try:
        for batch in batches:
            offsets += batch.column("offset").to_pylist()
    finally:
        back.join()
    assert offsets == list(range(2000))
    # The planner, too, goes on with the connection it had.
    fragile.send(topic, ["more"])
    assert step(phase, end).rows == 1
    fragile.close_phases()


@pytest.mark.slow
def test_a_broker_that_stays_away_is_an_error_that_names_it(fragile: Broker) -> None:
    topic = _large(fragile)
    options = {"kafkaConsumer__pollTimeoutMs": "1500", "kafka__default__api__timeout__ms": "1500"}
    phase = fragile.phase(subscribe=topic, **options, **SMALL_FETCHES)
    begin = phase.begin({})
    end = step(phase, begin).position
    (partition,) = phase.partitions(begin, end)
    batches = phase.read(partition)
    next(batches)
    fragile.server.stop()
    try:
        with pytest.raises(Unreachable, match=f"Kafka at {fragile.address} did not answer for 2 s"):
            list(batches)
        with pytest.raises(Unreachable, match=f"Kafka at {fragile.address} did not answer for 2 s"):
            read(phase, begin, end)
        with pytest.raises(Unreachable, match=r"Check kafka\.bootstrap\.servers"):
            step(phase, end)
    finally:
        fragile.close_phases()
        fragile.server.start()
    assert len(read(phase, begin, end)) == 2000
    assert step(phase, end).position is end
    fragile.close_phases()


def test_an_address_without_a_broker() -> None:
    # Port 9 is that of a service that no machine runs any more.
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "t"}
    phase = KafkaPhase("kafka", {**options, "kafka.default.api.timeout.ms": "1000"})
    with pytest.raises(Unreachable, match=r"Kafka at 127\.0\.0\.1:9 did not answer for 1 s"):
        phase.begin({})
    phase.close()


def _login(broker: Broker, password: str) -> KafkaPhase:
    quoted = password.replace('"', '\\"')
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return broker.phase(
        kafka__bootstrap__servers=broker.server.address("SASL_PLAINTEXT"),
        kafka__security__protocol="SASL_PLAINTEXT",
        kafka__sasl__mechanism="PLAIN",
        kafka__sasl__jaas__config=f'{module} required username="{USER}" password="{quoted}";',
        subscribe="secured",
    )


def test_login_by_user_and_password(broker: Broker) -> None:
    if broker._count("secured") == 0:
        broker.topic(name="secured")
        broker.send("secured", ["a"])
    phase = _login(broker, PASSWORD)
    begin = phase.begin({})
    assert [row["value"] for row in read(phase, begin, step(phase, begin).position)] == [b"a"]
    assert PASSWORD not in repr(phase)


def test_a_wrong_password_is_reported_at_once_and_not_shown(
    broker: Broker, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    phase = _login(broker, "wr0ng-passw0rd")
    with pytest.raises(BacklogError, match=f"Kafka at .* as '{USER}' cannot be reached: .*Check ") as caught:
        phase.begin({})
    assert not isinstance(caught.value, Unreachable)
    written = str(caught.value) + caplog.text + "".join(capfd.readouterr())
    assert "wr0ng-passw0rd" not in written


def test_a_login_that_the_broker_does_not_ask_for(broker: Broker) -> None:
    options = {
        "kafka.bootstrap.servers": broker.address,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": USER,
        "kafka.sasl.password": PASSWORD,
        "kafka.default.api.timeout.ms": "3000",
        "subscribe": "t",
    }
    phase = KafkaPhase("kafka", options)
    with pytest.raises(BacklogError, match=f"as '{USER}'"):
        phase.begin({})
    phase.close()
