"""Processor time and memory of trees of processes, such as a Spark driver: its JVM and its Python processes."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Usage", "jvm_of", "memory_of", "spent", "tree", "usage"]

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


class Usage(NamedTuple):
    """Processor seconds of a process so far: its own, and those of ended children that it waited for."""

    parent: int
    own: float
    waited: float


def jvm_of(spark: SparkSession) -> int:
    """The process id of the driver's JVM."""
    return int(cast("Any", spark)._jvm.java.lang.ProcessHandle.current().pid())


def tree(root: int) -> dict[int, Usage]:
    """The usage of ``root`` and of all processes below it, by process id. Linux only."""
    children: dict[int, list[int]] = defaultdict(list)
    found: dict[int, Usage] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # the process has just ended
            continue
        # The second field is a name in brackets, which may contain blanks.
        fields = text.rpartition(")")[2].split()
        process, parent = int(stat.parent.name), int(fields[1])
        children[parent].append(process)
        own, waited = (sum(map(int, fields[at : at + 2])) * _TICK for at in (11, 13))
        found[process] = Usage(parent, own, waited)
    below: dict[int, Usage] = {}
    left = [root]
    while left:
        process = left.pop()
        if process in found:
            below[process] = found[process]
        left += children[process]
    return below


def usage(root: int) -> dict[int, Usage]:
    """The usage of this process, of ``root`` and of all processes below it, by process id. Linux only."""
    return {os.getpid(): Usage(0, time.process_time(), 0.0), **tree(root)}


def memory_of(processes: Iterable[int]) -> int:
    """Bytes of memory of some processes. A page that several share counts once: each has its part (PSS). Linux only."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):  # it has just ended
            found = _PSS.search(Path(f"/proc/{process}/smaps_rollup").read_text())
            total += int(found[1]) * 1024 if found else 0
    return total


def spent(before: Mapping[int, Usage], after: Mapping[int, Usage]) -> float:
    """Processor seconds between two samples.

    The time of an ended process is known if its parent waited for it. Then it includes its usage before the first
    sample. Other ended processes count as 0.
    """
    gone: dict[int, float] = defaultdict(float)
    for process, used in before.items():
        heir = process
        while heir in before and heir not in after:
            heir = before[heir].parent
        if heir != process:
            gone[heir] += used.own + used.waited
    total = 0.0
    for process, used in after.items():
        old = before.get(process, Usage(0, 0.0, 0.0))
        total += max(0.0, used.own - old.own) + max(0.0, used.waited - old.waited - gone[process])
    return total
