"""Topics of the tests' broker, and records in them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

if TYPE_CHECKING:
    from servers.kafka import KafkaServer

__all__ = ["Topic"]


def _conf(server: KafkaServer) -> dict[str, Any]:
    # Producers outlive the broker of a test: they would log each attempt to reach it.
    return {"bootstrap.servers": server.address(), "linger.ms": 1, "log_level": "0", "reconnect.backoff.ms": 1_000}


class Topic:
    """A new topic.

    Parameters
    ----------
    server : KafkaServer
    name : str
    partitions : int
    """

    def __init__(self, server: KafkaServer, name: str, partitions: int = 2, **config: str) -> None:
        self.name = name
        self._admin = AdminClient({"bootstrap.servers": server.address()})
        self._admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
        self._producer = Producer(_conf(server))

    @classmethod
    def again(cls, server: KafkaServer, name: str) -> Topic:
        """A topic that is there already."""
        found = cls.__new__(cls)
        found.name = name
        found._admin = AdminClient({"bootstrap.servers": server.address()})
        found._producer = Producer(_conf(server))
        return found

    def send(self, values: Iterable[Any], *, at_ms: int = 0) -> None:
        """Append values as JSON, spread over the partitions; ``at_ms``: their timestamp, 0 for now."""
        for number, value in enumerate(values):
            self._producer.produce(self.name, json.dumps(value), key=str(number), timestamp=at_ms)
            if not number % 1_000:
                self._producer.flush()
        assert self._producer.flush(60) == 0

    def grow(self, partitions: int) -> None:
        """Add partitions, up to so many."""
        self._admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(30)

    def remove_before(self, offset: int, partition: int = 0) -> None:
        """Remove the first records of a partition, as retention does."""
        where = TopicPartition(self.name, partition, offset)
        self._admin.delete_records([where])[where].result(30)
