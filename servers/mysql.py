"""A real MySQL 8.0.15 that needs no Docker, no root rights and no installed package."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError
from servers import libaio
from servers.cache import cache_dir, locked, scratch
from servers.jars import mysql_archive
from servers.server import EmbeddedServer, ServerError

__all__ = ["MySQLServer"]

# Change capture needs these: a binary log in row format with full images and metadata, and GTIDs.
_DEFAULTS: dict[str, str | None] = {
    "server-id": "1",
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "gtid-mode": "ON",
    "enforce-gtid-consistency": "ON",
    "mysqlx": "OFF",
    # The tests of one process share a server, and a source that is not stopped keeps its connections for a while.
    "max-connections": "500",
}

# They need the binary log, so they are left out with `skip-log-bin`.
_BINLOG_OPTIONS = ("log-bin", "gtid-mode", "enforce-gtid-consistency")

# A commit does not wait for the disk. A crash of the machine may lose commits; a crash of mysqld does not.
_FAST: dict[str, str | None] = {"innodb-flush-log-at-trx-commit": "2", "sync-binlog": "0"}

_SOCKET_LIMIT = 107
"""Longest path of a Unix socket on Linux (``sun_path`` without its zero byte)."""

_INITIALISE_SECONDS = 300

_DEADLOCK = 1213

_OWN = "BACKLOG_SPARK_MYSQLD"


class MySQLServer(EmbeddedServer):
    """MySQL 8.0.15 on a free port of 127.0.0.1, with the user root without a password.

    Parameters
    ----------
    datadir : Path or str, optional
        See `EmbeddedServer`.
    port : int, optional
        See `EmbeddedServer`.
    options : mapping of str to str or None, optional
        Options of ``mysqld`` without the leading dashes; None for an option without a value:
        ``{"skip-log-bin": None, "binlog-row-image": "MINIMAL"}``. They replace the defaults: GTIDs, and a binary log
        in row format with full images and metadata.
    fast : bool, default False
        Do not wait for the disk at each commit. Commits survive a crash of the server, but not one of the machine.

    Notes
    -----
    For x86-64 Linux only. The server (17 MB) is downloaded once into the cache. The first start initialises a data
    directory (4.4 s), and later ones copy it (0.4 s). Each copy gets a server UUID of its own. To use an installed
    MySQL instead, set the environment variable ``BACKLOG_SPARK_MYSQLD`` to the path of its ``mysqld``.

    Examples
    --------
    >>> with MySQLServer() as mysql:  # doctest: +SKIP
    ...     mysql.execute("SELECT VERSION()")
    (('8.0.15',),)
    """

    name = "mysql"
    user = "root"
    password = ""

    product: ClassVar[str] = "MySQL"
    version: ClassVar[str] = "8.0.15"
    executable: ClassVar[str] = "mysqld"

    libraries: ClassVar[Mapping[str, tuple[str, str]]] = {"libnuma.so.1": ("libnuma1", "numactl-libs")}
    """Libraries that it needs and a machine may not have, each with Debian's and Fedora's package."""

    default_options: ClassVar[Mapping[str, str | None]] = _DEFAULTS
    binlog_options: ClassVar[Sequence[str]] = _BINLOG_OPTIONS

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
        merged = {**self.default_options, **(_FAST if fast else {}), **given}
        if "skip-log-bin" in given or "disable-log-bin" in given:
            merged = {n: v for n, v in merged.items() if n in given or n not in self.binlog_options}
        if "ssl-cert" in given:
            merged.pop("skip-ssl", None)
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
        shutil.copytree(self.template(), self.datadir, dirs_exist_ok=True)

    @classmethod
    def base_directory(cls) -> Path:
        """The unpacked server. The first call downloads and unpacks it.

        Raises
        ------
        BacklogError
            This is not an x86-64 Linux, a library is missing, or the download failed.
        """
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            raise BacklogError(
                f"the embedded {cls.product} runs on x86-64 Linux only, this is {platform.system()} on "
                f"{platform.machine()}.",
                f"Use such a machine. For MySQL you can also set {_OWN} to the path of an installed mysqld.",
            )
        for library, (debian, fedora) in cls.libraries.items():
            _require(cls.product, library, f"`apt-get install {debian}` or `dnf install {fedora}`")
        base = cache_dir() / f"{cls.name}-{cls.version}"
        if not base.is_dir():
            archive = cls.archive()
            with locked(cls.name):
                if not base.is_dir():
                    with scratch() as work:
                        cls.unpack(archive, work / "base")
                        os.replace(work / "base", base)
        return base

    @classmethod
    def own_executable(cls) -> str | None:
        """The server in ``BACKLOG_SPARK_MYSQLD``, if it is set."""
        return os.environ.get(_OWN) or None if cls.name == MySQLServer.name else None

    @classmethod
    def archive(cls) -> Path:
        """The file with the packed server. The first call downloads it."""
        return mysql_archive()

    @classmethod
    def unpack(cls, archive: Path, base: Path) -> None:
        """Unpack the server into ``base``, which does not exist yet."""
        with (
            zipfile.ZipFile(archive) as jar,
            jar.open("mysql-Linux-amd64.tar.gz") as packed,
            tarfile.open(fileobj=packed, mode="r:gz") as content,
        ):
            # The archive's checksum was checked. But as root, tarfile would restore the owner ids in it.
            members = content.getmembers()
            for member in members:
                member.uid, member.gid, member.uname, member.gname = os.geteuid(), os.getegid(), "", ""
            if hasattr(tarfile, "data_filter"):  # since Python 3.11.4; Python 3.12 warns without a filter
                content.extraction_filter = tarfile.data_filter
            content.extractall(base, members)

    @classmethod
    def template(cls) -> Path:
        """An initialised data directory for each server to copy. The first call makes it."""
        own = cls.own_executable()
        version = cls.version if own is None else re.sub(r"\W+", "-", own.strip("/"))
        template = cache_dir() / f"{cls.name}-{version}-data"
        if not template.is_dir():
            if own is None:
                cls.base_directory()  # it takes the lock, so it cannot be called under it
            with locked(cls.name):
                if not template.is_dir():
                    with scratch() as work:
                        cls.initialise_template(work / "data")
                        os.replace(work / "data", template)
        return template

    @classmethod
    def initialise_template(cls, data: Path) -> None:
        """Make a data directory with the user root without a password. Called under the cache's lock."""
        cls.run_once([*cls.server_command(data), "--initialize-insecure"])
        # Each copy needs a UUID of its own, as GTIDs contain it. The redo logs (96 of 154 MB) are empty after this
        # clean shutdown, and mysqld creates them again if both are missing.
        (data / "auto.cnf").unlink()
        for redo in data.glob("ib_logfile*"):
            redo.unlink()

    @classmethod
    def server_command(cls, datadir: Path) -> list[str]:
        """The server's path, and the options with the paths of its files."""
        own = cls.own_executable()
        if own is not None:
            # Its default directory for SELECT ... INTO OUTFILE may not exist.
            command = [own, "--no-defaults", f"--datadir={datadir}", "--secure-file-priv=NULL"]
        else:
            base = cls.base_directory()
            command = [str(base / "bin" / cls.executable), "--no-defaults", f"--basedir={base}"]
            command += [f"--datadir={datadir}", f"--lc-messages-dir={base / 'share'}"]
        if os.geteuid() == 0:
            # The server refuses to run as root without this option.
            command.append("--user=root")
        return command

    @classmethod
    def run_once(cls, command: Sequence[str], statements: str = "") -> None:
        """Run the server with statements on its standard input until it ends, to initialise a data directory.

        Raises
        ------
        ServerError
            It ended with another status than 0.
        """
        with tempfile.TemporaryDirectory() as temporary:  # see `command`
            run = subprocess.run(
                [*command, f"--tmpdir={temporary}"],
                input=statements,
                env=_environment(),
                capture_output=True,
                text=True,
                timeout=_INITIALISE_SECONDS,
                check=False,
            )
        if run.returncode != 0:
            log = cache_dir() / f"{cls.name}-initialise.log"
            log.write_text(run.stdout + run.stderr)
            raise ServerError(f"initialising {cls.product}'s data directory ended with status {run.returncode}.", log)

    def command(self) -> list[str]:
        options = [f"--{name}" if value is None else f"--{name}={value}" for name, value in self._options.items()]
        # A starting server removes all temporary tables in this directory. A server that uses one of them would crash.
        temporary = self.home / "tmp"
        temporary.mkdir(exist_ok=True)
        return [
            *self.server_command(self.datadir),
            f"--port={self.port}",
            f"--bind-address={self.host}",
            f"--socket={self.socket}",
            f"--pid-file={self.home / 'mysql.pid'}",
            f"--tmpdir={temporary}",
            *options,
        ]

    def environment(self) -> dict[str, str]:
        return _environment()

    def is_ready(self) -> bool:
        # The socket is in our own directory; on the port another server might answer. A failed connection leaves
        # PyMySQL's socket open until garbage collection. So none is tried before the file exists.
        if not self.socket.exists():
            return False
        try:
            self.connect(unix_socket=str(self.socket), connect_timeout=2).close()
        except (pymysql.Error, OSError):
            return False
        return True

    def connect(self, **settings: Any) -> Connection[Any]:
        """A new connection as root, in autocommit mode.

        Parameters
        ----------
        **settings
            Arguments for `pymysql.connect`. They replace the defaults.
        """
        defaults: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "charset": "utf8mb4",
            "autocommit": True,
            # Else PyMySQL reads the system's certificates for each connection, which is slow.
            "ssl_disabled": not any(name.startswith("ssl") for name in settings),
        }
        return pymysql.connect(**{**defaults, **settings})

    def execute(self, sql: str, args: Sequence[Any] | Mapping[str, Any] | None = None) -> tuple[tuple[Any, ...], ...]:
        """Run a statement on a new connection. Returns its rows; () if the statement has no result.

        A deadlock with a writer rolls the statement back. It is run again, as the manual asks ("Deadlocks in InnoDB").
        """
        while True:
            try:
                with self.connect() as connection, connection.cursor() as cursor:
                    cursor.execute(sql, args)
                    return tuple(cursor.fetchall())
            except pymysql.err.OperationalError as error:
                if error.args[0] != _DEADLOCK:
                    raise

    def binlog_end(self) -> tuple[str, int]:
        """The newest file of the binary log, and its length."""
        with self.connect() as connection, connection.cursor() as cursor:
            try:
                cursor.execute("SHOW MASTER STATUS")
            except pymysql.err.ProgrammingError:  # MySQL 8.4 and later have only the new name
                cursor.execute("SHOW BINARY LOG STATUS")
            ((file, position, *_),) = cursor.fetchall()
        return str(file), int(position)


def _require(product: str, library: str, command: str) -> None:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        raise BacklogError(
            f"the embedded {product} needs {library}, which is not installed.", f"Install it: {command}."
        ) from error


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    stand_in = libaio.library_path()
    if stand_in is not None:
        inherited = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{stand_in}:{inherited}" if inherited else str(stand_in)
    return environment
