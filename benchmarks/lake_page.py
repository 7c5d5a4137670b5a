"""docs/proof/lake.md: the figures of runs of ``benchmarks.lake``.

A run may have some candidates or sizes only. ``docs/proof/lake.json`` has the newest figures of each candidate at each
number of rows.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.lake_candidates import CANDIDATES
from benchmarks.proof_page import spread_table

__all__ = ["COSTS", "Facts", "Row", "Run", "line", "text", "write"]

_FOLDER = Path(__file__).parents[1] / "docs" / "proof"

COSTS: Final[Mapping[str, str]] = {
    "snapshot_cpu_million": "snapshot CPU s per million rows",
    "changes_s": "seconds until equal",
    "changes_cpu_million": "changes CPU s per million",
    "memory": "peak memory",
}
"""Figures of which less is better, each with its name in the output."""


@dataclass
class Run:
    """The figures of one run.

    Parameters
    ----------
    snapshot_s, start_s : float
        Seconds from the start of the process to the commit of the copy, and to the begin of the tool's own work.
    snapshot_cpu, start_cpu : float
        Processor seconds by then.
    after_cpu : float
        Processor seconds after the copy, while it was compared.
    changing_s : float
        Seconds from the first commit of the application to the last.
    changes_s : float
        Seconds from the last commit of the application to the first version of the target that is equal.
    changes_cpu : float
        Processor seconds in both.
    snapshot_memory, memory : int
        The most memory up to the copy, and of the whole run, in bytes.
    servers_cpu, servers_changes_cpu : list of float
        Processor seconds of MySQL, and of the broker if there is one, in both phases.
    """

    snapshot_s: float
    start_s: float
    snapshot_cpu: float
    start_cpu: float
    snapshot_memory: int
    servers_cpu: list[float]
    after_cpu: float = 0.0
    changing_s: float = 0.0
    changes_s: float = 0.0
    changes_cpu: float = 0.0
    memory: int = 0
    servers_changes_cpu: list[float] = field(default_factory=list)


@dataclass
class Row:
    """The runs of one candidate at one number of rows, or why it has none."""

    name: str
    rows: int
    changes: int
    versions: str
    date: str
    runs: list[Run] = field(default_factory=list)
    why: str = ""

    @classmethod
    def begun(cls, name: str, rows: int, changes: int, versions: str) -> Row:
        """Without a run yet."""
        return cls(name, rows, changes, versions, dt.datetime.now(dt.UTC).date().isoformat())

    @classmethod
    def of(cls, found: dict[str, object]) -> Row:
        """From the form of `dataclasses.asdict`."""
        runs = found.pop("runs")
        assert isinstance(runs, list)
        return cls(**found, runs=[Run(**run) for run in runs])  # type: ignore[arg-type]

    def median(self, figure: str) -> float:
        """Of its runs: a field of `Run`, or one per million rows or changes."""
        if figure == "snapshot_cpu_million":
            return self.median("snapshot_cpu") / self.rows * 1e6
        if figure == "work_cpu_million":
            return statistics.median(run.snapshot_cpu - run.start_cpu for run in self.runs) / self.rows * 1e6
        if figure == "changes_cpu_million":
            return self.median("changes_cpu") / self.changes * 1e6
        return statistics.median(getattr(run, figure) for run in self.runs)

    def servers(self, figure: str) -> list[float]:
        """The medians of a figure of each server."""
        return [statistics.median(each) for each in zip(*(getattr(run, figure) for run in self.runs), strict=True)]


@dataclass(frozen=True)
class Facts:
    """The machine, and what all candidates share."""

    cores: int
    memory_gb: int
    mysql: str
    kernel: str

    @classmethod
    def of(cls, mysql: str) -> Facts:
        """Of this machine."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        uname = os.uname()
        return cls(len(os.sched_getaffinity(0)), round(memory / 2**30), mysql, f"{uname.sysname} {uname.machine}")


def line(row: Row) -> str:
    """One candidate in the output of the benchmark."""
    if not row.runs:
        return f"{row.name}, {row.rows:,} rows: {row.why}"
    each = row.median
    return (
        f"{row.name}: {row.rows:,} rows in {each('snapshot_s'):.1f} s ({row.rows / each('snapshot_s'):,.0f} rows/s, "
        f"{each('snapshot_cpu_million'):.2f} CPU s per million, of it {each('start_cpu'):.1f} s the start); "
        f"{row.changes:,} changes in {each('changing_s'):.1f} s, equal {each('changes_s'):.1f} s after the last ("
        f"{each('changes_cpu_million'):.1f} CPU s per million); peak {each('memory') / 2**20:,.0f} MiB"
    )


_ABOUT = """# MySQL into a lake

<!-- Written by `make bench CASE=lake WRITE=1`. Do not edit. -->

A table of orders in MySQL, 10 columns of mixed types, is copied into a new Delta table. Then an application makes a
tenth as many changes, in transactions of 1,000, as fast as the server takes them: half updates of scattered rows, a
quarter inserts, a quarter deletes. All candidates get the same table and the same changes, one after another.

| | |
|---|---|
| machine | {cores} cores, {memory} GB of memory, {kernel}; the server and the application share it |
| server | MySQL {mysql} with row-based binary log, buffer pool of 2 GB |
| command | `make bench CASE=lake ROWS={rows} WRITE=1` |

* *rows/s* and *seconds* are from the start of the candidate's process, with its JVM and imports, to the commit of the
  copy. *start* is the part until its own work begins.
* *CPU s per million* are processor seconds of all processes of the candidate, with their start, per million rows of
  the copy or per million changes. Those of the servers are apart. *work* is without the start.
* *equal after* is the time from the application's last commit to the commit of the target's first version that is
  equal to the table. *application* is how long the application needed for its changes, while the candidate followed.
* *memory* is the most that all its processes had at one time: the sum of their PSS, each second. Spark's drivers may
  take 4 GB of heap.

A target is equal if MySQL and DuckDB count as many rows, and their sums of a hash of each row are the same. A candidate
whose target is not equal has no figures.
"""


def _snapshot(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        each = row.median
        lines.append(
            [
                CANDIDATES[row.name].title,
                f"{row.rows / each('snapshot_s'):,.0f}",
                f"{each('snapshot_s'):.1f}",
                f"{each('start_s'):.1f}",
                f"**{each('snapshot_cpu_million'):.2f}**",
                f"{each('work_cpu_million'):.2f}",
                _mib(each("snapshot_memory")),
                _seconds(row.servers("servers_cpu")),
                row.date,
            ]
        )
    heads = ["", "rows/s", "seconds", "start", "CPU s per million", "work", "memory, MiB", "servers' CPU s", "date"]
    return spread_table(heads, lines)


def _changes(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        each = row.median
        lines.append(
            [
                CANDIDATES[row.name].title,
                f"{each('changes_s'):.1f}",
                f"{each('changing_s'):.1f}",
                f"**{each('changes_cpu_million'):.1f}**",
                _mib(each("memory")),
                _seconds(row.servers("servers_changes_cpu")),
            ]
        )
    return spread_table(
        ["", "equal after, s", "application, s", "CPU s per million", "memory, MiB", "servers' CPU s"], lines
    )


def _mib(number: float) -> str:
    return f"{number / 2**20:,.0f}"


def _seconds(found: Sequence[float]) -> str:
    names = ("MySQL", "Kafka")
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in zip(names, found, strict=False))


_LONGEST = 300


def _missing(rows: Iterable[Row]) -> list[str]:
    lines = []
    for row in rows:
        told = " ".join(row.why.split()).replace("|", "\\|").replace("<", "&lt;")
        told = told if len(told) <= _LONGEST else f"… {told[-_LONGEST:]}"
        lines.append([f"{row.rows:,}", CANDIDATES[row.name].title, told, row.date])
    return spread_table(["rows", "", "why", "date"], lines)


def text(rows: Sequence[Row], facts: Facts) -> str:
    """The page."""
    order = {name: number for number, name in enumerate(CANDIDATES)}
    rows = sorted((row for row in rows if row.name in order), key=lambda row: (-row.rows, order[row.name]))
    sizes = sorted({row.rows for row in rows})
    lines = _ABOUT.format(
        cores=facts.cores, memory=facts.memory_gb, kernel=facts.kernel, mysql=facts.mysql,
        rows=",".join(map(str, sizes)),
    ).splitlines()  # fmt: skip
    lines += ["", "## Candidates", ""]
    versions = {row.name: row.versions for row in reversed(rows)}
    for name in (name for name in order if name in versions):
        about = " ".join(CANDIDATES[name].about.split())
        lines.append(f"* **{CANDIDATES[name].title}** ({versions[name]}). {about}")
    for size in reversed(sizes):
        done = [row for row in rows if row.rows == size and row.runs]
        if done:
            runs = max(len(row.runs) for row in done)
            lines += ["", f"## {size:,} rows", ""]
            lines += [f"Medians of {runs} runs.", ""] if runs > 1 else []
            lines += [*_snapshot(done), "", f"Then {done[0].changes:,} changes:", "", *_changes(done)]
    if missing := [row for row in rows if not row.runs]:
        lines += ["", "## Without a figure", "", *_missing(missing)]
    return "\n".join(lines) + "\n"


def write(rows: Sequence[Row], facts: Facts, folder: Path = _FOLDER) -> None:
    """Add figures to those of earlier runs, and write the page."""
    stored = folder / "lake.json"
    kept = [Row.of(each) for each in json.loads(stored.read_text())] if stored.exists() else []
    newest = {(row.rows, row.name): row for row in (*kept, *rows)}
    together = [newest[key] for key in sorted(newest)]
    stored.write_text(json.dumps([asdict(row) for row in together], indent=1) + "\n")
    (folder / "lake.md").write_text(text(together, facts))
