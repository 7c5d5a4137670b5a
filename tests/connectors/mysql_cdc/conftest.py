"""The servers that the source's tests run on, each of which must give the same rows and the same refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backlog_spark.embedded.mysql import MySQLServer

from .replay import SERVERS, is_mariadb


@pytest.fixture(scope="session", params=SERVERS)
def mysql(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    """A real server of MySQL's family for all tests here; they use databases of their own."""
    with request.param() as server:
        yield server


@pytest.fixture(scope="module", params=SERVERS[1:])
def mariadb(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    """A MariaDB whose global variables its tests set, with small files in its log."""
    with request.param(options={"max-binlog-size": "16K"}, fast=True) as server:
        yield server


@pytest.fixture(scope="session", params=SERVERS)
def nameless(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    """A server whose log has no column names, as servers are by default."""
    with request.param(fast=True) as server:
        of_mariadb = is_mariadb(server)
        server.execute(f"SET GLOBAL binlog_row_metadata = '{'NO_LOG' if of_mariadb else 'MINIMAL'}'")
        server.execute("CREATE DATABASE alters")
        yield server
