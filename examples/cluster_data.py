"""What the parts of the cluster demo share: where the servers and the files of the demo are.

Each part of the demo (``mysql``, ``hybrid``) has empty files in the demo's directory, by which the processes wait for
each other: ``ready-<part>`` (its data exist), ``follows-<part>`` (the job has followed the changes for a while) and
``ended-<part>`` (no more changes).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["PARTS", "QUERIES", "Database", "await_file", "parser"]

PARTS = ("mysql", "hybrid")
QUERIES = {"mysql": "orders", "hybrid": "minutes"}
"""The name of each part's query."""


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options that the job and the changes have in common."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--folder", type=Path, required=True, help="a directory that all machines see")
    found.add_argument("--mysql", required=True, help="host:port")
    found.add_argument("--broker", required=True, help="host:port of Kafka")
    return found


class Database:
    """Connections to the demo's MySQL.

    Parameters
    ----------
    address : str
        ``host:port``.
    user : str
    password_variable : str
        The environment variable that has the password; unset means none.
    """

    def __init__(self, address: str, user: str, password_variable: str) -> None:
        self.host, _, port = address.rpartition(":")
        self.port, self.user = int(port), user
        self._variable = password_variable

    def connect(self, **settings: Any) -> Any:
        """A new connection, in autocommit mode."""
        import pymysql

        password = os.environ.get(self._variable, "")
        base = {"host": self.host, "port": self.port, "user": self.user, "password": password, "autocommit": True}
        return pymysql.connect(**{**base, "charset": "utf8mb4", **settings})


def await_file(path: Path, holds: Callable[[], object] = lambda: True, pause: float = 0.1) -> None:
    """Wait until a file exists; ``holds`` is called meanwhile and raises if that is hopeless."""
    while not path.exists():
        holds()
        time.sleep(pause)
