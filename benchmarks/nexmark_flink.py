"""The statements of Nexmark on Flink SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.flink_peer import FLINK_THREADS, run_program
from benchmarks.nexmark_events import VIEWS
from benchmarks.nexmark_jobs import Query

__all__ = ["Outcome", "Request", "run_flink"]


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
    given = [mode, backend, str(FLINK_THREADS), str(folder / "checkpoints"), str(views)]
    for name, request in requests.items():
        text = folder / f"{request.query.name}.sql"
        text.write_text(request.query.flink)
        events = ",".join(map(str, request.events))
        given += [name, str(text), events, str(side), str(request.output or "-")]
    found = {name: Outcome(0, 0, "it did not end in time") for name in requests}
    for kind, name, figures in run_program("NexmarkPeer", given, folder / f"{mode}.log", limit_s=limit_s):
        if kind == "RESULT":
            found[name] = Outcome(*map(float, figures.split()))
        elif kind == "FAILED":
            found[name] = Outcome(0, 0, figures)
    return found
