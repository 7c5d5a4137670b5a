"""One client for each worker process, kept from partition to partition."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator

from .client import KafkaClient
from .clients import open_client
from .options import KafkaOptions

__all__ = ["group_id", "worker_client"]

# Connecting, and asking for the partitions' leaders, takes longer than reading a small partition. With the process id:
# workers are forked, and processes cannot share a connection.
_idle: list[tuple[int, KafkaOptions, KafkaClient]] = []


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
