"""The embedded MariaDB servers: their own features. Start and stop are tested with MySQL."""

from __future__ import annotations

import os

import pytest

from servers.mariadb import MARIADB_SERVERS, MariaDBServer
from servers.server import ServerError

pytestmark = pytest.mark.process

both = pytest.mark.parametrize("kind", MARIADB_SERVERS, ids=[kind.version for kind in MARIADB_SERVERS])


@both
def test_answers_with_what_change_capture_needs_and_survives_a_kill(kind: type[MariaDBServer]) -> None:
    query = (
        "SELECT VERSION(), @@log_bin, @@binlog_format, @@binlog_row_image, @@binlog_row_metadata, @@bind_address,"
        " @@innodb_flush_log_at_trx_commit, @@port"
    )
    with kind() as server:
        expected = ((f"{kind.version}-MariaDB-log", 1, "ROW", "FULL", "FULL", "127.0.0.1", 1, server.port),)
        assert server.execute(query) == expected
        server.execute("CREATE DATABASE kept")
        server.execute("CREATE TABLE kept.t (a INT PRIMARY KEY)")
        server.execute("INSERT INTO kept.t VALUES (1)")
        ((gtids,),) = server.execute("SELECT @@global.gtid_binlog_pos")
        server.kill()
        server.start()
        assert server.execute("SELECT a FROM kept.t") == ((1,),)
        assert server.execute("SELECT @@global.gtid_binlog_pos") == ((gtids,),)
        assert server.execute(query) == expected
        home, pid = server.home, server.pid
    assert not home.exists()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_both_run_at_once_each_on_its_own_data() -> None:
    first, second = MARIADB_SERVERS
    with first() as one, second(options={"skip-log-bin": None, "max_connections": "17"}, fast=True) as two:
        one.execute("CREATE DATABASE mine")
        assert ("mine",) not in two.execute("SHOW DATABASES")
        assert two.execute("SELECT @@log_bin, @@max_connections, @@sync_binlog") == ((0, 17, 0),)


def test_one_that_starts_leaves_the_temporary_tables_of_the_others() -> None:
    """A starting server must not remove temporary tables that another server uses: that server would end."""
    with MariaDBServer(fast=True) as one, one.connect() as connection, connection.cursor() as cursor:
        pid = one.pid
        cursor.execute("CREATE TEMPORARY TABLE test.t (a TEXT) ENGINE=Aria")
        cursor.execute("INSERT INTO test.t VALUES ('x')")
        with MariaDBServer(fast=True) as two:
            assert two.execute("SELECT @@tmpdir") != one.execute("SELECT @@tmpdir")
        cursor.execute("FLUSH TABLES")
        cursor.execute("SELECT a FROM test.t")
        assert cursor.fetchall() == (("x",),)
        assert one.pid == pid


def test_only_root_without_a_password_may_log_in() -> None:
    with MariaDBServer(fast=True) as server:
        users = server.execute("SELECT DISTINCT user FROM mysql.user ORDER BY user")
        assert users == (("mariadb.sys",), ("root",))


def test_a_failing_start_shows_the_end_of_the_log_and_its_path() -> None:
    server = MariaDBServer(options={"no-such-option": "1"})
    with pytest.raises(ServerError, match="mariadb ended with status") as caught:
        server.start()
    try:
        assert "unknown variable 'no-such-option=1'" in str(caught.value)
        assert str(server.log_path) in str(caught.value)
    finally:
        server.log_path.unlink()
