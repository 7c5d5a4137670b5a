"""A standalone Spark cluster on this machine: a master and workers, each a process with a directory of its own.

The jars are those of the installed PySpark. The daemons are started by the scripts in ``docker/``, as containers do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.request import urlopen

from backlog_spark.errors import BacklogError
from servers.jars import java_executable
from servers.launch import launch
from servers.server import EmbeddedServer, free_port

__all__ = ["SCRIPTS", "Executor", "SparkCluster", "kill_group", "spark_home"]

SCRIPTS = Path(__file__).resolve().parents[1] / "docker"
"""The scripts that containers and this module run."""

_BACKEND = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_EXECUTORS_SECONDS = 120.0


def spark_home() -> Path:
    """The installed PySpark's directory. It holds all of Spark's jars and scripts."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise BacklogError("PySpark is not installed.", "Run `pip install -e .`, or any target of the Makefile.")
    return Path(found.origin).parent


@dataclass(frozen=True)
class Executor:
    """A running executor.

    Attributes
    ----------
    pid : int
        Its JVM. Its Python workers end when it does.
    worker : int
        The number of its worker in the cluster, from 0.
    application : str
        Spark's id of the application.
    """

    pid: int
    worker: int
    application: str

    def kill(self) -> None:
        """SIGKILL, as a crash or the kernel's out-of-memory killer does."""
        os.kill(self.pid, signal.SIGKILL)


class SparkCluster:
    """A master and workers on 127.0.0.1 and free ports.

    Parameters
    ----------
    workers : int, default 2
    cores : int, default 1
        Cores that each worker offers.
    memory : str, default "1g"
        Memory that each worker offers to executors.
    environment : mapping of str to str, optional
        Added to the environment of the daemons. Executors inherit it.

    Notes
    -----
    ``with`` starts and ends it; alternatively `start` and `close`. It takes about 4 s. Executors end with their worker.

    Examples
    --------
    >>> with SparkCluster() as cluster:  # doctest: +SKIP
    ...     cluster.submit(["job.py"], cwd=work, log=work / "driver.log").wait()
    """

    def __init__(
        self, workers: int = 2, *, cores: int = 1, memory: str = "1g", environment: Mapping[str, str] | None = None
    ) -> None:
        self._given = dict(environment or {})
        self.master = _Master(self._given)
        self.workers = [_Worker(self.master, cores, memory, self._given) for _ in range(workers)]
        self._drivers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """What ``--master`` takes."""
        return self.master.url

    def start(self) -> Self:
        """Start the master, then all workers, and return when they are registered."""
        try:
            self.master.start()
            for worker in self.workers:
                worker.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End the drivers that are left, the workers with their executors, and the master."""
        for driver in self._drivers:
            kill_group(driver)
        for daemon in (*self.workers, self.master):
            daemon.stop()  # in order, so that a worker ends its executors
            daemon.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self,
        program: Sequence[str],
        *,
        cwd: Path,
        log: Path,
        conf: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run ``spark-submit`` in client mode; all its output goes to ``log``.

        Parameters
        ----------
        program : sequence of str
            The Python file and its arguments.
        cwd : Path
            The driver's working directory.
        log : Path
            Written anew.
        conf : mapping of str to str, optional
            Each is given with ``--conf``.
        options : sequence of str, optional
            Further options, such as ``["--py-files", "x.zip"]``.
        environment : mapping of str to str, optional
            Added to this process's environment.

        Returns
        -------
        subprocess.Popen
            The driver's JVM and its Python process are one process group: end them with `kill_group`.
        """
        settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", **dict(conf or {})}
        arguments = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", self.url, *arguments, *options, *program]
        return self.run_driver(command, cwd, log, environment or {})

    def run_driver(
        self, command: Sequence[str], cwd: Path, log: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """As `submit`, by a command that finds the cluster in ``SPARK_MASTER_URL``."""
        own = {**_environment(), "SPARK_MASTER_URL": self.url, **environment}
        with log.open("wb") as out:
            driver = launch(command, own, out, cwd=cwd)
        self._drivers.append(driver)
        return driver

    def executors(self) -> list[Executor]:
        """The executors that run now, by worker."""
        return [executor for number, worker in enumerate(self.workers) for executor in worker.executors(number)]

    def await_executors(self, count: int, driver: subprocess.Popen[bytes] | None = None) -> list[Executor]:
        """Wait until this many run, and return them.

        Raises
        ------
        BacklogError
            They do not run after two minutes, or the driver has ended.
        """
        deadline = time.monotonic() + _EXECUTORS_SECONDS
        while len(found := self.executors()) < count:
            if driver is not None and driver.poll() is not None:
                raise BacklogError(f"the driver ended with status {driver.returncode}.", "Look into its log.")
            if time.monotonic() > deadline:
                raise BacklogError(
                    f"{len(found)} of {count} executors run after {_EXECUTORS_SECONDS:.0f} s.",
                    f"Logs of the daemons: {', '.join(str(d.log_path) for d in (self.master, *self.workers))}.",
                )
            time.sleep(0.05)
        return found


def kill_group(driver: subprocess.Popen[bytes]) -> None:
    """SIGKILL the JVM and the Python process of a driver that `SparkCluster.submit` started, and wait."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


class _Daemon(EmbeddedServer):
    """A master or worker. Its directory is its working directory."""

    script: ClassVar[str]

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.web_port = free_port()
        self._given = environment

    def initialise(self) -> None:
        java_executable()  # else a script says so in a log

    def command(self) -> list[str]:
        return ["/bin/sh", str(SCRIPTS / self.script)]

    def working_directory(self) -> Path:
        return self.datadir

    def environment(self) -> dict[str, str]:
        return {**_environment(), **self._ports(), **self._given}

    def _ports(self) -> dict[str, str]:
        return {}


class _Master(_Daemon):
    name = "spark-master"
    script = "spark-master.sh"

    @property
    def url(self) -> str:
        return f"spark://{self.host}:{self.port}"

    def _ports(self) -> dict[str, str]:
        ports = {"SPARK_MASTER_PORT": str(self.port), "SPARK_MASTER_WEBUI_PORT": str(self.web_port)}
        return {"SPARK_MASTER_HOST": self.host, **ports}

    def status(self) -> dict[str, Any]:
        """What the master's web page tells as JSON; empty while it does not answer."""
        with (
            contextlib.suppress(OSError, ValueError),
            urlopen(f"http://{self.host}:{self.web_port}/json/", None, 1) as r,
        ):
            found: dict[str, Any] = json.load(r)
            return found
        return {}

    def is_ready(self) -> bool:
        return self.status().get("url") == self.url and self.status().get("status") == "ALIVE"


class _Worker(_Daemon):
    name = "spark-worker"
    script = "spark-worker.sh"

    def __init__(self, master: _Master, cores: int, memory: str, environment: Mapping[str, str]) -> None:
        super().__init__(environment)
        self._master, self._cores, self._memory = master, cores, memory

    def _ports(self) -> dict[str, str]:
        return {
            "SPARK_MASTER_URL": self._master.url,
            "SPARK_WORKER_HOST": self.host,
            "SPARK_WORKER_PORT": str(self.port),
            "SPARK_WORKER_WEBUI_PORT": str(self.web_port),
            "SPARK_WORKER_CORES": str(self._cores),
            "SPARK_WORKER_MEMORY": self._memory,
            "SPARK_WORKER_DIR": str(self.datadir / "work"),
            "SPARK_LOCAL_DIRS": str(self.datadir / "local"),
        }

    def is_ready(self) -> bool:
        workers = self._master.status().get("workers", [])
        return any(worker["port"] == self.port and worker["state"] == "ALIVE" for worker in workers)

    def executors(self, number: int) -> list[Executor]:
        if self.pid is None:
            return []
        found = []
        for child in _children(self.pid):
            words = _command_line(child)
            if _BACKEND in words and b"--app-id" in words:
                application = words[words.index(b"--app-id") + 1].decode()
                found.append(Executor(child, number, application))
        return found


def _environment() -> dict[str, str]:
    """This process's, with Spark on the loopback address and Python workers that have the packages."""
    own = {
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": EmbeddedServer.host,
        "SPARK_PUBLIC_DNS": EmbeddedServer.host,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    return {**os.environ, **own}


def _children(pid: int) -> list[int]:
    """Children of all threads of a process, in no order."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in thread.read_text().split()]
    return found


def _command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
