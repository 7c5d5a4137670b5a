"""A torture of the stream reader: writers, ALTER TABLE, kills, and two streams, in one process and without Spark."""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from backlog_spark.connectors.mysql_cdc.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.embedded.mysql import MySQLServer

from .capture import Capture
from .compare import compare
from .oracle import Log
from .storm import Alters, Storm
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
_CATCH_UP_S = 60


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
    with kind(options=SERVER_OPTIONS) as server, tempfile.TemporaryDirectory() as scratch:
        shape.create(server)
        shape.fill(server, chance, 200)
        captures = [Capture(server, shape, seed * 10 + i, form) for i, form in enumerate(("row", "debezium"))]

        def passed() -> BinlogPosition | None:
            positions = [position for capture in captures if (position := capture.position)]
            return min(positions, key=BinlogPosition.sort_key) if len(positions) == len(captures) else None

        writers = Writers(server, shape, seed, Path(scratch))
        alters, storm = Alters(server, shape, seed + 1, 0.35, passed), Storm(server, seed + 2, 0.25)
        done: Counter[str] = Counter()

        def tally() -> Counter[str]:
            done.clear()
            done.update({"transactions": writers.commits, "rows": sum(len(c.rows) for c in captures)})
            done.update({"alters": sum(alters.done.values()) - alters.done["killed"]})
            for of in (*(c.done for c in captures), storm.done):
                done.update(of)
            return done

        try:
            end = time.monotonic() + seconds
            with writers, alters, storm:
                while time.monotonic() < end:
                    if not chance.choice(captures).step():
                        time.sleep(0.01)
                    if show is not None:
                        show(tally())
            with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
                for table in TABLES:  # columns that came later are in all rows then
                    cursor.execute(f"UPDATE {DATABASE}.{table} SET n = n + 1")
            limit = time.monotonic() + _CATCH_UP_S
            for capture in captures:
                capture.in_peace = True
                while capture.step():
                    assert time.monotonic() < limit, (
                        f"format={capture.form} does not catch up: {capture.done}, {capture.last_error}"
                    )
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
