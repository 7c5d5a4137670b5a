"""The peer Flink: compiles the program in ``peers/flink`` and runs statements in it, in a cluster of one process."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from backlog_spark.errors import BacklogError
from benchmarks.nexmark_events import VIEWS
from benchmarks.nexmark_jobs import Query
from servers.cache import cache_dir, locked, scratch, sha256_of
from servers.flink_jars import flink_class_path
from servers.jars import java_executable

__all__ = ["Outcome", "Request", "run_flink"]

_SOURCES = sorted((Path(__file__).parent / "peers" / "flink").glob("*.java"))
# Flink finds connectors by this file.
_FACTORIES = Path("META-INF") / "services" / "org.apache.flink.table.factories.Factory"
_CONNECTOR = "NexmarkSide"
_THREADS = 2  # as Spark has at local[2]
_MEMORY = "4g"  # as Spark's driver
_OPENED = ("java.lang", "java.util", "java.time")
_ENDS = ("RESULT", "FAILED")


class Request(NamedTuple):
    """One run of one statement.

    Parameters
    ----------
    query : Query
    events : sequence of Path
        Folders of Parquet files. They are read in the order of their names.
    output : Path or None
        Folder for the changes of the result. None drops them.
    """

    query: Query
    events: Sequence[Path]
    output: Path | None


class Outcome(NamedTuple):
    """What a run took, or why it failed."""

    seconds: float
    cpu: float
    why: str = ""


def _classes() -> Path:
    """The folder with the compiled program. Only the first call for a version of its sources compiles it."""
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


def _views() -> str:
    found = []
    for name, (kind, columns) in VIEWS.items():
        listed = ", ".join(f"`{c}`" if c == "dateTime" else f"{name}.`{c}`" for c in columns)
        found.append(f"{name}: SELECT {listed} FROM events WHERE event_type = {kind}")
    return "\n".join(found)


def run_flink(
    mode: str, requests: Mapping[str, Request], side: Path, folder: Path, *, backend: str = "rocksdb", limit_s: float
) -> dict[str, Outcome]:
    """Run statements one after another in one process. A first run of a name warms up the next one.

    Parameters
    ----------
    mode : "batch" or "streaming"
    requests : mapping of str to Request
        By a name without blanks.
    side : Path
        The side input: a file of lines with a key, a comma and a text.
    folder : Path
        For checkpoints and what the program says.
    backend : str, default "rocksdb"
        State backend of streaming, or ``hashmap``.
    limit_s : float
        All requests that have not ended by then have failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    views = folder / "views.txt"
    views.write_text(_views())
    given = [mode, backend, str(_THREADS), str(folder / "checkpoints"), str(views)]
    for name, request in requests.items():
        text = folder / f"{request.query.name}.sql"
        text.write_text(request.query.flink)
        events = ",".join(map(str, request.events))
        given += [name, str(text), events, str(side), str(request.output or "-")]
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    command = [
        *(java_executable(), f"-Xmx{_MEMORY}", *opened, "-cp", _joined([_classes(), *flink_class_path()])),
        *("NexmarkPeer", *given),
    ]
    with (folder / f"{mode}.log").open("w") as log:
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=limit_s, check=False)
            said = done.stdout
        except subprocess.TimeoutExpired as late:
            said = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
    found = {name: Outcome(0, 0, "it did not end in time") for name in requests}
    for line in said.splitlines():
        kind, _, rest = line.partition(" ")
        name, _, figures = rest.partition(" ")
        if kind == "RESULT":
            found[name] = Outcome(*map(float, figures.split()))
        elif kind == "FAILED":
            found[name] = Outcome(0, 0, figures)
    return found
