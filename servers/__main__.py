"""``python -m servers prepare`` downloads and unpacks everything: later runs need no network.

``python -m servers mysql [PORT]`` starts a MySQL server with a table of orders, for a try.
"""

from __future__ import annotations

import contextlib
import signal
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
from servers.postgres import PostgresServer
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
    (f"PostgreSQL {PostgresServer.version}", PostgresServer.base_directory),
    (f"PostgreSQL {PostgresServer.version}'s first start", partial(_start_once, PostgresServer)),
    (f"Kafka {KafkaServer.version}", kafka_jars),
    (f"Kafka {KafkaServer.version}'s first start", partial(_start_once, KafkaServer)),
)


_ORDERS = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.orders (id INT PRIMARY KEY, customer_id INT, amount DECIMAL(10, 2), updated_at TIMESTAMP)",
    "INSERT INTO shop.orders WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < 1000) "
    "SELECT 1000 * (a.id - 1) + b.id, b.id, b.id / 4, '2024-01-01' FROM n a JOIN n b WHERE a.id <= 100",
    "CREATE USER reader IDENTIFIED BY 'secret'",
    "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader",
)


def _try_mysql(port: int | None) -> None:
    """Run a MySQL server with a table of orders and a user for `mysql_cdc`, until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt), MySQLServer(port=port) as server:
        for statement in _ORDERS:
            server.execute(statement)
        print(
            f"MySQL {server.version} runs: host 127.0.0.1, port {server.port}, user reader, password secret, table "
            "shop.orders with 100,000 rows.\n"
            f"Change rows as root, without a password: mysql --host=127.0.0.1 --port={server.port} --user=root\n"
            "Ctrl-C ends it and removes its data.",
            flush=True,
        )
        signal.pause()


def main(arguments: Sequence[str]) -> int:
    """Run ``prepare`` or ``mysql``. Prints one line per step on stdout, and an error as one line on stderr.

    Returns
    -------
    int
        Exit status: 0 done, 1 a step failed, 2 wrong usage.
    """
    name, *more = arguments or [""]
    is_port = len(more) == 1 and more[0].isascii() and more[0].isdigit() and 0 < int(more[0]) < 65_536
    if not ((name == "prepare" and not more) or (name == "mysql" and (not more or is_port))):
        print("usage: python -m servers prepare, or python -m servers mysql [PORT]", file=sys.stderr)
        return 2
    try:
        if name == "mysql":
            _try_mysql(int(more[0]) if more else None)
            return 0
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
