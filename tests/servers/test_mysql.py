"""The embedded MySQL server: starts, restarts and crashes, and no files are left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from servers import server as server_module
from servers.mysql import MySQLServer
from servers.server import ServerError

pytestmark = pytest.mark.process

_ROOT = Path(__file__).parents[2]

# Starts a server, says who it is, and waits to be killed.
_PARENT = """
import sys, time
from servers.mysql import MySQLServer
server = MySQLServer().start()
print(server.pid, server.home, server.log_path, flush=True)
{then}
"""


@pytest.fixture(scope="module")
def mysql() -> Iterator[MySQLServer]:
    with MySQLServer() as server:
        yield server


@pytest.fixture(autouse=True)
def no_parent_log_left() -> Iterator[None]:
    """Logs of processes killed on purpose stay by design; here they would only pile up."""
    yield
    for log in _logs_of_killed:
        log.unlink(missing_ok=True)
    _logs_of_killed.clear()


_logs_of_killed: list[Path] = []


def _gone(pid: int) -> bool:
    """Wait until the process is gone (a zombie that its new parent has not reaped yet counts as gone)."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def _run_parent(then: str) -> tuple[subprocess.Popen[str], int, Path]:
    """Start a Python process that starts a server; returns it, the server's pid and home."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT.format(then=then)], cwd=_ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid, home, log = parent.stdout.readline().split()
    parent.stdout.close()
    _logs_of_killed.append(Path(log))
    return parent, int(pid), Path(home)


def test_answers_with_what_change_capture_needs(mysql: MySQLServer) -> None:
    rows = mysql.execute(
        "SELECT VERSION(), @@log_bin, @@binlog_format, @@binlog_row_image, @@binlog_row_metadata, @@gtid_mode,"
        " @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@port"
    )
    assert rows == (("8.0.15", 1, "ROW", "FULL", "FULL", "ON", 1, 1, mysql.port),)


def test_connect_is_autocommit_and_takes_settings(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE settings")
    with mysql.connect(database="settings") as one, mysql.connect(database="settings") as two:
        with one.cursor() as cursor:
            cursor.execute("CREATE TABLE t (a INT)")
            cursor.execute("INSERT INTO t VALUES (%s)", (7,))
        with two.cursor() as cursor:
            cursor.execute("SELECT a FROM t")
            assert cursor.fetchall() == ((7,),)


def test_two_servers_at_once_are_two_servers(mysql: MySQLServer) -> None:
    with MySQLServer(options={"skip-log-bin": None, "max_connections": "17"}, fast=True) as other:
        assert other.port != mysql.port
        query = "SELECT @@server_uuid"
        assert other.execute(query) != mysql.execute(query)
        settings = "SELECT @@log_bin, @@gtid_mode, @@max_connections, @@sync_binlog"
        assert other.execute(settings) == ((0, "OFF", 17, 0),)


@pytest.mark.slow
def test_data_and_port_survive_restart_and_kill() -> None:
    with MySQLServer() as server:
        port = server.port
        server.execute("CREATE DATABASE kept")
        server.execute("CREATE TABLE kept.t (a INT PRIMARY KEY)")
        server.execute("INSERT INTO kept.t VALUES (1)")
        before = server.execute("SELECT @@server_uuid")
        server.restart()
        server.execute("INSERT INTO kept.t VALUES (2)")
        killed = server.pid
        server.kill()
        assert server.pid is None
        assert killed is not None
        assert _gone(killed)
        server.start()
        assert server.execute("SELECT a FROM kept.t ORDER BY a") == ((1,), (2,))
        assert server.execute("SELECT @@server_uuid") == before
        assert server.port == port


def test_given_data_directory_stays(tmp_path: Path) -> None:
    with MySQLServer(datadir=tmp_path / "data") as server:
        server.execute("CREATE DATABASE kept")
    with MySQLServer(datadir=tmp_path / "data") as server:
        assert ("kept",) in server.execute("SHOW DATABASES")


def test_close_leaves_no_process_and_no_file() -> None:
    server = MySQLServer().start()
    pid, home, log = server.pid, server.home, server.log_path
    server.close()
    assert pid is not None
    assert _gone(pid)
    assert not home.exists()
    assert not log.exists()
    server.close()  # again does no harm


def test_failing_start_shows_the_end_of_the_log_and_its_path() -> None:
    server = MySQLServer(options={"no-such-option": "1"})
    with pytest.raises(ServerError) as caught:
        server.start()
    try:
        assert "unknown variable 'no-such-option=1'" in str(caught.value)
        assert str(server.log_path) in str(caught.value)
        assert "no-such-option" in server.log_path.read_text()
        assert server.pid is None
    finally:
        server.log_path.unlink()


def test_a_port_that_another_took_is_left_to_it(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = MySQLServer()
    monkeypatch.setattr(chosen, "port", mysql.port)  # as if taken between the look and the bind
    with chosen:
        assert chosen.port != mysql.port
        assert chosen.execute("SELECT @@port") == ((chosen.port,),)


def test_a_given_port_that_is_taken_is_an_error(mysql: MySQLServer) -> None:
    server = MySQLServer(port=mysql.port)
    with pytest.raises(ServerError, match="port"):
        server.start()
    server.log_path.unlink()


def test_server_outlives_the_thread_that_started_it() -> None:
    # The kernel's death signal comes with the thread that forked.
    server = MySQLServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        pid = server.pid
        assert pid is not None
        assert server.execute("SELECT 1") == ((1,),)
        assert server.pid == pid
    finally:
        server.close()


def test_killed_parent_leaves_no_server_and_its_files_are_swept() -> None:
    parent, pid, home = _run_parent("time.sleep(600)")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert _gone(pid)
    assert home.exists()
    server_module._sweep()
    assert not home.exists()


def test_sweep_spares_the_living(mysql: MySQLServer) -> None:
    server_module._sweep()
    assert mysql.home.exists()
    assert mysql.execute("SELECT 1") == ((1,),)


@pytest.mark.parametrize("then", [pytest.param("", marks=pytest.mark.grid), "raise SystemExit(3)"])
def test_parent_that_forgets_to_close_leaves_nothing(then: str) -> None:
    parent, pid, home = _run_parent(then)
    parent.wait()
    assert _gone(pid)
    assert not home.exists()


def test_forked_child_does_not_stop_its_parents_server(mysql: MySQLServer) -> None:
    child = os.fork()
    if child == 0:
        mysql.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert mysql.execute("SELECT 1") == ((1,),)


def test_a_server_for_a_try_says_how_to_reach_it_and_ends_by_ctrl_c() -> None:
    command = [sys.executable, "-m", "servers", "mysql"]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = process.stdout.readline()
        found = re.search(r"host (\S+), port (\d+), user (\S+), password (\S+), table (\S+) with ([\d,]+) rows", told)
        assert found, told
        host, port, user, password, table, rows = found.groups()
        with pymysql.connect(host=host, port=int(port), user=user, password=password) as connection:
            cursor = connection.cursor()
            cursor.execute(f"SELECT count(*), max(id) FROM {table}")
            assert cursor.fetchone() == (int(rows.replace(",", "")),) * 2
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert "Traceback" not in process.stdout.read()
    with pytest.raises(pymysql.err.OperationalError):
        pymysql.connect(host=host, port=int(port), user=user, password=password)


def test_a_wrong_command_line_says_the_right_one() -> None:
    for wrong in ([], ["mariadb"], ["mysql", "x"], ["mysql", "0"], ["mysql", "1", "2"], ["prepare", "x"]):
        done = subprocess.run([sys.executable, "-m", "servers", *wrong], cwd=_ROOT, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr == "usage: python -m servers prepare, or python -m servers mysql [PORT]\n"
