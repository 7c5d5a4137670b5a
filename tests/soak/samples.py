"""What a driver and its processes need, from /proc, and what is on disk."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20

Sample = dict[str, float]


def members(driver: int) -> dict[int, str]:
    """A driver and all processes below it, by id, each with its kind: driver, jvm or worker."""
    below: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = _stat(entry)
                if fields[0] != "Z":
                    below[int(fields[1])].append(int(entry.name))
    found, waiting = {driver: "driver"}, list(below[driver])
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            program = Path(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()).name
            if program.startswith(("java", "python")):
                found[pid] = "jvm" if program.startswith("java") else "worker"
        waiting += below[pid]
    return found


def birth(pid: int) -> int | None:
    """When a process was started, in ticks; None if it does not run. A later one with its id has another."""
    with contextlib.suppress(OSError, IndexError):
        fields = _stat(Path(f"/proc/{pid}"))
        return int(fields[19]) if fields[0] != "Z" else None
    return None


def _stat(process: Path) -> list[str]:
    return (process / "stat").read_text().rpartition(")")[2].split()


def of_driver(pid: int) -> Sample:
    """Memory in MiB, threads, file descriptors and seconds of processor of a driver, its JVM and its workers.

    Memory of the driver and the JVM is resident. Workers are forked and share pages, so theirs is proportional (PSS).
    """
    found: Sample = defaultdict(float)
    for member, kind in members(pid).items():
        with contextlib.suppress(OSError, ValueError, IndexError):
            root = Path(f"/proc/{member}")
            fields = _stat(root)
            found["processor, s"] += (int(fields[11]) + int(fields[12])) / _TICKS
            if kind == "worker":
                found["workers"] += 1
                resident = int((root / "statm").read_text().split()[1]) * _PAGE / MIB
                found["largest worker, MiB"] = max(found["largest worker, MiB"], resident)
                found["workers, MiB"] += _proportional(root) / MIB
                continue
            found[f"{kind}, MiB"] = int((root / "statm").read_text().split()[1]) * _PAGE / MIB
            found[f"{kind} threads"] = int(fields[17])
            found[f"{kind} descriptors"] = sum(1 for _ in (root / "fd").iterdir())
    return dict(found)


def _proportional(root: Path) -> int:
    for line in (root / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def on_disk(checkpoint: Path, target: Path) -> Sample:
    """Files and MiB of a checkpoint, its event log apart, and of a table, its log apart."""
    parts = {
        "event log": checkpoint / "backlog" / "events",
        "checkpoint": checkpoint,
        "table log": target / "_delta_log",
        "table": target,
    }
    found: Sample = {}
    for name, root in parts.items():
        others = {path for other, path in parts.items() if other != name and root in path.parents}
        count, size = _within(root, others)
        found[f"{name} files"], found[f"{name}, MiB"] = count, size / MIB
    return found


def _within(root: Path, without: set[Path]) -> tuple[int, int]:
    count = size = 0
    waiting = [root]
    while waiting:
        with contextlib.suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if Path(entry.path) not in without:
                        waiting.append(Path(entry.path))
                    continue
                with contextlib.suppress(FileNotFoundError):
                    size += entry.stat(follow_symlinks=False).st_size
                    count += 1
    return count, size
