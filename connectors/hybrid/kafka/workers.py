"""One client for each worker process, kept from partition to partition."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from backlog_spark.errors import BacklogError

from .options import KafkaOptions
from .properties import Properties

if TYPE_CHECKING:
    from .confluent import KafkaClient

__all__ = ["group_id", "open_client", "worker_client"]

# Connecting, and asking for the partitions' leaders, takes longer than reading a small partition. With the process id:
# workers are forked, and processes cannot share a connection.
_idle: list[tuple[int, KafkaOptions, KafkaClient]] = []


def open_client(properties: Properties, group_id: str, timeout_s: float) -> KafkaClient:
    """A client that is not connected yet.

    Raises
    ------
    BacklogError
        confluent-kafka is not installed.
    """
    try:
        from .confluent import KafkaClient
    except ImportError as error:
        raise BacklogError(
            f"confluent-kafka cannot be loaded: {error}.",
            "Run pip install 'backlog-spark[kafka]' on the driver and the executors.",
        ) from error
    return KafkaClient(properties, group_id, timeout_s)


def group_id(options: KafkaOptions) -> str:
    """The group name of a client. It is unique, so that no other group's offsets are touched."""
    return options.properties.group_id or f"{options.group_prefix}-{uuid.uuid4()}"


@contextlib.contextmanager
def worker_client(options: KafkaOptions) -> Iterator[KafkaClient]:
    """A client for one partition. It is kept for the worker's next one unless there is an error."""
    client: KafkaClient | None = None
    if _idle:
        owner, of, kept = _idle.pop()
        if owner == os.getpid() and of == options:
            client = kept
        elif owner == os.getpid():
            kept.close()
    if client is None:
        client = open_client(options.properties, group_id(options), options.poll_timeout_ms / 1000)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    while _idle:
        _idle.pop()[2].close()  # a client of another partition came back meanwhile
    _idle.append((os.getpid(), options, client))
