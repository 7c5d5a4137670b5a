"""Processor time of a Spark driver: its JVM with the Python processes that it has started, and this process."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["jvm_of", "processor_seconds"]

_TICK = 1 / os.sysconf("SC_CLK_TCK")


def jvm_of(spark: SparkSession) -> int:
    """The process id of the driver's JVM."""
    return int(cast("Any", spark)._jvm.java.lang.ProcessHandle.current().pid())


def processor_seconds(root: int) -> float:
    """Processor time so far of this process and of ``root`` with all below it, those that have ended too.

    Linux only. What a process took that ended and was not waited for by its parent is lost.
    """
    children: dict[int, list[int]] = defaultdict(list)
    taken: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # it has just ended
            continue
        # The second field is a name in brackets, which may have blanks.
        fields = text.rpartition(")")[2].split()
        process = int(stat.parent.name)
        children[int(fields[1])].append(process)
        taken[process] = sum(map(int, fields[11:15])) * _TICK
    total, left = time.process_time(), [root]
    while left:
        process = left.pop()
        total += taken.get(process, 0.0)
        left += children[process]
    return total
