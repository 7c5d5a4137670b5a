"""A real Kafka 4.1.0 that needs no Docker and no installed package: one node, both broker and controller (KRaft)."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from backlog_spark.errors import BacklogError
from servers.cache import cache_dir, locked, scratch
from servers.jars import java_executable
from servers.kafka_jars import KAFKA_VERSION, kafka_jars
from servers.server import EmbeddedServer, ServerError, free_port

__all__ = ["KafkaServer"]

# There is one broker, so internal topics cannot have three replicas. One partition each: the default of 50 makes 50
# directories.
_DEFAULTS: dict[str, str] = {
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Tests write records with old timestamps. Kafka would remove them at once with a retention by time.
    "log.retention.ms": "-1",
    # A killed broker can start again only after its session has ended. With the default of 9 s a start takes 13 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}

_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

# The broker's last log line of a start, on standard error.
_STARTED = "Kafka Server started"

_FORMAT_SECONDS = 120


class KafkaServer(EmbeddedServer):
    """Kafka 4.1.0 on a free port of 127.0.0.1, without login. Topics are not created automatically.

    Parameters
    ----------
    datadir : Path or str, optional
        See `EmbeddedServer`.
    options : mapping of str to str, optional
        Properties of the broker, such as ``{"message.max.bytes": "4000000"}``. They replace the defaults.
    protocols : sequence of str, optional
        More listeners: ``"SASL_PLAINTEXT"``, ``"SSL"`` or ``"SASL_SSL"``, each on a port of its own. The last two
        need certificates: set them in ``options``.
    users : mapping of str to str, optional
        Names and passwords for a login with PLAIN. OAUTHBEARER takes unsigned tokens.

    Notes
    -----
    Needs Java 17. The jars (43 MB) are downloaded once into the cache. A start takes about 3 s.

    Examples
    --------
    >>> with KafkaServer() as kafka:  # doctest: +SKIP
    ...     producer = confluent_kafka.Producer({"bootstrap.servers": kafka.address()})
    """

    name = "kafka"
    version: ClassVar[str] = KAFKA_VERSION

    def __init__(
        self,
        datadir: Path | str | None = None,
        options: Mapping[str, str] | None = None,
        *,
        protocols: Sequence[str] = (),
        users: Mapping[str, str] | None = None,
    ) -> None:
        unknown = [protocol for protocol in protocols if protocol not in _PROTOCOLS]
        if unknown:
            raise BacklogError(f"{unknown[0]!r} is none of {', '.join(_PROTOCOLS)}.", "PLAINTEXT is always there.")
        super().__init__(datadir)
        self._options = dict(options or {})
        self._users = dict(users or {})
        self._ports = {protocol: free_port() for protocol in (*protocols, "CONTROLLER")}
        self._log_start = 0

    def address(self, protocol: str = "PLAINTEXT") -> str:
        """``host:port`` of a listener, for ``bootstrap.servers``. A restart does not change it."""
        return f"{self.host}:{self.port if protocol == 'PLAINTEXT' else self._ports[protocol]}"

    def initialise(self) -> None:
        shutil.copytree(self.template(), self.datadir, dirs_exist_ok=True)
        # Each server is a cluster of its own, and needs another cluster id.
        meta = self.datadir / "meta.properties"
        meta.write_text(_with_new_ids(meta.read_text()))

    @classmethod
    def template(cls) -> Path:
        """A formatted data directory (a few hundred bytes) for each server to copy. The first call makes it, in 2 s."""
        template = cache_dir() / f"{cls.name}-{cls.version}-data"
        if not template.is_dir():
            kafka_jars()  # takes a lock of its own
            with locked(cls.name):
                if not template.is_dir():
                    with scratch() as work:
                        cls._format(work)
                        os.replace(work / "data", template)
        return template

    @classmethod
    def _format(cls, work: Path) -> None:
        properties = work / "server.properties"
        properties.write_text(_text(_properties(work / "data", {"PLAINTEXT": 9092, "CONTROLLER": 9093})))
        command = [*_java("256m"), "kafka.tools.StorageTool", "format", "-t", _new_id(), "-c", str(properties)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_SECONDS, check=False)
        if run.returncode != 0:
            log = cache_dir() / f"{cls.name}-initialise.log"
            log.write_text(run.stdout + run.stderr)
            raise ServerError(f"formatting Kafka's data directory ended with status {run.returncode}.", log)

    def command(self) -> list[str]:
        ports = {"PLAINTEXT": self.port, **self._ports}
        path = self.home / "server.properties"
        path.touch(mode=0o600)  # the users' passwords are in it
        path.write_text(_text({**_properties(self.datadir, ports), **self._login(), **self._options}))
        self._log_start = self.log_path.stat().st_size
        return [*_java("512m"), "kafka.Kafka", str(path)]

    def _login(self) -> dict[str, str]:
        if not any(protocol.startswith("SASL") for protocol in self._ports):
            return {}
        users = " ".join(f"user_{name}={_quoted(password)}" for name, password in self._users.items())
        login = {"sasl.enabled.mechanisms": ",".join(_MECHANISMS)}
        for protocol in self._ports:
            if protocol.startswith("SASL"):
                listener = f"listener.name.{protocol.lower()}"
                package = "org.apache.kafka.common.security"
                login[f"{listener}.plain.sasl.jaas.config"] = f"{package}.plain.PlainLoginModule required {users};"
                for mechanism in _MECHANISMS[1:3]:
                    module = f"{package}.scram.ScramLoginModule required;"
                    login[f"{listener}.{mechanism.lower()}.sasl.jaas.config"] = module
                # Kafka's validator of unsigned tokens. A connection ends when its token does.
                module = f"{package}.oauthbearer.OAuthBearerLoginModule required"
                login[f"{listener}.oauthbearer.sasl.jaas.config"] = f'{module} unsecuredLoginStringClaim_sub="broker";'
                login[f"{listener}.oauthbearer.connections.max.reauth.ms"] = "3600000"
        return login

    def is_ready(self) -> bool:
        # The log line is used, because another server might answer on the port. The broker accepts connections by then.
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return _STARTED.encode() in log.read()


def _properties(datadir: Path, ports: Mapping[str, int]) -> dict[str, str]:
    listeners = ",".join(f"{protocol}://{KafkaServer.host}:{port}" for protocol, port in ports.items())
    protocols = ",".join(f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in ports)
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{KafkaServer.host}:{ports['CONTROLLER']}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": listeners,
        "listener.security.protocol.map": protocols,
        "log.dirs": str(datadir),
        **_DEFAULTS,
    }


def _text(properties: Mapping[str, str]) -> str:
    """The text of a properties file of Java."""

    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace("\n", "\\n")

    return "".join(f"{name}={escaped(value)}\n" for name, value in properties.items())


def _java(memory: str) -> list[str]:
    return [
        *(java_executable(), f"-Xmx{memory}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
        *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"),
        # It logs `_STARTED`.
        "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
        *("-cp", ":".join(str(jar) for jar in kafka_jars())),
    ]


def _new_id() -> str:
    """An id in Kafka's form: a UUID in URL-safe base64 that does not begin with a dash."""
    while True:
        found = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not found.startswith("-"):
            return found


def _with_new_ids(meta: str) -> str:
    ids = ("cluster.id=", "directory.id=")
    return "".join(
        f"{line.partition('=')[0]}={_new_id()}\n" if line.startswith(ids) else f"{line}\n" for line in meta.splitlines()
    )


def _quoted(text: str) -> str:
    """The text as a quoted value of JAAS."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
