"""Opens the Kafka client that a source uses."""

from __future__ import annotations

from backlog_spark.errors import BacklogError

from .client import KafkaClient
from .properties import Properties

__all__ = ["open_client"]


def open_client(properties: Properties, group_id: str, timeout_s: float) -> KafkaClient:
    """The client that ``kafka.client`` names.

    Raises
    ------
    BacklogError
        It is not installed.
    """
    try:
        if properties.client == "confluent":
            from .confluent import ConfluentClient

            return ConfluentClient(properties, group_id, timeout_s)
        from .kafka_python import KafkaPythonClient

        return KafkaPythonClient(properties, group_id, timeout_s)
    except ImportError as error:
        raise BacklogError(
            f"kafka.client={properties.client} cannot be loaded: {error}.",
            "Run pip install 'backlog-spark[kafka]' on the driver and the executors.",
        ) from error
