"""A real Hive metastore, from the jars that Spark brings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from servers.jars import fetch, pinned
from tests.sinks.java_server import JavaServer

__all__ = ["HiveMetastoreServer"]

# For locks, which Spark never takes.
_JARS = pinned(
    {
        "com.jolbox": "bonecp 0.8.0.RELEASE a53d5b5a7ba6433fc7c29e29664313e50ddb53e7381698c41d1091e3c3d081fb",
    }
)
_HERE = Path(__file__).parent


class HiveMetastoreServer(JavaServer):
    """A server on 127.0.0.1; see `EmbeddedServer`."""

    name = "hive-metastore"

    def program(self) -> tuple[Path, Sequence[Path], Sequence[str]]:
        # Hive's own configuration of log4j needs a library that Spark lacks.
        log = f"-Dlog4j2.configurationFile={_HERE / 'log4j2-metastore.properties'}"
        derby = f"-Dderby.stream.error.file={self.datadir}/derby.log"
        return _HERE / "Metastore.java", fetch(_JARS), ["-Xmx512m", log, derby]

    @property
    def uri(self) -> str:
        return f"thrift://{self.host}:{self.port}"

    @property
    def catalog(self) -> dict[str, str]:
        """The argument of an Iceberg sink. Spark's jars are of Hive 2."""
        return {
            "type": "hive", "uri": self.uri, "warehouse": f"file://{self.datadir}/warehouse",
            "hive.hive2-compatible": "true",
        }  # fmt: skip
