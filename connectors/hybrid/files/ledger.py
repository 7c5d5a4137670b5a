"""The durable list of the files that a phase has found, as small files that never change.

Three kinds of files: the *lists* of files in reading order, one for each listing with new files; *runs*, sorted sets of
all files seen so far; and *heads*, which name the lists and runs that count. Each is named by the digest of its
content, so a position that names a head fixes every file. Two drivers that write at the same time write different
names, and Spark's log decides which head counts.

Runs are merged like the levels of a log-structured tree: a run takes the older ones that are not larger. So there are
few, and an entry is written again a few times, however many listings there are.
"""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backlog_spark.common.stored_values import check_version
from backlog_spark.common.stores import Store
from backlog_spark.errors import BacklogError

from .found import FOUND, SEEN, merged
from .manifest import Manifest, digest_of, read_named

__all__ = ["Head", "Ledger", "Window"]

_NAME = re.compile(r"(list|run|head)-(\d{10})-([0-9a-f]{40})\.(parquet|json)")
_VERSION = 1

# More runs than this are merged. Each is compared with every listing.
_RUNS = 12
# Spark keeps the offsets of so many batches (spark.sql.streaming.minBatchesToRetain), and each may have another head.
_KEPT = 100


@dataclass(frozen=True)
class Part:
    """A list or a run: its file, and its number of entries."""

    name: str
    count: int


@dataclass(frozen=True)
class Head:
    """Which files count.

    Parameters
    ----------
    seq : int
        Grows with each head.
    base : int
        Number of the first file of the lists.
    files : int
        Files found so far, that is the number after the last one.
    last : str
        The greatest path.
    lists : tuple of Part
        Of the files that are not read yet, or not cleaned, oldest first.
    runs : tuple of Part
        Of all files, newest first.
    """

    seq: int = 0
    base: int = 0
    files: int = 0
    last: str = ""
    lists: tuple[Part, ...] = ()
    runs: tuple[Part, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Head:
        """The inverse of `to_json`."""
        check_version("The list of files of hybrid", data.get("version"), _VERSION)
        parts = {name: tuple(Part(**part) for part in data[name]) for name in ("lists", "runs")}
        return cls(**{**{k: v for k, v in data.items() if k != "version"}, **parts})


@dataclass(frozen=True)
class Window:
    """The files of a head's lists, in reading order.

    Parameters
    ----------
    base : int
        Number of the first one.
    table : pyarrow.Table
    """

    base: int
    table: pa.Table
    files: Manifest = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", Manifest(self.table))

    def unread(self, file: int) -> tuple[int, int, float]:
        """Number and bytes of the files from a number on, and when the oldest was changed.

        In seconds since 1970; infinity if no time is known.
        """
        rest = self.table.slice(file - self.base)
        modified = rest.column("modified")
        oldest = pc.min(modified.filter(pc.greater(modified, 0))).as_py()
        return len(rest), pc.sum(rest.column("size")).as_py() or 0, math.inf if oldest is None else oldest


class Ledger:
    """The files of one phase of one query.

    Parameters
    ----------
    store : Store
    directory : str
        It has no other files of these names.
    """

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory.rstrip("/")
        self._heads: dict[str, Head] = {}
        self._runs: dict[str, pa.Table] = {}
        self._lists: dict[str, pa.Table] = {}
        self._window: tuple[str, Window] | None = None

    def begin(self, listing: pa.Table) -> str:
        """Write the first listing. Returns the name of the head."""
        return self._add(Head(), listing, 0)

    def add(self, name: str, new: pa.Table, needed: int) -> str:
        """Add a listing's new files. Returns the name of the head that has them.

        Parameters
        ----------
        name : str
            The head before.
        new : pyarrow.Table
            Not empty.
        needed : int
            Files before this number are read, and need no more list.
        """
        return self._add(self.head(name), new, needed)

    def _add(self, head: Head, new: pa.Table, needed: int) -> str:
        seq = head.seq + 1
        base, lists = head.base, list(head.lists)
        while lists and base + lists[0].count <= needed:
            base += lists.pop(0).count
        runs = list(head.runs)
        if len(new):
            part = Part(self._write("list", seq, _parquet(new)), len(new))
            self._runs[part.name], self._lists[part.name] = new.select(SEEN.names), new
            lists.append(part)
            runs.insert(0, part)
        last = max(head.last, pc.max(new.column("path")).as_py() or "")
        made = Head(seq, base, head.files + len(new), last, tuple(lists), tuple(self._compacted(seq, runs)))
        self._runs = {run.name: self._runs[run.name] for run in made.runs if run.name in self._runs}
        self._lists = {part.name: self._lists[part.name] for part in made.lists if part.name in self._lists}
        text = json.dumps(made.to_json(), separators=(",", ":"))
        name = self._write("head", seq, text.encode())
        self._heads = {name: made}
        return name

    def _compacted(self, seq: int, runs: list[Part]) -> list[Part]:
        if len(runs) <= _RUNS:
            return runs
        total, count = runs[0].count + runs[1].count, 2
        while count < len(runs) and runs[count].count <= total:
            total += runs[count].count
            count += 1
        table = merged([self._run(run) for run in runs[:count]])
        part = Part(self._write("run", seq, _parquet(table)), len(table))
        self._runs[part.name] = table
        return [part, *runs[count:]]

    @staticmethod
    def seq_of(name: str) -> int:
        """The number of a head."""
        return int(name.split("-")[1])

    def head(self, name: str) -> Head:
        if name not in self._heads:
            self._heads[name] = Head.from_json(json.loads(self._read(name)))
        return self._heads[name]

    def seen(self, name: str) -> list[pa.Table]:
        """All files that were found, newest first, with the columns of `SEEN`."""
        return [self._run(run) for run in self.head(name).runs]

    def window(self, name: str) -> Window:
        """The files of the head's lists."""
        if self._window is None or self._window[0] != name:
            head = self.head(name)
            for part in head.lists:
                if part.name not in self._lists:
                    self._lists[part.name] = pq.read_table(io.BytesIO(self._read(part.name)), schema=FOUND)
            tables = [self._lists[part.name] for part in head.lists] or [FOUND.empty_table()]
            # A single list, such as the large first one, is not copied.
            whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
            self._window = name, Window(head.base, whole)
        return self._window[1]

    def _run(self, run: Part) -> pa.Table:
        if run.name not in self._runs:
            self._runs[run.name] = pq.read_table(io.BytesIO(self._read(run.name)), columns=SEEN.names)
        return self._runs[run.name]

    def sweep(self, name: str) -> None:
        """Delete the files that no head of the last batches names. Doing it again changes nothing."""
        least = self.head(name).seq - _KEPT
        found = {}
        for file in self._store.children(self._directory):
            base = file.path.rpartition("/")[2]
            if match := _NAME.fullmatch(base):
                found[base] = match[1], int(match[2])
        kept = {name}
        for base, (kind, seq) in found.items():
            if seq > least or base == name:
                kept.add(base)
                if kind == "head":
                    head = Head.from_json(json.loads(self._read(base)))
                    kept |= {part.name for part in (*head.lists, *head.runs)}
        self._store.each(lambda base: self._store.delete(self._path(base)), sorted(found.keys() - kept))

    # -- files --------------------------------------------------------------------------------------------------

    def _write(self, kind: str, seq: int, data: bytes) -> str:
        name = f"{kind}-{seq:010d}-{digest_of(data)}.{'json' if kind == 'head' else 'parquet'}"
        self._store.write(self._path(name), data)
        return name

    def _read(self, name: str) -> bytes:
        match = _NAME.fullmatch(name)
        if not match:
            raise BacklogError(
                f"The checkpoint names the list of files {name[:200]!r}, which is no name of one.",
                "Restore the checkpoint from a backup, or start with a new one.",
            )
        return read_named(self._store, self._path(name), match[3])

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    # Sorted paths share long prefixes.
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, column_encoding={"path": "DELTA_BYTE_ARRAY"})
    return sink.getvalue()
