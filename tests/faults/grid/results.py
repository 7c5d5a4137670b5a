"""What the cells have given, in ``docs/proof/faults.json``, and the page that is made of it.

A run of some cells replaces theirs and leaves the others.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from servers.kafka import KafkaServer
from servers.mysql import MySQLServer

from .cells import FAULTS, PHASES, SOURCES, Cell, excluded
from .operators import OPERATORS

__all__ = ["FAILED", "Results", "page"]

FAILED = "failed"
_NOT_RUN = "not run yet"
_NAMES = {"mysql_cdc": "mysql_cdc", "hybrid": "hybrid", "spark": "Spark's own Kafka reader"}

_HEAD = """# Faults

<!-- Written by `make faults`. Do not edit. -->

Each cell of these tables is a query that meets one fault in one phase. Afterwards the test compares:

* all rows of the target, and how often each occurs, with what Python makes of the test's own changes;
* the state: each key gets one more change, and the result must be right;
* what is left: no process of a dead driver, and no claim, attempt, state or temporary file in the checkpoint.

| outcome | meaning |
|---|---|
| exact | the query went on by itself, or after the next start if its driver was killed |
| clear stop, exact after restart | the query ended with an error that names the next step. The next start continued |
| not run yet | no run of this version is recorded |

A query meets the fault in all phases of a row, one after the other. *Finishing* is a query of its own, whose sources \
have an end. A cell has the number of its runs and the seconds of the last one: the query's, by its phases.
"""

_FAULTS = """
## The faults

| fault | what the test does |
|---|---|
| driver SIGKILL | kills the driver, its JVM and all workers at the point |
| worker SIGKILL | kills a Python worker while it runs a task of the phase's batch |
| MySQL restart, broker restart | stops the server while a batch runs, and starts it again |
| MySQL crash | kills `mysqld` while a batch runs, and starts it again: it recovers |
| cut packet | a proxy lets half of the server's next packet through, and cuts all connections |
| disk full | fills the disk of the checkpoint (a real one, of 64 MB) until the query has ended |
| disk full once | the same until the query restarts itself |
| target fails once | the write to the target raises an input/output error, before the commit or after it |
| clock back | sets the clock of the driver's Python processes back by an hour |
| SIGSTOP | stops the driver. A second one takes over after ten seconds. Then the first one wakes up |

## The phases

| phase | where the fault strikes |
|---|---|
| backlog | in the first batch of the snapshot, of the files, or of the topic: before the target gets it |
| switch | in the batch that ends the backlog: when the target has it, and Spark has not committed it |
| hand-over | between the two runs of a keyed query: one operator's state is moved, and the ledger does not say it |
| first live batch | in the first batch after the switch, before its commit |
| live | in a later batch, when the target has it, and Spark has not committed it |
| back into backlog | in a batch of a later backlog, at the same place |
| finishing | when all sources have ended, before the query has |

Faults of servers, networks and workers strike when the phase's batch begins.
"""


class Results:
    """The outcomes. ``directory``: of the page and its figures; None: nothing is kept."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        path = None if directory is None else directory / "faults.json"
        known = json.loads(path.read_text()) if path is not None and path.exists() else {"cells": {}}
        self._cells: dict[str, dict[str, Any]] = known["cells"]

    def add(self, cell: Cell, outcome: str, seconds: float) -> None:
        """The outcome of one run."""
        before = self._cells.get("|".join(cell), {}).get("runs", 0)
        self._cells["|".join(cell)] = {"outcome": outcome, "runs": before + 1, "seconds": round(seconds)}
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            told = {"head": _head(), "cells": dict(sorted(self._cells.items()))}
            (self._directory / "faults.json").write_text(json.dumps(told, indent=1) + "\n")
            (self._directory / "faults.md").write_text(page(told))


def _head() -> dict[str, str]:
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    arguments = os.environ.get("FAULTS_ARGS", "")
    command = f'make faults ARGS="{arguments}"' if arguments else "make faults"
    return {
        "machine": f"{os.cpu_count()} cores, {gigabytes:.0f} GB of memory",
        "versions": f"Python {platform.python_version()}, Java {java.partition(chr(34))[2].partition(chr(34))[0]}, "
        f"Spark {version('pyspark')}, Delta {version('delta-spark')}, delta-rs {version('deltalake')}, "
        f"MySQL {MySQLServer.version}, Kafka {KafkaServer.version}",
        "last run": f"{dt.date.today().isoformat()}, `{command}`",
    }


def page(told: Mapping[str, Any]) -> str:
    """The page."""
    every = [Cell(s, o, f, p) for s in SOURCES for f in FAULTS for o in OPERATORS for p in PHASES]
    cells, reasons = told["cells"], Counter(filter(None, map(excluded, every)))
    counts = Counter(cells.get("|".join(c), {}).get("outcome", _NOT_RUN) for c in every if not excluded(c))
    lines = [_HEAD, "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in told["head"].items())]
    lines += [f"| cells | {', '.join(f'{n} {outcome}' for outcome, n in counts.most_common())} |", _FAULTS]
    for source in SOURCES:
        phases = [p for p in PHASES if any(not excluded(Cell(source, o, f, p)) for o in OPERATORS for f in FAULTS)]
        lines += [f"## {_NAMES[source]}", "", f"| fault | operator | {' | '.join(phases)} |"]
        lines.append("|---" * (len(phases) + 2) + "|")
        for fault in FAULTS:
            for operator in OPERATORS:
                if source in FAULTS[fault].of:
                    found = " | ".join(_shown(cells, Cell(source, operator, fault, phase)) for phase in phases)
                    lines.append(f"| {fault} | {operator} | {found} |")
        lines.append("")
    lines += ["## Cells that do not exist", "", "They have a dash, or their row is missing.", "", "| why | cells |"]
    lines.append("|---|---|")
    lines += [f"| {why} | {number} |" for why, number in reasons.most_common()]
    lines += [
        "", "Not in the grid: executors of a cluster (`make test-cluster`), S3, two drivers that start at the same "
        "moment, other targets than Delta, signals, repair and changes of tables. They have tests of their own: "
        "[Guarantees](../guarantees.md#how-it-is-tested). The JVM's own clock is not set back.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _shown(cells: Mapping[str, Any], cell: Cell) -> str:
    if excluded(cell):
        return "–"
    found = cells.get("|".join(cell))
    return _NOT_RUN if found is None else f"{found['outcome']} ({found['runs']}×, {found['seconds']} s)"
