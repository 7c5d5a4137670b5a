"""The peer Flink: compiles the programs in ``peers/flink`` and runs them, each with a cluster in its own process."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from backlog_spark.errors import BacklogError
from servers.cache import cache_dir, locked, scratch, sha256_of
from servers.flink_jars import flink_class_path
from servers.jars import java_executable

__all__ = ["FLINK_THREADS", "run_program"]

_SOURCES = sorted((Path(__file__).parent / "peers" / "flink").glob("*.java"))
# Flink finds connectors by this file.
_FACTORIES = Path("META-INF") / "services" / "org.apache.flink.table.factories.Factory"
_CONNECTOR = "NexmarkSide"
FLINK_THREADS = 2  # as Spark has at local[2]
_MEMORY = "4g"  # as Spark's driver
_OPENED = ("java.lang", "java.util", "java.time")


def _classes() -> Path:
    """The folder with the compiled programs. Only the first call for a version of their sources compiles them."""
    version = "-".join(sha256_of(source)[:8] for source in _SOURCES)
    folder = cache_dir() / f"flink-peer-{version}"
    with locked("flink-peer"):
        if not folder.is_dir():
            compiler = Path(java_executable()).resolve().with_name("javac")
            with scratch() as work:
                made, given = work / "classes", _joined(flink_class_path())
                command = [str(compiler), "-nowarn", "-d", str(made), "-cp", given, *map(str, _SOURCES)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise BacklogError(f"javac cannot compile the peer for Flink: {done.stderr[-2_000:]}")
                (made / _FACTORIES).parent.mkdir(parents=True)
                (made / _FACTORIES).write_text(_CONNECTOR)
                made.rename(folder)
    return folder


def _joined(paths: Sequence[Path]) -> str:
    return ":".join(map(str, paths))


def run_program(program: str, arguments: Sequence[str], log: Path, *, limit_s: float) -> list[tuple[str, str, str]]:
    """Run a program until its end or the limit.

    Parameters
    ----------
    program : str
        The name of its class.
    arguments : sequence of str
    log : Path
        A file for what it says on its standard error.
    limit_s : float
        It is killed after so many seconds.

    Returns
    -------
    list of (str, str, str)
        Of each line of its output: the first word, the second one, and the rest.
    """
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    command = [
        *(java_executable(), f"-Xmx{_MEMORY}", *opened, "-cp", _joined([_classes(), *flink_class_path()])),
        *(program, *arguments),
    ]
    with log.open("w") as said:
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=said, text=True, timeout=limit_s, check=False)
            output = done.stdout
        except subprocess.TimeoutExpired as late:
            output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
    found = []
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        name, _, figures = rest.partition(" ")
        found.append((kind, name, figures))
    return found
