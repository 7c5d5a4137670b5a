"""``python -m servers prepare``: downloads and unpacks everything. Later runs need no network."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from backlog_spark.errors import BacklogError
from servers.cache import cache_dir
from servers.jars import delta_jars, java_executable, jdbc_jar, spark_kafka_jars
from servers.kafka import KafkaServer
from servers.kafka_jars import kafka_jars
from servers.mariadb import MARIADB_SERVERS
from servers.mysql import MySQLServer
from servers.s3a_jars import s3a_jars
from servers.server import EmbeddedServer


def _start_once(server: type[EmbeddedServer]) -> None:
    """Make the data directory that later servers copy, and check that the server runs on this machine."""
    with server():
        pass


_SERVERS: tuple[type[MySQLServer], ...] = (MySQLServer, *MARIADB_SERVERS)
_STEPS: tuple[tuple[str, Callable[[], object]], ...] = (
    ("Java 17 or newer", java_executable),
    ("Delta Lake jars", delta_jars),
    ("MySQL JDBC driver", jdbc_jar),
    ("Spark's Kafka source", spark_kafka_jars),
    ("Hadoop's s3a", s3a_jars),
    *(
        step
        for server in _SERVERS
        for step in (
            (f"{server.product} {server.version}", server.base_directory),
            (f"{server.product} {server.version}'s first start", partial(_start_once, server)),
        )
    ),
    (f"Kafka {KafkaServer.version}", kafka_jars),
    (f"Kafka {KafkaServer.version}'s first start", partial(_start_once, KafkaServer)),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``prepare``. Prints one line per step on stdout, and an error as one line on stderr.

    Returns
    -------
    int
        Exit status: 0 done, 1 a step failed, 2 wrong usage.
    """
    if list(arguments) != ["prepare"]:
        print("usage: python -m servers prepare", file=sys.stderr)
        return 2
    try:
        print(f"cache: {cache_dir()}", flush=True)
        for name, step in _STEPS:
            print(f"  {name}", flush=True)
            step()
    except BacklogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
