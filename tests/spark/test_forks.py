"""Spark's Python processes on the driver's machine are forked from a server: nothing but the time differs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import backlog_spark as bs
from backlog_spark.spark import startup
from backlog_spark.spark.jvm.session import register_source, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.process

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STARTUP = Path(startup.__file__).parent
PROBE = """
import json, os, sys
print(json.dumps([os.getpid(), os.getppid(), sys.argv, sys.path, os.getcwd(), os.environ.get("OWN"), sys.orig_argv[1:],
                  __name__, oct(os.umask(0o27)), sys.stdin.read()]))
print("told", file=sys.stderr)
if os.environ.get("WAIT"):
    import time
    open(os.environ["WAIT"], "w").write(str(os.getpid()))
    time.sleep(60)
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "probe.py").write_text(PROBE)
    path = startup.fork_server(sys.executable, environment(tmp_path), ["probe_of_nobody"])
    assert path is not None
    until(Path(path).exists)
    yield path
    startup._stop(startup._servers.popitem()[1][1])


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONPATH": f"{tmp_path / 'modules'}:{STARTUP}", "PYTHONHASHSEED": "0", **more}


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def start(server: str, tmp_path: Path, **more: str) -> subprocess.Popen[str]:
    """A process that asks for the module probe, and runs it itself if it is refused."""
    code = f"""
import sys
path = sys.path[1:]  # without that of -c
sys.path.append({str(STARTUP)!r})
import backlog_forks
backlog_forks.ask({server!r}, "probe", path)
print("alone")
"""
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment(tmp_path, **more), cwd=tmp_path, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def is_there(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False


def test_a_child_takes_the_place_of_the_process(server: str, tmp_path: Path) -> None:
    asked = start(server, tmp_path, OWN="here", STATUS="7", PYTHON_WORKER_FACTORY_PORT="1")
    out, err = asked.communicate("typed", timeout=30)
    assert asked.returncode == 7
    assert err == "told\n"
    child, parent, argv, path, directory, own, command, name, umask, typed = json.loads(out)
    (of_server,) = [each[1].pid for each in startup._servers.values() if each[0] == server]
    assert child != asked.pid
    assert parent == of_server
    assert argv == [str(tmp_path / "modules" / "probe.py")]
    assert path[:2] == [str(tmp_path), str(tmp_path / "modules")]
    assert (directory, own, command, name) == (str(tmp_path), "here", ["-m", "probe"], "__main__")
    assert umask == oct(os.umask(int(umask, 8)))
    assert typed == "typed"


def test_many_at_once(server: str, tmp_path: Path) -> None:
    every = [start(server, tmp_path, OWN=str(number), STATUS=str(number)) for number in range(12)]
    found = [(json.loads(asked.communicate("", timeout=60)[0])[5], asked.returncode) for asked in every]
    assert found == [(str(number), number) for number in range(12)]


def test_the_child_ends_with_the_process_that_asked(server: str, tmp_path: Path) -> None:
    for by in (signal.SIGTERM, signal.SIGKILL):
        mark = tmp_path / f"running {by}"
        asked = start(server, tmp_path, WAIT=str(mark))
        assert asked.stdin is not None
        asked.stdin.close()
        until(lambda: mark.exists() and bool(mark.read_text()))  # noqa: B023
        child = int(mark.read_text())
        assert is_there(child)
        asked.send_signal(by)
        until(lambda: not is_there(child))  # noqa: B023
        asked.wait(30)
    assert start(server, tmp_path).communicate("", timeout=30)[0].startswith("["), "the server goes on"


def test_the_process_that_asked_ends_with_its_child(server: str, tmp_path: Path) -> None:
    mark = tmp_path / "running"
    asked = start(server, tmp_path, WAIT=str(mark))
    assert asked.stdin is not None
    asked.stdin.close()
    until(lambda: mark.exists() and bool(mark.read_text()))
    os.kill(int(mark.read_text()), signal.SIGKILL)
    assert asked.wait(30) == 128 + signal.SIGKILL


@pytest.mark.parametrize("more", [{"PYTHONHASHSEED": "1"}, {"LD_LIBRARY_PATH": "/own"}, {"PYTHONPATH": str(STARTUP)}])
def test_a_process_that_would_start_otherwise_goes_on_alone(server: str, tmp_path: Path, more: dict[str, str]) -> None:
    assert start(server, tmp_path, **more).communicate("", timeout=30)[0] == "alone\n"


def test_without_a_server_it_goes_on_alone(tmp_path: Path) -> None:
    for path in (tmp_path / "none", STARTUP / "sitecustomize.py"):
        (tmp_path / "modules").mkdir(exist_ok=True)
        assert start(str(path), tmp_path).communicate("", timeout=30)[0] == "alone\n"


def test_no_child_for_one_that_lost_patience(server: str, tmp_path: Path) -> None:
    for said in (b"", b"\0\0\0\2{", b"\0\0\0\2{}", b"\0\0\0\5{}  x"):
        with socket.socket(socket.AF_UNIX) as impatient:
            impatient.connect(server)
            impatient.sendall(said)
    (of_server,) = [each[1].pid for each in startup._servers.values() if each[0] == server]
    mark = tmp_path / "ran"
    code = f"""
import os, sys
sys.path.append({str(STARTUP)!r})
import backlog_forks
backlog_forks._GO = b""  # leaves without a word when it is its turn
os._exit = lambda status: None
backlog_forks.ask({server!r}, "probe", sys.path)
"""
    left = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path, WAIT=str(mark)), timeout=30)
    assert left.returncode == 0
    assert start(server, tmp_path).communicate("", timeout=30)[0].startswith("["), "the server goes on"
    assert not mark.exists()
    assert Path(f"/proc/{of_server}/task/{of_server}/children").read_text() == ""


def test_the_server_ends_with_the_driver_however_that_ends(tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from backlog_spark.spark import startup
path = startup.fork_server(sys.executable, {environment(tmp_path)!r}, [])
assert path == startup.fork_server(sys.executable, {environment(tmp_path)!r}, []), "one is enough"
print(path, *[process.pid for _, process in startup._servers.values()], flush=True)
time.sleep(60)
"""
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    path, pid = driver.stdout.readline().split()
    until(Path(path).exists)
    driver.kill()
    driver.wait()
    until(lambda: not is_there(int(pid)) and not Path(path).parent.exists())


def test_what_killed_servers_left_is_removed(server: str, tmp_path: Path) -> None:
    left, starting = tmp_path / "backlog-forks-left", tmp_path / "backlog-forks-starting"
    left.mkdir()
    starting.mkdir()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(left / "s"))
    startup._sweep(tmp_path)
    assert not left.exists()
    assert starting.exists(), "its server may be about to listen"
    startup._sweep(Path(server).parent.parent)
    assert start(server, tmp_path).communicate("", timeout=30)[0].startswith("["), "one that listens is left alone"


@pytest.fixture
def kept_environment(spark: SparkSession) -> Iterator[dict[str, str]]:
    """What the session gives to Python processes, with the values from before put back after the test."""
    bs.register(spark)
    environment = spark.sparkContext.environment
    before = dict(environment)
    yield environment
    environment.clear()
    environment.update(before)


def until_it_answers(path: str) -> None:
    """Wait for the end of the server's imports: it then refuses a process that is not like it."""
    until(Path(path).exists)
    text = json.dumps({"fingerprint": ""}).encode()
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(60)
        other.connect(path)
        socket.send_fds(other, [len(text).to_bytes(4, "big")], [0, 1, 2])
        other.sendall(text)
        assert other.recv(1) == b"n"


@pytest.mark.slow
@pytest.mark.parametrize("is_added_later", [False, True])
def test_spark_s_processes_are_forked(
    spark: SparkSession, tmp_path: Path, kept_environment: dict[str, str], is_added_later: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    notes = str(tmp_path / "notes")

    def note(what: str) -> None:
        with Path(notes).open("a") as file:
            file.write(f"{what} {Path(f'/proc/{os.getppid()}/cmdline').read_text()}\n")

    class Numbers(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            note("source")
            return {"at": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
            return iter([(n,) for n in range(start["at"], 3)]), {"at": 3}

        def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:
            return iter([(n,) for n in range(start["at"], end["at"])])

    class NumbersSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers_of_forks"

        def schema(self) -> str:
            return "n bigint"

        def simpleStreamReader(self, schema: StructType) -> Numbers:
            return Numbers()

    class Processor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            note("operator")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            yield pd.concat(rows)

        def close(self) -> None:
            pass

    if is_added_later:  # as `backlog-spark run` does for a second pipeline in one program
        before = kept_environment.get(startup.SERVER)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    register_source(spark, NumbersSource)
    assert not is_added_later or kept_environment[startup.SERVER] != before
    until_it_answers(kept_environment[startup.SERVER])
    numbers = spark.readStream.format("numbers_of_forks").load()
    rows: list[int] = []
    with session_conf(spark, {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}):
        query = (
            numbers.groupBy("n").transformWithStateInPandas(Processor(), "n bigint", "update", "None")
            .writeStream.foreachBatch(lambda batch, _: rows.extend(row.n for row in batch.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(300)
    assert sorted(rows) == [0, 1, 2]
    started_by = dict(line.split(" ", 1) for line in reversed(Path(notes).read_text().splitlines()))
    assert "backlog_forks.py" in started_by["source"]
    assert "backlog_forks.py" in started_by["operator"], "the first was before the first batch, on the driver"
