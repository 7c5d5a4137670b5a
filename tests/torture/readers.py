"""A torture of the stream reader: writers, ALTER TABLE, kills, and two streams, in one process and without Spark."""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from backlog_spark.connectors.mysql_cdc.binlog import planner
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.snapshot import new_tables
from backlog_spark.connectors.mysql_cdc.snapshot import planner as snapshot_planner
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from servers.mysql import MySQLServer

from .capture import Capture
from .compare import compare
from .oracle import Log
from .storm import Alters, Storm
from .swaps import Swaps
from .tables import DATABASE, TABLES, Shape
from .writers import Writers

# What a killed server has acknowledged, it has; files of the log end often.
SERVER_OPTIONS = {
    "innodb-flush-log-at-trx-commit": "1",
    "sync-binlog": "1",
    "max-binlog-size": "512K",
    "local-infile": "1",
    "innodb-lock-wait-timeout": "2",
    "lock-wait-timeout": "5",
}
_PAUSE_S = 0.01
_QUIET_MS = 500
_TRANSACTIONS = 10  # for each batch
_TO_AN_ALTER, _TO_A_STORM, _BETWEEN_SWAPS = 6, 4, 12  # batches
# Batches that are planned and lost, or read again, in a row. One in eight is.
_MOST_STEPS = 30


def catch_up(capture: Capture) -> None:
    """Read a stream to the log's end, while nothing disturbs it.

    Raises
    ------
    AssertionError
        It reads on and gets nowhere.
    """
    capture.in_peace = True
    place, steps = capture.place, 0
    with mock.patch.object(planner, "QUIET_MS", -1):
        while capture.step() or not capture.is_calm:
            place, steps = (place, steps + 1) if capture.place == place else (capture.place, 0)
            assert steps < _MOST_STEPS, f"format={capture.form} stays at {place}: {capture.done}, {capture.last_error}"


def swap(swaps: Swaps, captures: Sequence[Capture], shape: Shape) -> None:
    """Let the streams read all that there is, so that each tells of what is done to a table next."""
    with shape.lock:  # nobody alters the tables
        for _ in range(_MOST_STEPS):
            if swaps.is_calm():
                break
            for capture in captures:
                capture.step()
        swaps.act()


def torture_readers(
    kind: type[MySQLServer], seed: int, seconds: float, show: Callable[[Counter[str]], None] | None = None
) -> Counter[str]:
    """Let two streams, ``format=row`` and ``format=debezium``, follow tables through what the seed brings.

    Parameters
    ----------
    kind
        The server.
    seed, seconds
        Of the choices, and for how long writers write.
    show : callable, optional
        Gets what was done so far, a few times a second.

    Returns
    -------
    Counter
        What was done.

    Raises
    ------
    AssertionError
        A stream said anything else than the log and the tables.
    """
    chance = random.Random(seed)
    shape = Shape(chance.choice(["int", "int", "pair", "text"]))
    with (
        kind(options=SERVER_OPTIONS) as server,
        tempfile.TemporaryDirectory() as scratch,
        mock.patch.object(new_tables, "LOOK_MS", 0),
        mock.patch.object(planner, "QUIET_MS", _QUIET_MS),
        # Batches of a snapshot share a watermark after so many of them.
        mock.patch.object(snapshot_planner, "_SHARE", chance.choice([3, 512])),
    ):
        shape.create(server)
        shape.fill(server, chance, 200)
        captures = [Capture(server, shape, seed * 10 + i, form) for i, form in enumerate(("row", "debezium"))]

        def passed() -> BinlogPosition | None:
            positions = [position for capture in captures if (position := capture.position)]
            return min(positions, key=BinlogPosition.sort_key) if len(positions) == len(captures) else None

        writers = Writers(server, shape, seed, Path(scratch))

        def is_calm(last: BinlogPosition) -> bool:
            position = passed()
            after = position is not None and position.sort_key() >= last.sort_key()
            return after and all(capture.is_calm for capture in captures)

        alters, storm = Alters(server, shape, seed + 1, 0.35, passed), Storm(server, shape, seed + 2, 0.25)
        swaps = Swaps(server, shape, seed + 3, 0, is_calm)
        done: Counter[str] = Counter()
        steps = 0

        def tally() -> Counter[str]:
            done.clear()
            done.update({"transactions": writers.commits, "rows": sum(len(c.rows) for c in captures)})
            done.update({"alters": sum(alters.done.values()) - alters.done["killed"]})
            for of in (*(c.done for c in captures), storm.done, swaps.done):
                done.update(of)
            return done

        try:
            end = time.monotonic() + seconds
            with writers, alters, storm:
                writers.limit = _TRANSACTIONS
                while time.monotonic() < end:
                    # Without limits there would be more to read on a slow machine than on a fast one, and not less.
                    steps += 1
                    alters.limit, storm.limit = steps / _TO_AN_ALTER, steps / _TO_A_STORM
                    if steps % _BETWEEN_SWAPS == 0:
                        swap(swaps, captures, shape)
                    if chance.choice(captures).step():
                        writers.limit += _TRANSACTIONS
                    else:
                        writers.limit += 1
                        time.sleep(_PAUSE_S)
                    if show is not None:
                        show(tally())
            with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
                for table in TABLES:  # columns that came later are in all rows then
                    cursor.execute(f"UPDATE {DATABASE}.{table} SET n = n + 1")
            for capture in captures:
                catch_up(capture)
                capture.check_ranges()
                capture.read_again()
        finally:
            discard_rewind_log()
        log = Log(server, shape)
        for capture in captures:
            compare(server, shape, log, capture.rows, f"format={capture.form}")
        done = tally()
        done.update({"transactions in the log": log.transactions, "without an end": log.broken})
        done.update({f"statement {name}": number for name, number in writers.statements.items()})
        done.update({f"alter {name}": number for name, number in alters.done.items()})
        return done
