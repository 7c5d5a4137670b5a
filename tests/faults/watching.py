"""What a test sees of a running query in the files of its checkpoint and its target.

A test looks a thousand times a second beside the query, on the same two cores: this must cost little.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

__all__ = ["newest", "transactions", "versions"]


def newest(log: Path) -> int:
    """The newest batch in a log of the checkpoint, or -1."""
    return max((int(name) for name in _names(log) if name.isdigit()), default=-1)


def versions(table: Path) -> list[Path]:
    """The commits of a Delta table, in order."""
    log = table / "_delta_log"
    return [log / name for name in sorted(_names(log)) if name.endswith(".json")]


def transactions(table: Path) -> list[int]:
    """The batches in a Delta table's commits, in order."""
    return [batch for path in versions(table) for batch in _batches(path)]


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []


@functools.cache  # a commit never changes
def _batches(path: Path) -> tuple[int, ...]:
    actions = map(json.loads, path.read_text().splitlines())
    return tuple(action["txn"]["version"] for action in actions if "txn" in action)
