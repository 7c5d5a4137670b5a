"""Fixtures for all tests: one Spark session, one MySQL server and one Kafka broker per worker."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.kafka import KafkaServer
    from servers.mysql import MySQLServer
    from servers.postgres import PostgresServer


# Fixtures that are a process of their own, or start one. A test that starts one itself is marked.
_PROCESSES = {
    "spark",
    "mysql",
    "mariadb",
    "postgres",
    "target",
    "kafka",
    "broker",
    "own",
    "pool",
    "nameless",
    "server",
    "servers",
    "secured",
    "crashed",
    "fragile",
    "topics",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cluster", action="store_true", help="run the tests' Spark session on a standalone cluster")


def pytest_configure(config: pytest.Config) -> None:
    """Before any JVM is started, also by the workers of xdist."""
    if "not process" in config.option.markexpr:
        sys.addaudithook(_refuse_processes)
    elif not hasattr(config, "workerinput"):
        from tests.classes import java_options

        os.environ.update(java_options())


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """`make test-fast` runs tests that start no process. This fixture fails tests that do."""
    if event == "subprocess.Popen" and "PYTEST_CURRENT_TEST" in os.environ:  # xdist starts some too
        raise AssertionError(f"a test that starts {arguments[0]} needs the mark `process`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark repeats on MariaDB and tests that use a process. These come first, as pure tests fill the last seconds."""
    _mark_repeats(items)
    for item in items:
        if _PROCESSES & set(getattr(item, "fixturenames", ())):
            item.add_marker("process")
    heavy = {item.path for item in items if item.get_closest_marker("process")}
    items.sort(key=lambda item: item.path not in heavy)


def _mark_repeats(items: list[pytest.Item]) -> None:
    """What a test shows on MySQL it shows again on MariaDB in `make slow`. With the mark `both` it does at once."""
    ids = {item.nodeid for item in items}
    for item in items:
        twin = re.sub(r"mariadb-[\d.]+", "mysql-8.0", item.nodeid)
        if twin != item.nodeid and twin in ids and not item.get_closest_marker("both"):
            item.add_marker("slow")


# A deadline would assert on timing, which a shared machine cannot promise.
settings.register_profile("backlog_spark", deadline=None)
settings.load_profile("backlog_spark")

# Spark's own decoder of Avro, which ours is compared with. That of 4.2.0 is on no mirror.
SPARK_AVRO = (
    "org.apache.spark",
    "spark-avro_2.13",
    "4.1.1",
    "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d",
)


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """A session with Delta for the whole run: local, or on a cluster. The first test that asks for it starts it."""
    from servers.jars import Artifact, fetch, spark_kafka_jars
    from servers.session import local_session
    from servers.spark_cluster import SparkCluster

    jars = [*spark_kafka_jars(), *fetch([Artifact(*SPARK_AVRO)])]
    conf = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.shuffle.partitions": "2",
        # VACUUM and RESTORE have as many tasks as this, 10,000 by default, however few files there are.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.backlog.restart.delay": "100 ms",
    }
    with contextlib.ExitStack() as stack:
        on = {}
        if pytestconfig.getoption("--cluster"):
            # Executors find the tests' modules.
            on["master"] = stack.enter_context(SparkCluster(environment={"PYTHONPATH": str(pytestconfig.rootpath)})).url
        session = local_session("backlog_spark-tests", conf=conf, **on)
        stack.callback(session.stop)
        yield session


@pytest.fixture(scope="session")
def pool() -> Iterator[Callable[..., MySQLServer]]:
    """Database servers for the whole run, one of each class and options, started by the first test that asks for it.

    Tests use databases of their own, and set global variables back.
    """
    servers: dict[str, MySQLServer] = {}
    with contextlib.ExitStack() as stack:

        def get(kind: type[MySQLServer], **given: Any) -> MySQLServer:
            name = f"{kind.__name__} {given}"
            if name not in servers:
                servers[name] = stack.enter_context(kind(**given))
            return servers[name]

        yield get


@pytest.fixture(scope="session")
def mysql(pool: Callable[..., MySQLServer]) -> MySQLServer:
    """A real MySQL server."""
    from servers.mysql import MySQLServer

    return pool(MySQLServer)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server for the whole run; tests use databases of their own."""
    from servers.postgres import PostgresServer

    with PostgresServer(fast=True) as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A real Kafka broker for the whole run; tests use topics of their own."""
    from servers.kafka import KafkaServer

    with KafkaServer() as server:
        yield server
