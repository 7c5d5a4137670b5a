"""Servers in Java for tests of sinks: one source file, run with the jars that Spark brings."""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from servers.jars import java_executable
from servers.server import EmbeddedServer

__all__ = ["JavaServer"]


class JavaServer(EmbeddedServer):
    """A server on 127.0.0.1; see `EmbeddedServer`. Its program gets the port and the data directory."""

    @abstractmethod
    def program(self) -> tuple[Path, Sequence[Path], Sequence[str]]:
        """The source file, jars beside Spark's, and options for Java."""

    def initialise(self) -> None:
        pass

    def command(self) -> list[str]:
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        source, more, options = self.program()
        jars = [*map(str, more), f"{Path(spec.origin).parent}/jars/*"]
        return [java_executable(), *options, "-cp", ":".join(jars), str(source), str(self.port), str(self.datadir)]

    def is_ready(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), 1).close()
        except OSError:
            return False
        return True
