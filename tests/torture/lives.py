"""A torture of whole queries: their program, its workers and the server are killed, again and again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backlog_spark import verify
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options

from .capture import EMPTIED, Row
from .compare import Differences, compare
from .job import LOG, STATE, start
from .oracle import Log
from .readers import SERVER_OPTIONS
from .storm import Alters, Storm
from .swaps import Swaps
from .tables import DATABASE, KINDS, PATTERN, READER, SIGNALS, TABLES, Shape, columns_of, family, plain
from .writers import Writers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark import BacklogQuery

# The columns that come and go; those that are there at first among them.
POOL = ("wy4", "ty5", "wy6", "ty7", "dy8", "by9")
_SPARK = {"w": "smallint", "t": "string", "d": "decimal(6,2)", "b": "binary"}
_STILL_S = 240
# Every statement ends a batch of each query, once for each table, and that takes seconds.
_ALTERS_A_LIFE = 2
# The first table is altered and the second not yet; the server is down.
_PASSING = ("has other columns than", "was altered", "cannot be reached", "Load the stream again")
_MOST_ENDED = 20
# Longer than a second: the log tells times in seconds, and a snapshot's rows have no other place among the changes.
_CALM_S = 1.5


class _Job:
    """What is on disk of the queries, and the process that runs them."""

    def __init__(self, server: MySQLServer, shape: Shape, root: Path) -> None:
        source = options(server, "", tablePattern=PATTERN, user=READER, chunkSize=100, maxRowsPerBatch=400)
        source["signal.table"] = SIGNALS
        keys = ", ".join(f"{name} {'string' if shape.key == 'text' else 'int'}" for name in shape.key_columns)
        rest = ", ".join(f"{name} {_SPARK[name[0]]}" for name in ("wx1", "tx2", "dx3", *POOL))
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._calm_since = time.monotonic()
        self.ended = 0
        self.described: dict[str, Any] = {
            "source": {name: value for name, value in source.items() if value},
            "key": shape.key_columns,
            "columns": f"{keys}, n bigint, v string, {rest}",
            "checkpoints": str(root / "checkpoints"),
            LOG: str(root / LOG),
            STATE: str(root / STATE),
        }

    def run(self) -> None:
        """Start the program."""
        with (self._root / "driver.log").open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.torture.job", json.dumps(self.described)],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=Path(__file__).parents[2],
            )

    def kill(self) -> None:
        """SIGKILL of the driver, its JVM and all workers."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def go_on(self) -> None:
        """Start the program again where it ended by itself for what is over soon."""
        if self._process is not None and self._process.poll() is not None:
            told = self.told()
            assert any(reason in told for reason in _PASSING), told
            assert self.ended < _MOST_ENDED, told
            self.kill()
            self.ended += 1
            self.run()

    def told(self) -> str:
        return (self._root / "driver.log").read_text(errors="replace")[-3000:]

    def kill_worker(self, chance: random.Random) -> bool:
        """SIGKILL of a Python process that plans for the source or runs tasks, if there is one."""
        found = list(self._workers())
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(found), signal.SIGKILL)
        return bool(found)

    def _workers(self) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                named = b"-m\0pyspark" in (entry / "cmdline").read_bytes()
                if self._process is not None and int(fields[2]) == self._process.pid and named:
                    yield int(entry.name)

    def commits(self, query: str) -> int:
        """The newest batch in a query's commit log."""
        directory = Path(self.described["checkpoints"]) / query / "commits"
        names = [path.name for path in directory.glob("*")] if directory.is_dir() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def offset(self, query: str) -> dict[str, Any]:
        """Where a query's last commit ends; empty if that is not known."""
        path = Path(self.described["checkpoints"]) / query / "offsets" / str(self.commits(query))
        found: dict[str, Any] = {}
        with contextlib.suppress(OSError, IndexError):
            found = json.loads(path.read_text().splitlines()[2])
        return found

    def position(self, query: str) -> BinlogPosition | None:
        """Up to where a query has committed the log."""
        found = self.offset(query)
        return BinlogPosition(*found["position"]) if "position" in found else None

    def passed(self) -> BinlogPosition | None:
        """Up to where both queries have committed the log."""
        first, second = self.position(LOG), self.position(STATE)
        return min(first, second, key=BinlogPosition.sort_key) if first and second else None

    def is_calm(self, last: BinlogPosition) -> bool:
        """Whether both queries read only the log, and have passed a position a while ago."""
        passed, offsets = self.passed(), [self.offset(LOG), self.offset(STATE)]
        calm = passed is not None and passed.sort_key() >= last.sort_key()
        if not calm or any(not o or o["isProcessingBacklog"] or "gone" in o or "joining" in o for o in offsets):
            self._calm_since = time.monotonic()
        return time.monotonic() - self._calm_since > _CALM_S


def torture_lives(
    spark: SparkSession, kind: type[MySQLServer], seed: int, seconds: float, root: Path, lives: int = 1,
    show: Callable[[Counter[str]], None] | None = None,
) -> Counter[str]:  # fmt: skip
    """Kill the program ``lives`` times within about ``seconds`` after its starts, then run its queries here to the end.

    Raises
    ------
    AssertionError
        The targets are not what the log and the tables are.
    """
    chance = random.Random(seed)
    shape = Shape(chance.choice(["int", "pair", "text"]))
    server_options = {name: value for name, value in SERVER_OPTIONS.items() if name != "max-binlog-size"}
    done: Counter[str] = Counter()
    with kind(options=server_options) as server:
        shape.create(server)
        shape.fill(server, chance, 250)
        job = _Job(server, shape, root)
        writers = Writers(server, shape, seed, root, threads=2, pause=0.1)
        pool = dict.fromkeys(POOL, 0)
        alters = Alters(server, shape, seed + 1, 3.0, job.passed, pool=pool, most=_ALTERS_A_LIFE * (lives + 1))
        swaps = Swaps(server, shape, seed + 3, 0.5, job.is_calm, most=lives + 1)
        storm = Storm(server, shape, seed + 2, 3.0, kills=0)

        def tally() -> Counter[str]:
            found = Counter({"transactions": writers.commits, "alters": sum(alters.done.values())})
            return found + storm.done + swaps.done + done

        def wait_for(reached: Callable[[], bool], what: str) -> None:
            place, since = None, time.monotonic()
            while not reached():
                job.go_on()
                for query in queries:
                    assert query.isActive, query.exception()
                now = [(job.commits(name), job.ended) for name in (LOG, STATE)]
                if now != place:
                    place, since = now, time.monotonic()
                assert time.monotonic() < since + _STILL_S, (
                    f"{what} did not come, and nothing moves: {job.position(LOG)}, {job.position(STATE)}"
                )
                if show is not None:
                    show(tally())
                time.sleep(0.02)

        queries: list[BacklogQuery] = []

        def live(to: float) -> None:
            """One life of the program, from its first commit up to a moment, and its end."""
            before = job.commits(LOG), job.commits(STATE)
            job.run()
            wait_for(lambda: job.commits(LOG) > before[0] and job.commits(STATE) > before[1], "a commit")
            end = time.monotonic() + to
            while time.monotonic() < end:
                job.go_on()
                if chance.random() < 0.15:
                    done["workers killed"] += job.kill_worker(chance)
                if chance.random() < 0.04:
                    storm.ask(storm.kill)
                if show is not None:
                    show(tally())
                time.sleep(0.25)
            job.kill()
            done["drivers killed"] += 1

        try:
            with writers, alters, storm, swaps:
                for _ in range(lives):
                    live(chance.random() * 2 * seconds / lives)
                # Small batches, so that kills hit some; the rest is done sooner with large ones.
                source = {**job.described["source"], "maxRowsPerBatch": "100000"}
                with shape.lock, storm.lock:
                    queries += start(spark, {**job.described, "source": source})
                wait_for(lambda: all(q.backlogProgress.commits_after > 0 for q in queries), "a commit")
                kills = storm.done["kill"]
                storm.ask(storm.kill)
                wait_for(lambda: storm.done["kill"] > kills, "the server's restart")
            _settle(server, shape, alters)
            file, position = server.binlog_end()
            end_of_log = BinlogPosition(file, position).sort_key()

            def caught_up() -> bool:
                positions = [job.position(name) for name in (LOG, STATE)]
                return all(position is not None and position.sort_key() >= end_of_log for position in positions)

            wait_for(lambda: caught_up() and all(is_whole(job.offset(q)) for q in (LOG, STATE)), "the log's end")
            # An append of changes has no order among a table's snapshots and its changes before them.
            for query in queries[0 if not swaps.done else 1 :]:
                verify(query).raise_for_differences()
            for query in queries:
                query.stop()
            _corrupt_and_repair(spark, job, queries[1], shape, chance)
            log = Log(server, shape)
            compare(server, shape, log, _rows_of_log(spark, job, shape), "the log of changes", filled=True)
            _compare_state(spark, job, server)
        finally:
            job.kill()
            for query in queries:
                query.stop()
        return tally() + Counter({"transactions in the log": log.transactions, "without an end": log.broken})


def _settle(server: MySQLServer, shape: Shape, alters: Alters) -> None:
    """All columns of the pool back, and every row changed: the targets' columns are then all of today."""
    missing = [name for name in POOL if name not in shape.steps]
    if missing:
        alters.alter(", ".join(f"ADD COLUMN {name} {KINDS[name[0]][0]}" for name in missing), dict.fromkeys(missing, 0))
    server.execute("FLUSH BINARY LOGS")
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"UPDATE {DATABASE}.{table} SET n = n + 1")
        connection.commit()


def _rows_of_log(spark: SparkSession, job: _Job, shape: Shape) -> list[Row]:
    """The log's rows in order, without those that a signal asked for."""
    rows = [row.asDict() for row in spark.read.format("delta").load(job.described[LOG]).collect()]
    rows = [row for row in rows if not (row["_is_snapshot"] and row["_change_type"] == "update_postimage")]
    emptied = [row for row in rows if row["_change_type"] in EMPTIED]

    def place(row: dict[str, Any]) -> tuple[int, bool]:
        """Rows of a snapshot come after the last statement that emptied their table before they were read."""
        if not row["_is_snapshot"]:
            return row["_commit_seq"], False
        before = [
            e["_commit_seq"]
            for e in emptied
            if e["_table"] == row["_table"] and e["_commit_timestamp"] <= row["_commit_timestamp"]
        ]
        return max(before, default=0), True

    found = []
    for values in sorted(rows, key=place):
        told = {name: values.pop(name) for name in list(values) if name.startswith("_")}
        kind = "snapshot" if told["_is_snapshot"] else told["_change_type"]
        if kind in EMPTIED:
            found.append(Row(told["_table"], kind, (), {}, told["_commit_seq"]))
            continue
        image = {family(name): plain(value) for name, value in values.items()}
        key = tuple(image[name] for name in shape.key_columns)
        found.append(Row(told["_table"], kind, key, image, told["_commit_seq"]))
    return found


def is_whole(offset: dict[str, Any]) -> bool:
    """Whether no table is away and no snapshot of one is read."""
    return bool(offset) and "gone" not in offset and "joining" not in offset


def _corrupt_and_repair(
    spark: SparkSession, job: _Job, query: BacklogQuery, shape: Shape, chance: random.Random
) -> None:
    """Spoil rows of the target at random: `verify` finds exactly these, and mends them."""
    from delta.tables import DeltaTable

    keys = ["_database", "_table", *shape.key_columns]
    target = DeltaTable.forPath(spark, job.described[STATE])
    rows = [tuple(row) for row in target.toDF().select(*keys).collect()]
    spoilt = chance.sample(sorted(rows, key=repr), min(12, len(rows)))
    gone, changed = spoilt[::2], spoilt[1::2]

    def among(some: list[tuple[Any, ...]]) -> str:
        return " OR ".join(
            "(" + " AND ".join(f"{k} = {v!r}" for k, v in zip(keys, row, strict=True)) + ")" for row in some
        )

    if gone:
        target.delete(among(gone))
    if changed:
        target.update(among(changed), {"n": "n + 1"})
    found = verify(query, max_differences=len(rows) + 1)
    keys_found = {tuple(difference.key[name] for name in keys) for difference in found.differences}
    assert keys_found == set(spoilt), f"verify found {sorted(keys_found ^ set(spoilt), key=repr)[:5]}"
    verify(query, repair=True)
    verify(query).raise_for_differences()


def _compare_state(spark: SparkSession, job: _Job, server: MySQLServer) -> None:
    rows = spark.read.format("delta").load(job.described[STATE]).collect()
    for table in TABLES:
        names = columns_of(server, table)
        found = Counter(tuple(plain(row[name]) for name in names) for row in rows if row["_table"] == table)
        columns = ", ".join(names)
        right = Counter(tuple(map(plain, row)) for row in server.execute(f"SELECT {columns} FROM {DATABASE}.{table}"))
        if found != right:
            more, less = list((found - right).items())[:3], list((right - found).items())[:3]
            raise Differences(f"{table}: only in the target {more}, only in the source {less}")
