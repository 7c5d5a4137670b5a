"""One client a worker process, kept from partition to partition."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator

from .client import KafkaClient, open_client
from .options import KafkaOptions

__all__ = ["group_id", "worker_client"]

# Connecting, and asking who leads the partitions, takes longer than a small partition's records. By process: workers
# are forked, and a connection cannot be shared.
_idle: tuple[int, KafkaOptions, KafkaClient] | None = None


def group_id(options: KafkaOptions) -> str:
    """The name under which brokers know a client. Its own, so that nobody's place in another group is touched."""
    return options.properties.group_id or f"{options.group_prefix}-{uuid.uuid4()}"


@contextlib.contextmanager
def worker_client(options: KafkaOptions) -> Iterator[KafkaClient]:
    """A client for one partition, kept for the worker's next one unless something goes wrong."""
    global _idle
    kept, _idle = _idle, None
    client: KafkaClient | None = None
    if kept is not None and kept[0] == os.getpid():
        if kept[1] == options:
            client = kept[2]
        else:
            kept[2].close()
    if client is None:
        client = open_client(options.properties, group_id(options), options.poll_timeout_ms / 1000)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    if _idle is not None:
        _idle[2].close()  # of a partition that was read meanwhile
    _idle = (os.getpid(), options, client)
