"""What is in the topics of the tests' broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from servers.kafka import KafkaServer

__all__ = ["PASSWORD", "USERS", "Topics"]

USERS, PASSWORD = ("writer", "nobody", "half"), "s3cr3t-9"
_numbers = itertools.count()


class Topics:
    """Parameters: the server."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self.admin = AdminClient({"bootstrap.servers": server.address(), "log_level": "0"})

    def options(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.server.address(), **more}

    def login(self, user: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.server.address("SASL_PLAINTEXT"),
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": user,
            "kafka.sasl.password": PASSWORD,
        }

    def new(self, partitions: int = 2, **config: str) -> str:
        name = f"topic-{next(_numbers)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
        return name

    def allow(self, user: str, kind: ResourceType, name: str, *operations: AclOperation, prefix: bool = False) -> None:
        form = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
        asked = [
            AclBinding(kind, name, form, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        for future in self.admin.create_acls(asked).values():
            future.result(30)

    def partitions(self, topic: str) -> int:
        found = self.admin.list_topics(topic, timeout=30).topics[topic]
        return len(found.partitions)

    def records(self, topic: str, *, committed: bool = True) -> list[tuple[bytes | None, bytes | None]]:
        """All records of a topic, each partition in its order."""
        return [record for part in self.by_partition(topic, committed=committed) for record in part]

    def by_partition(self, topic: str, *, committed: bool = True) -> list[list[tuple[bytes | None, bytes | None]]]:
        """The records of each partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.server.address(), "group.id": "test", "enable.auto.commit": "false",
                "enable.partition.eof": "true", "auto.offset.reset": "earliest", "log_level": "0",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )  # fmt: skip
        found: list[list[tuple[bytes | None, bytes | None]]] = [[] for _ in range(self.partitions(topic))]
        left = set(range(len(found)))
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in left])
            while left:
                for message in consumer.consume(1_000, 0.2):
                    if message.error() is None:
                        found[message.partition()].append((message.key(), message.value()))
                    else:
                        assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                        left.discard(message.partition())
        finally:
            consumer.close()
        return found

    def table(self, topic: str) -> dict[str, Any]:
        """The compacted view: the newest value of each key."""
        found: dict[str, Any] = {}
        for key, value in self.records(topic):
            if value is None:
                found.pop((key or b"").decode(), None)
            else:
                found[(key or b"").decode()] = json.loads(value)
        return found

    def messages(self, topic: str) -> list[tuple[Any, Any]]:
        """Keys and values, parsed from JSON."""
        return [(parsed(key), parsed(value)) for key, value in self.records(topic)]


def parsed(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)


def keyed(messages: Sequence[tuple[Any, Any]], key: Any) -> list[Any]:
    """The values of one key, in their order."""
    return [value for found, value in messages if found == key]
