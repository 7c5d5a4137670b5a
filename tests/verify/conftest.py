"""The servers whose tables are compared with targets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS


@pytest.fixture(scope="session", params=SERVERS)
def server(request: pytest.FixtureRequest, pool: Callable[..., MySQLServer]) -> MySQLServer:
    """A real server of MySQL's family; tests use databases of their own."""
    return pool(request.param)
