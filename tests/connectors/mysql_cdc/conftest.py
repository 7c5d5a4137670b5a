"""The servers for the tests of mysql_cdc. Each must give the same rows and the same refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from servers.mysql import MySQLServer

from .replay import SERVERS, clean, is_mariadb

Pool = Callable[..., MySQLServer]


@pytest.fixture(scope="module", params=SERVERS)
def mysql(request: pytest.FixtureRequest, pool: Pool) -> Iterator[MySQLServer]:
    """A real server of MySQL's family for all tests here; the next module has it without databases and users."""
    server = pool(request.param)
    yield server
    clean(server)


@pytest.fixture(scope="module", params=SERVERS[1:])
def mariadb(request: pytest.FixtureRequest, pool: Pool) -> Iterator[MySQLServer]:
    """A MariaDB whose global variables its tests set, with small files in its log."""
    server = pool(request.param, options={"max-binlog-size": "16K"}, fast=True)
    yield server
    clean(server)


@pytest.fixture(scope="module", params=SERVERS)
def nameless(request: pytest.FixtureRequest, pool: Pool) -> Iterator[MySQLServer]:
    """Another server, whose log has no column names, as servers are by default."""
    server = pool(request.param, fast=True)
    server.execute(f"SET GLOBAL binlog_row_metadata = '{'NO_LOG' if is_mariadb(server) else 'MINIMAL'}'")
    server.execute("CREATE DATABASE alters")
    yield server
    clean(server)
