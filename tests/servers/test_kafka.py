"""The embedded Kafka server: its own features. Start and stop are tested with MySQL."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from backlog_spark.errors import BacklogError
from servers.kafka import KafkaServer
from servers.server import ServerError

pytestmark = pytest.mark.process


def _create(server: KafkaServer, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.address()})  # its end would end what it is asked
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


def _cluster(server: KafkaServer) -> str:
    admin = AdminClient({"bootstrap.servers": server.address()})
    return str(admin.describe_cluster().result(30).cluster_id)


def _end(server: KafkaServer, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": server.address(), "group.id": "test"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
    finally:
        consumer.close()


def _send(server: KafkaServer, topic: str, *values: bytes, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": server.address(), **settings})
    if "transactional.id" in settings:
        producer.init_transactions(30)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    if "transactional.id" in settings:
        producer.commit_transaction(30)
    assert producer.flush(30) == 0


@pytest.mark.slow
def test_data_and_port_survive_restart_and_kill(capfd: pytest.CaptureFixture[str]) -> None:
    with KafkaServer() as server:
        port, controller = server.port, server.address("CONTROLLER")
        _create(server, "kept")
        _send(server, "kept", b"one")
        cluster = _cluster(server)
        server.restart()
        assert _end(server, "kept") == 1
        _send(server, "kept", b"two")
        server.kill()
        assert server.pid is None
        server.start()
        assert (server.port, server.address("CONTROLLER")) == (port, controller)
        assert _end(server, "kept") == 2
        # One record and the mark of the commit: transactions work with a single broker.
        _send(server, "kept", b"three", **{"transactional.id": "t"})
        # The mark is written after the commit has returned.
        while _end(server, "kept") < 4:
            time.sleep(0.05)
        assert _cluster(server) == cluster
        home, pid = server.home, server.pid
    assert not home.exists()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    capfd.readouterr()  # the clients' complaints of a broker that is away


@pytest.mark.slow
def test_two_servers_are_two_clusters_and_take_options(tmp_path: Path) -> None:
    options = {"message.max.bytes": "54321"}
    with KafkaServer() as one, KafkaServer(datadir=tmp_path / "data", options=options) as two:
        _create(one, "mine")
        admin = AdminClient({"bootstrap.servers": two.address()})
        assert "mine" not in admin.list_topics(timeout=30).topics
        assert _cluster(one) != _cluster(two)
        broker = ConfigResource(ConfigResource.Type.BROKER, "1")
        assert admin.describe_configs([broker])[broker].result(30)["message.max.bytes"].value == "54321"
        with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
            # Topics are not made by asking for them.
            admin.delete_topics(["never"])["never"].result(30)
    assert (tmp_path / "data/mine-0").exists() is False
    assert (tmp_path / "data/meta.properties").exists()


def test_plain_login_takes_the_users_it_was_given() -> None:
    with KafkaServer(protocols=["SASL_PLAINTEXT"], users={"reader": 'a "b'}) as server:
        assert stat.S_IMODE((server.home / "server.properties").stat().st_mode) == 0o600
        login = {
            "bootstrap.servers": server.address("SASL_PLAINTEXT"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "reader",
        }
        topics = AdminClient({**login, "sasl.password": 'a "b'}).list_topics(timeout=30).topics
        assert topics == {}
        with pytest.raises(KafkaException):
            AdminClient({**login, "sasl.password": "wrong", "log_level": 0}).list_topics(timeout=3)


def test_failing_start_shows_the_end_of_the_log() -> None:
    server = KafkaServer(options={"log.retention.bytes": "many"})
    with pytest.raises(ServerError) as caught:
        server.start()
    server.log_path.unlink()
    assert "log.retention.bytes" in str(caught.value)


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(BacklogError, match="'PLAIN' is none of SSL, SASL_PLAINTEXT, SASL_SSL"):
        KafkaServer(protocols=["PLAIN"])
