"""Servers, writers and drivers of a soak, and the faults that strike them."""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.kafka import KafkaServer
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.proxy import Proxy
from tests.connectors.mysql_cdc.server.test_failover import REPLICA

from . import plan
from .changes import CREATE, DATABASE
from .drivers import Driver
from .orders import Writer
from .plan import CHANGES, RECORDS
from .records import PARTITIONS, TOPIC, write_files

_REPLICA_S = 120.0
_MIB = 1 << 20


@dataclass(frozen=True)
class Load:
    """What is written.

    Parameters
    ----------
    seed : int
    changes, records : int
        A second.
    keys : int
        The table's keys; about half of them have a row.
    sums : int
        Keys of the records.
    before : int
        Rows in files before the topic.
    away_s : float
        How long a driver is away.
    """

    seed: int
    changes: int
    records: int
    keys: int
    sums: int
    before: int
    away_s: float


class Stage:
    """All that runs. `close` ends it.

    Parameters
    ----------
    root : Path
        For all files but the servers'.
    load : Load
    """

    def __init__(self, root: Path, load: Load) -> None:
        self.load = load
        self._stack = contextlib.ExitStack()
        self._chance = random.Random(load.seed + 1)
        try:
            self._start(root)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, root: Path) -> None:
        load, stack = self.load, self._stack
        keep_s = round(2 * load.away_s + 900)
        logs: dict[str, str | None] = {"max-binlog-size": "64M", "binlog-expire-logs-seconds": str(keep_s)}
        self.primary = stack.enter_context(MySQLServer(options=logs, fast=True))
        self.replica = stack.enter_context(MySQLServer(options={**logs, "server-id": "2"}, fast=True))
        self._follow(self.replica, self.primary)
        self.primary.execute(f"CREATE DATABASE {DATABASE}")
        self.primary.execute(CREATE)
        self.proxy = stack.enter_context(Proxy(self.primary.port, bytes_per_second=10**9, stall_s=0))
        retention = {"log.segment.bytes": str(64 * _MIB), "log.retention.check.interval.ms": "30000"}
        self.broker = stack.enter_context(KafkaServer(options=retention))
        _create_topic(self.broker.address(), keep_s)
        files = root / "files"
        write_files(files, load.seed, load.sums, load.before)
        self.writers = {
            CHANGES: Writer(
                "changes",
                {"port": self.primary.port, "rate": load.changes, "keys": load.keys, "seed": load.seed},
                root / "changes.log",
            ),
            RECORDS: Writer(
                "records",
                {"broker": self.broker.address(), "rate": load.records, "keys": load.sums, "seed": load.seed},
                root / "records.log",
            ),
        }
        for writer in self.writers.values():
            stack.callback(writer.close)
        self.writers[CHANGES].order("fill")
        self.drivers = {
            CHANGES: Driver(root / CHANGES, CHANGES, source=self._changes(), **self._job("1 second")),
            RECORDS: Driver(root / RECORDS, RECORDS, source=self._records(files), **self._job("2 seconds")),
        }
        for driver in self.drivers.values():
            stack.callback(driver.left, kill=True)
            stack.callback(driver.kill)

    def _changes(self) -> dict[str, str]:
        return {
            "host": "127.0.0.1",
            "port": str(self.proxy.port),
            "user": "root",
            "table": f"{DATABASE}.t",
            "backlogLagThreshold": self._threshold(),
        }

    def _records(self, files: Path) -> dict[str, str]:
        return {
            "path": str(files),
            "schema": "k INT, n BIGINT",
            "valueFormat": "json",
            "kafka.bootstrap.servers": self.broker.address(),
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "backlogLagThreshold": self._threshold(),
        }

    def _threshold(self) -> str:
        """More than a driver's start takes, and less than it is away."""
        return f"{max(10.0, min(60.0, self.load.away_s / 3)):.0f} seconds"

    def _job(self, interval: str) -> dict[str, Any]:
        # The log has to last for longer than a driver is away.
        minutes = round(self.load.away_s / 60 + 3)
        properties = {
            "delta.logRetentionDuration": f"interval {minutes} minutes",
            "delta.deletedFileRetentionDuration": "interval 2 minutes",
        }
        return {
            "interval": interval, "during": "2 minutes", "properties": properties, "memory": "1500m", "conf": {},
        }  # fmt: skip

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    def strike(self, fault: plan.Fault) -> str:
        """Do it; what it did, or "" if there was nothing to strike."""
        if fault.kind == plan.KILL:
            driver = self.drivers[fault.query]
            driver.kill()
            driver.start()
        elif fault.kind == plan.WORKER:
            if not self.drivers[fault.query].kill_worker(self._chance):
                return ""
        elif fault.kind == plan.ALTER:
            return f"{fault.kind} {self.writers[CHANGES].order('alter')['did']}"
        elif fault.kind == plan.TRUNCATE:
            self.writers[CHANGES].order("truncate")
        elif fault.kind == plan.CUT:
            self.proxy.cut()
        elif fault.kind == plan.FAILOVER:
            self.fail_over()
        else:
            self.broker.kill()
            self.broker.start()
        return f"{fault.kind} of {fault.query}" if fault.query else fault.kind

    def fail_over(self) -> None:
        """SIGKILL of the server once its replica has all transactions; the replica takes its address and its work."""
        writer = self.writers[CHANGES]
        writer.order("pause")
        done = str(self.primary.execute("SELECT @@gtid_executed")[0][0])
        found = self.replica.execute(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{done}', {_REPLICA_S:.0f})")
        if found[0][0] != 0:
            raise RuntimeError(f"the replica has not caught up: {self.replica.execute(f'SHOW {REPLICA} STATUS')}")
        self.primary.kill()
        for statement in (f"STOP {REPLICA}", f"RESET {REPLICA} ALL"):
            self.replica.execute(statement)
        self.primary, self.replica = self.replica, self.primary
        self.proxy.to = self.primary.port
        self.proxy.cut()
        writer.order("port", port=self.primary.port)
        writer.order("go")
        self.replica.start()
        self._follow(self.replica, self.primary)

    def _follow(self, replica: MySQLServer, primary: MySQLServer) -> None:
        name = "MASTER" if REPLICA == "slave" else "SOURCE"
        change = "CHANGE MASTER" if REPLICA == "slave" else "CHANGE REPLICATION SOURCE"
        replica.execute(
            f"{change} TO {name}_HOST = '127.0.0.1', {name}_PORT = {primary.port}, {name}_USER = 'root', "
            f"{name}_AUTO_POSITION = 1, {name}_CONNECT_RETRY = 1"
        )
        replica.execute(f"START {REPLICA}")


def _create_topic(broker: str, keep_s: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    config = {"retention.ms": str(keep_s * 1000), "segment.ms": "300000"}
    client = AdminClient({"bootstrap.servers": broker})
    for created in client.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=config)]).values():
        created.result(60)


def wait_until(what: str, is_so: Any, meanwhile: Any, limit_s: float) -> float:
    """Wait; how long it took.

    Raises
    ------
    TimeoutError
        With ``what``.
    """
    began = time.monotonic()
    while not is_so():
        meanwhile()
        if time.monotonic() - began > limit_s:
            raise TimeoutError(f"{what} did not come within {limit_s:.0f} s")
        time.sleep(0.5)
    return time.monotonic() - began
