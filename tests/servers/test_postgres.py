"""The embedded PostgreSQL server: its own features. Start and stop are tested with MySQL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psycopg
import pytest

from servers.postgres import PostgresServer
from servers.server import ServerError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_answers_on_loopback_alone_and_survives_a_kill() -> None:
    with PostgresServer() as server:
        settings = "SELECT current_setting('listen_addresses'), current_setting('unix_socket_directories')"
        assert server.execute(settings) == [("127.0.0.1", "")]
        assert server.execute("SHOW port") == [(str(server.port),)]
        server.execute("CREATE TABLE kept (a INT)")
        server.execute("INSERT INTO kept VALUES (%s)", [1])
        held = server.connect()
        server.restart()  # does not wait for the client
        held.close()
        assert server.execute("SELECT a FROM kept") == [(1,)]
        home, pid = server.home, server.pid
    assert not home.exists()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_users_need_their_password_and_options_are_taken() -> None:
    with PostgresServer(options={"max_connections": "17"}, fast=True) as server:
        assert server.execute("SELECT current_setting('max_connections'), current_setting('fsync')") == [("17", "off")]
        server.execute("CREATE USER reader PASSWORD 'right'")
        assert server.execute("SELECT 1", user="reader", password="right") == [(1,)]
        with pytest.raises(psycopg.OperationalError, match="authentication failed"):
            server.execute("SELECT 1", user="reader", password="wrong")


def test_a_wrong_option_is_an_error_with_the_log(tmp_path: Path) -> None:
    server = PostgresServer(options={"no_such_option": "1"})
    with pytest.raises(ServerError, match="no_such_option"):
        server.start()
    server.log_path.unlink()
