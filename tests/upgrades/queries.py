"""The queries whose checkpoints are kept. Never change one: it is what the version ran that made its checkpoint.

A query that is worth keeping in another form gets a new name, and a checkpoint in the next version's folder.

Their sources read files. A checkpoint names files by their full paths, so all is at one fixed place, for one process at
a time.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import shutil
import tarfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import backlog_spark as bs

__all__ = ["FOLDER", "PLACE", "QUERIES", "Kept", "Row", "locked", "pack", "unpack", "versions"]

PLACE = Path("/tmp/backlog-spark-upgrades")
FOLDER = Path(__file__).parent / "checkpoints"
"""Below it: a folder for each version of backlog_spark, in it an archive for each query."""

_SETTINGS = {"spark.backlog.keyGroups": "4", "spark.sql.shuffle.partitions": "2"}
_EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_KEYS = 5
_WINDOW_S = 10
_DELAY_S = 2
_LIMIT_S = 120


class Row(NamedTuple):
    """A row of an input: of second ``seq``."""

    k: int
    v: int
    seq: int


Rows = list[Row]
Expected = Counter[tuple[Any, ...]]


class Windows(bs.KeyedProcessFunction):
    """Sums by ten seconds of event time, once the watermark has passed."""

    output = "k long, window long, n long, total long"
    sums = bs.MapState("long", "struct<n: long, total: long>")

    def process_element(self, row: Any, ctx: Any) -> None:
        window = ctx.timestamp() // (_WINDOW_S * 1_000)
        before = self.sums.get(window) or {"n": 0, "total": 0}
        self.sums.put(window, {"n": before["n"] + 1, "total": before["total"] + row.v})
        ctx.timer_service().register_event_time_timer((window + 1) * _WINDOW_S * 1_000 - 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        window = timestamp // (_WINDOW_S * 1_000)
        found = self.sums.get(window)
        self.sums.remove(window)
        yield ctx.get_current_key(), window, found["n"], found["total"]


_TOP = """
    SELECT k, v, seq, n FROM (
      SELECT k, v, seq, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, seq) AS n FROM l
    ) WHERE n <= 2"""


def _join(_: Any, left: Any, right: Any) -> Any:
    joined = left.map("k", "seq").temporal_join(right.map("k", "v AS w", "seq AS at"), on="k", order="at")
    return joined.map("k", "seq", "w")


def _rows(rows: Rows) -> Expected:
    return Counter((row.k, row.v, row.seq) for row in rows)


def _sums(rows: Rows) -> Expected:
    of: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        of[row.k].append(row.v)
    return Counter((k, sum(values), len(values)) for k, values in of.items())


def _windows(rows: Rows) -> Expected:
    """Those that end up to the watermark."""
    first, until = int(_EPOCH.timestamp()) // _WINDOW_S, max(row.seq for row in rows) - _DELAY_S
    of: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in rows:
        if (row.seq // _WINDOW_S + 1) * _WINDOW_S <= until:
            of[row.k, first + row.seq // _WINDOW_S].append(row.v)
    return Counter((k, window, len(v), sum(v)) for (k, window), v in of.items())


def _joined(lefts: Rows, rights: Rows) -> Expected:
    """Each left row with the newest right row of its key that was given before it."""
    found: Expected = Counter()
    for row in lefts:
        newest = max((r for r in rights if r.k == row.k and r.seq <= row.seq), key=lambda r: r.seq, default=None)
        found[row.k, row.seq, newest.v if newest else None] += 1
    return found


def _top(rows: Rows) -> Expected:
    of: dict[int, Rows] = defaultdict(list)
    for row in rows:
        of[row.k].append(row)
    return Counter(
        (k, row.v, row.seq, place)
        for k, found in of.items()
        for place, row in enumerate(sorted(found, key=lambda row: (-row.v, row.seq))[:2], 1)
    )


@dataclass(frozen=True)
class Kept:
    """A query.

    Parameters
    ----------
    build : callable
        Receives the session and the inputs; returns the output.
    columns : str
        Those of the output.
    expected : callable
        Receives the rows of each input.
    keys : sequence of str
        By which the output is upserted; empty: it is appended.
    inputs : int
    history : int
        Rows of an input before the first start.
    is_in_backlog : bool
        Whether the checkpoint is of a backlog that is not over.
    forgets_commit : bool
        Whether the newest batch is in the target, and Spark's log does not say that it is committed.
    during : str
        The interval during backlog.
    """

    build: Callable[..., Any]
    columns: str
    expected: Callable[..., Expected]
    keys: Sequence[str] = ()
    inputs: int = 1
    history: int = 60
    is_in_backlog: bool = False
    forgets_commit: bool = False
    during: str = field(default="0 s")

    def start(self, spark: Any, name: str) -> Any:
        """Start it, or continue it."""
        sorts = {"spark.backlog.sortedBatch.enabled": str(self.is_in_backlog).lower()}
        for setting, value in {**_SETTINGS, **sorts}.items():
            spark.conf.set(setting, value)
        options = {
            "schema": "k LONG, v LONG, seq LONG, ts TIMESTAMP", "fileFormat": "json", "phases": "files",
            "discovery": "continuous", "discoveryInterval": "0 s", "maxRowsPerBatch": 30, "allowEmpty": "true",
        }  # fmt: skip
        inputs = [
            bs.source("hybrid", name=f"in{n}", path=str(_folder(name, n)), options=options) for n in range(self.inputs)
        ]
        target = str(PLACE / name / "target")
        sink = bs.DeltaUpsert(target, keys=list(self.keys)) if self.keys else bs.DeltaAppend(target)
        writer = self.build(spark, *inputs).write(name).to(sink)
        writer = writer.option("checkpointLocation", str(PLACE / name / "checkpoint"))
        return writer.trigger(processing_time="100 ms", interval_during_backlog=self.during).start(spark)

    def feed(self, name: str, count: int, spark: Any = None, query: Any = None) -> None:
        """Give each input a file with so many rows, the right one first. What is given to one is then committed."""
        for number in reversed(range(self.inputs)):
            folder = _folder(name, number)
            folder.mkdir(parents=True, exist_ok=True)
            first = 1 + max((row.seq for n in range(self.inputs) for row in self.rows(name, n)), default=-1)
            made = [Row(n % _KEYS, n * 7919 % 1_000, n) for n in range(first, first + count)]
            lines = [
                json.dumps({**row._asdict(), "ts": (_EPOCH + dt.timedelta(seconds=row.seq)).isoformat()})
                for row in made
            ]
            file = folder / f".{first:06d}.json"
            file.write_text("".join(f"{line}\n" for line in lines))
            # Whole seconds: an archive keeps no others exactly, and a changed time is a changed file.
            os.utime(file, (1_767_225_600 + first, 1_767_225_600 + first))
            file.rename(folder / file.name[1:])
            if query is not None:
                self.settle(spark, name, query)

    def rows(self, name: str, number: int = 0) -> Rows:
        """The rows of an input so far."""
        files = sorted(_folder(name, number).glob("*.json"))
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [Row(row["k"], row["v"], row["seq"]) for row in found]

    def settle(self, spark: Any, name: str, query: Any) -> None:
        """Wait until the target has what all rows give.

        Raises
        ------
        AssertionError
            It does not come to that.
        """
        expected = self.expected(*(self.rows(name, n) for n in range(self.inputs)))
        limit = time.monotonic() + _LIMIT_S
        while True:
            query.processAllAvailable()
            found = self.found(spark, name)
            if found == expected:
                return
            if time.monotonic() > limit:
                raise AssertionError(f"{name}: missing {expected - found}, too much {found - expected}")
            time.sleep(0.1)

    def found(self, spark: Any, name: str) -> Expected:
        """The rows of the target."""
        frame = spark.read.format("delta").load(str(PLACE / name / "target"))
        return Counter(tuple(row) for row in frame.select(*self.columns.split()).collect())


QUERIES = {
    "files": Kept(
        lambda _, left: left.map("k", "v", "seq"), "k v seq", _rows,
        history=240, is_in_backlog=True, forgets_commit=True, during="1 second",
    ),
    "sorted_sum": Kept(
        lambda _, left: left.key_by("k").aggregate("sum(v) AS total, count(*) AS n"), "k total n", _sums,
        keys=["k"], history=240, is_in_backlog=True, during="1 second",
    ),
    "live_sum": Kept(
        lambda _, left: left.key_by("k").aggregate("sum(v) AS total, count(*) AS n"), "k total n", _sums,
        keys=["k"], forgets_commit=True,
    ),
    "timers": Kept(
        lambda _, left: left.with_watermark("ts", f"{_DELAY_S} seconds").key_by("k", order="seq").process(Windows()),
        "k window n total", _windows,
    ),
    "temporal_join": Kept(_join, "k seq w", _joined, inputs=2),
    "top_n": Kept(lambda spark, left: bs.sql(spark, _TOP, l=left), "k v seq n", _top, keys=["k", "n"]),
}  # fmt: skip


def _folder(name: str, number: int) -> Path:
    return PLACE / name / f"in{number}"


@contextmanager
def locked() -> Iterator[None]:
    """No other process of this machine uses `PLACE` meanwhile."""
    with PLACE.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        try:
            yield
        finally:
            shutil.rmtree(PLACE, ignore_errors=True)


def pack(name: str, folder: Path) -> Path:
    """Keep a query's inputs, checkpoint and target. Returns the archive."""
    archive = folder / f"{name}.tar.xz"
    for path in (PLACE / name).rglob(".*.crc"):  # Hadoop does without them
        path.unlink()
    with tarfile.open(archive, "w:xz", preset=9) as out:
        out.add(PLACE / name, name)
    return archive


def unpack(archive: Path) -> str:
    """Put a kept query where it was. Returns its name."""
    with tarfile.open(archive) as kept:
        kept.extractall(PLACE, filter="data")
    return archive.name.removesuffix(".tar.xz")


def versions() -> list[str]:
    """Those that have kept checkpoints."""
    return sorted(path.name for path in FOLDER.iterdir())
