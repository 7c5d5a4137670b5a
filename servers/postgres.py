"""A real PostgreSQL 17 that needs no Docker and no installed package."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import psycopg

from backlog_spark.errors import BacklogError
from servers.cache import cache_dir, locked, scratch
from servers.jars import postgres_archive
from servers.server import EmbeddedServer, ServerError

__all__ = ["PostgresServer"]

_INITIALISE_SECONDS: Final = 120

# A commit does not wait for the disk: it survives a crash of the server, not one of the machine.
_FAST: Final = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

# PostgreSQL refuses to run as root. A process that changes its user loses the signal at its parent's end, so the signal
# is asked for again, and the parent looked at again.
_AS_NOBODY: Final = (
    "import ctypes, os, signal, sys\n"
    "parent = os.getppid()\n"
    "os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != parent: sys.exit('the starting process is gone')\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)
_NOBODY: Final = 65534


class PostgresServer(EmbeddedServer):
    """PostgreSQL 17 on a free port of 127.0.0.1, with the superuser postgres without a password.

    Parameters
    ----------
    datadir : Path or str, optional
        See `EmbeddedServer`.
    port : int, optional
        See `EmbeddedServer`.
    options : mapping of str to str, optional
        Settings of the server: ``{"max_connections": "20"}``.
    fast : bool, default False
        Do not wait for the disk at each commit.

    Notes
    -----
    For x86-64 Linux only. The server (15 MB) is downloaded once into the cache. Each server initialises its data
    directory, which takes about a second. If this process is root's, the server runs as nobody, on a copy of its files.
    It has no Unix socket.

    Examples
    --------
    >>> with PostgresServer() as postgres:  # doctest: +SKIP
    ...     postgres.execute("SHOW server_version")
    [('17.11',)]
    """

    name = "postgres"
    user = "postgres"
    version: ClassVar[str] = "17.11.0"
    stop_signal = signal.SIGINT  # SIGTERM waits until the last client has left

    def __init__(
        self,
        datadir: Path | str | None = None,
        port: int | None = None,
        options: Mapping[str, str] | None = None,
        *,
        fast: bool = False,
    ) -> None:
        super().__init__(datadir, port)
        self._options = {**(_FAST if fast else {}), **(options or {})}

    @classmethod
    def base_directory(cls) -> Path:
        """The unpacked server. The first call downloads and unpacks it.

        Raises
        ------
        BacklogError
            This is not an x86-64 Linux, or the download failed.
        """
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            raise BacklogError(
                f"the embedded PostgreSQL runs on x86-64 Linux only, this is {platform.system()} on "
                f"{platform.machine()}.",
                "Use such a machine.",
            )
        base = cache_dir() / f"{cls.name}-{cls.version}"
        if not base.is_dir():
            archive = postgres_archive()
            with locked(cls.name):
                if not base.is_dir():
                    with scratch() as work:
                        _unpack(archive, work / "base")
                        os.replace(work / "base", base)
        return base

    def initialise(self) -> None:
        if os.geteuid() == 0:
            os.chown(self.datadir, _NOBODY, _NOBODY)
        initdb = [str(self._base() / "bin" / "initdb"), f"--pgdata={self.datadir}", f"--username={self.user}"]
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        command = self._as_allowed_user([*initdb, *options])
        run = subprocess.run(
            command, env=_environment(), cwd="/", capture_output=True, text=True, timeout=_INITIALISE_SECONDS,
            check=False,
        )  # fmt: skip
        if run.returncode != 0:
            self.log_path.write_text(run.stdout + run.stderr)
            raise ServerError(f"initialising its data directory ended with status {run.returncode}.", self.log_path)
        # Users that a test makes need their password, so that a wrong one is refused.
        (self.datadir / "pg_hba.conf").write_text(
            f"host all {self.user} 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )

    def command(self) -> list[str]:
        options = {
            "port": str(self.port),
            "listen_addresses": self.host,
            "unix_socket_directories": "",
            "logging_collector": "off",
            **self._options,
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return self._as_allowed_user([str(self._base() / "bin" / "postgres"), "-D", str(self.datadir), *settings])

    def environment(self) -> dict[str, str]:
        return _environment()

    def working_directory(self) -> Path:
        return Path("/")  # that of this process may be closed to nobody

    def is_ready(self) -> bool:
        # Another server might answer on the port. This one writes the port that it has into its data directory.
        try:
            lines = (self.datadir / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        if len(lines) < 8 or lines[7].strip() != "ready" or lines[0] != str(self.pid) or lines[3] != str(self.port):
            return False
        with contextlib.suppress(psycopg.OperationalError):
            self.connect(connect_timeout=2).close()
            return True
        return False

    def connect(self, **settings: Any) -> psycopg.Connection[Any]:
        """A new connection as postgres, in autocommit mode.

        Parameters
        ----------
        **settings
            Arguments for `psycopg.connect`. They replace the defaults.
        """
        defaults: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "dbname": "postgres",
            "autocommit": True,
        }
        return psycopg.connect(**{**defaults, **settings})

    def execute(self, sql: str, args: Sequence[Any] | None = None, **settings: Any) -> list[tuple[Any, ...]]:
        """Run a statement on a new connection. Returns its rows; [] if the statement has no result."""
        with self.connect(**settings) as connection:
            cursor = connection.execute(sql.encode(), args)
            return cursor.fetchall() if cursor.description else []

    def _base(self) -> Path:
        """The server's files, where its user may read them."""
        base = self.base_directory()
        if os.geteuid() != 0:
            return base
        copied = self.home / "server"
        if not copied.is_dir():
            self.home.chmod(0o755)
            shutil.copytree(base, copied)
        return copied

    def _as_allowed_user(self, command: list[str]) -> list[str]:
        if os.geteuid() != 0:
            return command
        return [sys.executable, "-I", "-S", "-c", _AS_NOBODY, str(_NOBODY), *command]


def _unpack(archive: Path, base: Path) -> None:
    with (
        zipfile.ZipFile(archive) as jar,
        jar.open("postgres-linux-x86_64.txz") as packed,
        tarfile.open(fileobj=packed, mode="r:xz") as content,
    ):
        members = content.getmembers()
        for member in members:
            member.uid, member.gid, member.uname, member.gname = os.geteuid(), os.getegid(), "", ""
        if hasattr(tarfile, "data_filter"):  # since Python 3.11.4; Python 3.12 warns without a filter
            content.extraction_filter = tarfile.data_filter
        content.extractall(base, members)


def _environment() -> dict[str, str]:
    # Settings for clients of another server would reach initdb.
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
