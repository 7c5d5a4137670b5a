"""Refuses a key whose rows do not fit into a worker's memory, by its name, before the system kills the worker."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from backlog_spark.errors import BacklogError

__all__ = ["COPIES", "check_key_fits", "check_largest_key", "free_memory", "naming_largest_key", "too_large"]

COPIES: Final = 3
"""How often the rows of a key are in memory at once: as they came, together, and in the order of the function."""

_UNCHECKED_BYTES: Final = 64 << 20
_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """How many bytes this process can still take: the least of what the machine, its container (cgroup v2) and the
    limit that Spark sets by ``spark.executor.pyspark.memory`` leave. None where the system does not tell (not Linux).
    """
    pa.default_memory_pool().release_unused()
    found = []
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        found.append(int(fields["MemAvailable"].split()[0]) << 10)
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            # Of the address space, much is reserved and still free. What does not fit ends in a MemoryError.
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            found.append(limit - pages * resource.getpagesize())
        most = (_CGROUP / "memory.max").read_text().strip()
        if most != "max":
            held = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
            found.append(int(most) - int(held["anon"]))
    except (OSError, KeyError, ValueError):
        pass
    return max(0, min(found)) if found else None


def check_key_fits(what: str, key: pa.RecordBatch, rows: int, nbytes: int, copies: int = COPIES) -> None:
    """Refuse a key that does not fit.

    Parameters
    ----------
    what : str
        The operator.
    key : pyarrow.RecordBatch
        One row with the key columns only.
    rows, nbytes : int
        The rows of the key, and their size in Arrow.
    copies : int
        How many more times they will be in memory at once.

    Raises
    ------
    BacklogError
        With the key, its size and what to do.
    """
    if nbytes * copies <= _UNCHECKED_BYTES:
        return
    free = free_memory()
    if free is not None and nbytes * copies > free:
        raise too_large(what, key, rows, nbytes, f"its worker has {_megabytes(free)} MB left")


def check_largest_key(what: str, keys: Sequence[str], batches: Sequence[pa.RecordBatch]) -> None:
    """`check_key_fits` for the key with most rows in these batches, which are in memory once. The hash is first."""
    nbytes = sum(batch.nbytes for batch in batches)
    if nbytes * (COPIES - 1) <= _UNCHECKED_BYTES:
        return
    free = free_memory()
    if free is None or nbytes * (COPIES - 1) <= free:
        return
    key, rows, share = _largest(keys, batches)
    check_key_fits(what, key, rows, int(nbytes * share), COPIES - 1)


@contextmanager
def naming_largest_key(what: str, keys: Sequence[str], batches: Sequence[pa.RecordBatch]) -> Iterator[None]:
    """If memory runs out meanwhile, the error names the key with most rows in these batches. The hash is first."""
    try:
        yield
    except MemoryError as error:
        if not any(batch.num_rows for batch in batches):
            raise
        key, rows, share = _largest(keys, batches)
        nbytes = int(sum(batch.nbytes for batch in batches) * share)
        raise too_large(what, key, rows, nbytes) from error


def _largest(keys: Sequence[str], batches: Sequence[pa.RecordBatch]) -> tuple[pa.RecordBatch, int, float]:
    """The key with most rows, their number, and their share of all rows."""
    hashes = np.concatenate([batch.column(0).to_numpy() for batch in batches])
    found, counts = np.unique(hashes, return_counts=True)
    most = int(counts.argmax())
    for batch in batches:
        at = np.flatnonzero(batch.column(0).to_numpy() == found[most])
        if len(at):
            break
    # Rows that arrive may have other names than state, but have the keys at the same place.
    names = list(keys) if set(keys) <= set(batch.schema.names) else list(range(1, 1 + len(keys)))
    return batch.select(names).slice(int(at[0]), 1), int(counts[most]), float(counts[most] / len(hashes))


def too_large(
    what: str, key: pa.RecordBatch, rows: int, nbytes: int, why: str = "its worker ran out of memory"
) -> BacklogError:
    """The error for a key that does not fit. Parameters as of `check_key_fits`."""
    value = ", ".join(repr(column[0].as_py()) for column in key.columns)
    return BacklogError(
        f"{what}: the key {value:.200} has {rows:,} rows of {_megabytes(nbytes)} MB together, and {why}.",
        "A worker holds the rows of a key, and copies of them. Give it more memory (spark.executor.pyspark.memory or "
        "spark.executor.memoryOverhead), keep rows for a shorter time, or key by more columns.",
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f}"
