"""Debezium's engine, from its jars, which sends the changes of a MySQL server to the tests' broker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from servers.debezium_jars import debezium_jars
from servers.jars import java_executable
from servers.server import EmbeddedServer

if TYPE_CHECKING:
    from servers.kafka import KafkaServer
    from servers.mysql import MySQLServer

__all__ = ["DebeziumEngine"]

_OFFSET_S, _LEAST_OFFSET = 120, 100  # an empty file has four bytes
_PROGRAM = Path(__file__).with_name("DebeziumToKafka.java")


class DebeziumEngine(EmbeddedServer):
    """See `EmbeddedServer`. Killed and started again, it sends the changes since its last stored offset again.

    Parameters
    ----------
    mysql, kafka
    table : str
        ``database.table``.
    prefix : str
        The topic is ``prefix.database.table``.
    properties : mapping of str to str
        More settings of the connector.
    """

    name = "debezium"

    def __init__(
        self, mysql: MySQLServer, kafka: KafkaServer, table: str, prefix: str, properties: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._connections = 0
        self._properties = {
            "name": prefix,
            "topic.prefix": prefix,
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "kafka.bootstrap.servers": kafka.address(),
            "database.hostname": mysql.host,
            "database.port": str(mysql.port),
            "database.user": mysql.user,
            "database.password": mysql.password,
            "database.server.id": "65001",
            "database.ssl.mode": "disabled",
            "driver.allowPublicKeyRetrieval": "true",
            "table.include.list": table,
            "snapshot.mode": "no_data",
            "skipped.operations": "none",
            "tombstones.on.delete": "true",
            "include.schema.changes": "false",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.flush.interval.ms": "1000",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "poll.interval.ms": "50",
            **properties,
        }

    def initialise(self) -> None:
        files = {
            "offset.storage.file.filename": self.datadir / "offsets",
            "schema.history.internal.file.filename": self.datadir / "history",
        }
        lines = [f"{name}={value}" for name, value in {**self._properties, **files}.items()]
        (self.datadir / "engine.properties").write_text("\n".join(lines))

    def command(self) -> list[str]:
        self._connections = self._count()
        path = ":".join(map(str, debezium_jars()))
        program = [str(_PROGRAM), str(self.datadir / "engine.properties")]
        return [java_executable(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", path, *program]

    def is_ready(self) -> bool:
        # Before that it would miss changes: it notes the end of the log first.
        return self._count() > self._connections

    def kill(self) -> None:
        """See `EmbeddedServer`. Without a stored offset it would begin anew, at the end of the log."""
        limit, offsets = time.monotonic() + _OFFSET_S, self.datadir / "offsets"
        while not offsets.exists() or offsets.stat().st_size < _LEAST_OFFSET:
            assert time.monotonic() < limit, self.log_path.read_text()[-3000:]
            time.sleep(0.1)
        super().kill()

    def _count(self) -> int:
        return self.log_path.read_text(errors="replace").count("BinaryLogClient connect\n")
