"""The databases of these tests: MySQL, MariaDB and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .targets import Target


@pytest.fixture(params=["mysql-8.0", "mariadb-11.4.5", "postgres-17"])
def target(request: pytest.FixtureRequest, pool: Callable[..., Any]) -> Iterator[Target]:
    """A database of its own on each kind of server. What MariaDB repeats is slow, as elsewhere."""
    from servers.mariadb import MariaDBServer
    from servers.mysql import MySQLServer

    if request.param.startswith("postgres"):
        found = Target(request.getfixturevalue("postgres"), "postgresql")
    elif request.param.startswith("mariadb"):
        found = Target(pool(MariaDBServer), "mariadb")
    else:
        found = Target(pool(MySQLServer), "mysql")
    yield found
    found.drop()
