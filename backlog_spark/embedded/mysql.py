"""A real MySQL 8.0.15 without Docker, root rights or an installed package."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection

from backlog_spark.embedded import libaio
from backlog_spark.embedded.cache import cache_dir, locked, scratch
from backlog_spark.embedded.jars import mysql_archive
from backlog_spark.embedded.server import EmbeddedServer, ServerError
from backlog_spark.errors import BacklogError

__all__ = ["MySQLServer", "base_directory"]

_VERSION = "8.0.15"

# What change capture needs: the binlog on by row with full images and metadata, and GTIDs.
_DEFAULTS: dict[str, str | None] = {
    "server-id": "1",
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "gtid-mode": "ON",
    "enforce-gtid-consistency": "ON",
    "mysqlx": "OFF",
}

# Not to be given together with `skip-log-bin`: GTIDs need the binlog, and the rest would be noise.
_BINLOG_OPTIONS = ("log-bin", "gtid-mode", "enforce-gtid-consistency")

# No wait for the disk at a commit: a crash of the machine may lose commits, a crash of mysqld may not.
_FAST: dict[str, str | None] = {"innodb-flush-log-at-trx-commit": "2", "sync-binlog": "0"}

_SOCKET_LIMIT = 107
"""Longest path of a Unix socket on Linux (``sun_path`` less its zero byte)."""

_INITIALISE_SECONDS = 300


class MySQLServer(EmbeddedServer):
    """MySQL 8.0.15 on a free port of 127.0.0.1; user root, no password.

    Parameters
    ----------
    datadir : Path or str, optional
        See `EmbeddedServer`.
    port : int, optional
        See `EmbeddedServer`.
    options : mapping of str to str or None, optional
        Options of ``mysqld`` without the leading dashes, with None for one that takes no value:
        ``{"skip-log-bin": None, "binlog-row-image": "MINIMAL"}``. They replace the defaults, which are GTIDs and a
        binlog by row with full images and metadata.
    fast : bool, default False
        Do not wait for the disk at each commit. Commits survive a crash of the server, not one of the machine.

    Notes
    -----
    x86-64 Linux only. The server (17 MB) is downloaded once into the cache. A new data directory is a copy of one that
    was initialised once (0.4 s against 4.4 s), with a server UUID of its own.

    Examples
    --------
    >>> with MySQLServer() as mysql:  # doctest: +SKIP
    ...     mysql.execute("SELECT VERSION()")
    (('8.0.15',),)
    """

    name = "mysql"
    user = "root"
    password = ""

    def __init__(
        self,
        datadir: Path | str | None = None,
        port: int | None = None,
        options: Mapping[str, str | None] | None = None,
        *,
        fast: bool = False,
    ) -> None:
        super().__init__(datadir, port)
        given = {name.replace("_", "-"): value for name, value in (options or {}).items()}
        merged = {**_DEFAULTS, **(_FAST if fast else {}), **given}
        if "skip-log-bin" in given or "disable-log-bin" in given:
            merged = {n: v for n, v in merged.items() if n in given or n not in _BINLOG_OPTIONS}
        self._options = merged

    @property
    def socket(self) -> Path:
        """The server's Unix socket."""
        path = self.home / "mysql.sock"
        if len(os.fsencode(path)) > _SOCKET_LIMIT:
            raise BacklogError(
                f"the socket path {path} is longer than {_SOCKET_LIMIT} bytes.", "Set TMPDIR to a shorter path."
            )
        return path

    def initialise(self) -> None:
        shutil.copytree(_template(), self.datadir, dirs_exist_ok=True)

    def command(self) -> list[str]:
        options = [f"--{name}" if value is None else f"--{name}={value}" for name, value in self._options.items()]
        return [
            *_mysqld(self.datadir),
            f"--port={self.port}",
            f"--bind-address={self.host}",
            f"--socket={self.socket}",
            f"--pid-file={self.home / 'mysql.pid'}",
            *options,
        ]

    def environment(self) -> dict[str, str]:
        return _environment()

    def is_ready(self) -> bool:
        # Through the socket, which is in our own directory: on the port another server might answer. Until the file is
        # there no connection is tried, as each one that fails leaves PyMySQL's socket to the garbage collector.
        if not self.socket.exists():
            return False
        try:
            pymysql.connect(unix_socket=str(self.socket), user=self.user, connect_timeout=2).close()
        except (pymysql.Error, OSError):
            return False
        return True

    def connect(self, **settings: Any) -> Connection[Any]:
        """A new connection as root, in autocommit mode.

        Parameters
        ----------
        **settings
            Passed on to `pymysql.connect`; they replace the defaults.
        """
        defaults: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "charset": "utf8mb4",
            "autocommit": True,
        }
        return pymysql.connect(**{**defaults, **settings})

    def execute(self, sql: str, args: Sequence[Any] | Mapping[str, Any] | None = None) -> tuple[tuple[Any, ...], ...]:
        """Run one statement on a connection of its own and return its rows (none for a statement without a result)."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, args)
            return tuple(cursor.fetchall())


def base_directory() -> Path:
    """The unpacked server, downloaded and unpacked at the first call.

    Raises
    ------
    BacklogError
        Not an x86-64 Linux, libnuma is missing, or the download failed.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise BacklogError(
            f"the embedded MySQL runs on x86-64 Linux only, this is {platform.system()} on {platform.machine()}.",
            "Use docker-compose.yml instead.",
        )
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as error:
        raise BacklogError(
            "the embedded MySQL needs libnuma.so.1, which is not installed.",
            "Install it: `apt-get install libnuma1` or `dnf install numactl-libs`.",
        ) from error
    base = cache_dir() / f"mysql-{_VERSION}"
    if not base.is_dir():
        archive = mysql_archive()
        with locked("mysql"):
            if not base.is_dir():
                _unpack(archive, base)
    return base


def _unpack(archive: Path, base: Path) -> None:
    with (
        scratch() as work,
        zipfile.ZipFile(archive) as jar,
        jar.open("mysql-Linux-amd64.tar.gz") as packed,
        tarfile.open(fileobj=packed, mode="r:gz") as content,
    ):
        # The archive is trusted (its sum is pinned), but not its owner ids, which root would restore.
        members = content.getmembers()
        for member in members:
            member.uid, member.gid, member.uname, member.gname = os.geteuid(), os.getegid(), "", ""
        if hasattr(tarfile, "data_filter"):  # since Python 3.11.4; without one, 3.12 warns
            content.extraction_filter = tarfile.data_filter
        content.extractall(work / "base", members)
        os.replace(work / "base", base)


def _mysqld(datadir: Path) -> list[str]:
    base = base_directory()
    command = [str(base / "bin" / "mysqld"), "--no-defaults", f"--basedir={base}", f"--datadir={datadir}"]
    command.append(f"--lc-messages-dir={base / 'share'}")
    if os.geteuid() == 0:
        # mysqld refuses to run as root unless it is told so by name.
        command.append("--user=root")
    return command


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    stand_in = libaio.library_path()
    if stand_in is not None:
        inherited = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{stand_in}:{inherited}" if inherited else str(stand_in)
    return environment


def _template() -> Path:
    """An initialised data directory to copy; made at the first call."""
    template = cache_dir() / f"mysql-{_VERSION}-data"
    if not template.is_dir():
        base_directory()  # before the lock below, which it takes too
        with locked("mysql"):
            if not template.is_dir():
                _initialise(template)
    return template


def _initialise(template: Path) -> None:
    with scratch() as work:
        data = work / "data"
        run = subprocess.run(
            [*_mysqld(data), "--initialize-insecure"],
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=_INITIALISE_SECONDS,
            check=False,
        )
        if run.returncode != 0:
            log = cache_dir() / "mysql-initialise.log"
            log.write_text(run.stdout + run.stderr)
            raise ServerError(f"mysqld --initialize-insecure ended with status {run.returncode}.", log)
        # The UUID names the server in every GTID, so each copy must draw its own. The redo logs (96 of 154 MB) are
        # empty after this clean end, and mysqld makes them anew when both are missing.
        (data / "auto.cnf").unlink()
        for redo in data.glob("ib_logfile*"):
            redo.unlink()
        os.replace(data, template)
