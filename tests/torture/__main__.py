"""``make torture``: streams and whole queries under everything at once, on all servers, for as long as is asked for.

Choices follow the seed; what threads and processes make of them is not the same twice.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from servers.mariadb import MARIADB_SERVERS
from servers.mysql import MySQLServer
from servers.server import ServerError

from .job import CONF
from .lives import torture_lives
from .readers import torture_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVERS: tuple[type[MySQLServer], ...] = (MySQLServer, *MARIADB_SERVERS)
_SHOWN = (
    "transactions",
    "rows",
    "rows read again",
    "alters",
    "kill",
    "kill_in_commit",
    "restart",
    "cut",
    "killed",
    "drivers killed",
)
_EACH_S = 30.0
_EVERY_S = 0.5


class _Line:
    """What was done and how much time is left, on the last line of a terminal."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._next = 0.0
        self.what = ""

    def show(self, done: Counter[str]) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or now < self._next:
            return
        self._next = now + _EVERY_S
        told = ", ".join(f"{done[name]} {name.replace('_', ' ')}" for name in _SHOWN if done[name])
        left = max(0, int(self._until - now))
        sys.stderr.write(f"\r\033[K{left // 60}:{left % 60:02} left  {self.what}  {told}")
        sys.stderr.flush()

    def clear(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first round; the next have those after it")
    parser.add_argument("--minutes", type=float, default=10)
    given = parser.parse_args()
    logging.getLogger("backlog_spark").setLevel(
        logging.ERROR
    )  # dropped tables and lost connections are what it is about
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    until = time.monotonic() + given.minutes * 60
    line = _Line(until)
    sums: Counter[str] = Counter()
    spark: SparkSession | None = None
    rounds = 0
    while rounds == 0 or time.monotonic() < until:
        kind, whole = _turn(seed)
        line.what = f"{'queries' if whole else 'streams'} on {kind.product} {kind.version}, seed {seed}:"
        began = time.monotonic()
        try:
            if whole:
                spark = spark or _session()
                with tempfile.TemporaryDirectory(prefix="torture-") as root:
                    done = torture_lives(spark, kind, seed, _EACH_S, Path(root), lives=3, show=line.show)
            else:
                done = torture_readers(kind, seed, _EACH_S, line.show)
        except BaseException as error:
            line.clear()
            if (log := crashed(error)) is not None:
                print(f"{line.what} not counted, as the server crashed by itself: {log}", flush=True)
                sums["crashes of the server"] += 1
                seed += 1
                continue
            print(f"{line.what} {type(error).__name__}: {error}")
            print(f"again: make torture SEED={seed} MINUTES=0")
            raise
        line.clear()
        told = ", ".join(f"{done[name]} {name.replace('_', ' ')}" for name in _SHOWN if done[name])
        print(f"{line.what} {told}, in {time.monotonic() - began:.0f} s", flush=True)
        sums.update(done)
        rounds, seed = rounds + 1, seed + 1
    print(f"{rounds} rounds: " + ", ".join(f"{number} {name}" for name, number in sorted(sums.items())))


def crashed(error: BaseException | None) -> Path | None:
    """The server's log, if the server crashed while it recovered from SIGKILL.

    mysqld 8.0.15 sometimes does, when it rolls back a prepared transaction. No stream can read from it then.
    """
    while error is not None:
        if isinstance(error, ServerError) and "got signal" in error.log_path.read_text(errors="replace"):
            return error.log_path
        error = error.__context__
    return None


def _turn(seed: int) -> tuple[type[MySQLServer], bool]:
    """The server of a round, and whether it is one of whole queries: one in four is, on another server each time."""
    turn = seed % (len(SERVERS) + 1)
    if turn < len(SERVERS):
        return SERVERS[turn], False
    return SERVERS[seed // (len(SERVERS) + 1) % len(SERVERS)], True


def _session() -> SparkSession:
    from servers.session import local_session

    return local_session("torture", conf=CONF)


if __name__ == "__main__":
    main()
