"""`make soak`: two queries under load, faults and kills; writes docs/proof/soak.md and its plots.

The exit code is 1 if a target differs, a query does not catch up, or a figure rises; the run's folder is then kept.
"""

from __future__ import annotations

import argparse
import logging
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from .page import rising, write
from .soak import Soak
from .stage import Load

_PAGES = Path(__file__).parents[2] / "docs" / "proof"
_LEAST_MINUTES = 10.0
"""A shorter run does not replace the page."""


def main() -> int:
    """Returns whether there were faults."""
    given = _arguments()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(10**6)
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, _interrupt)
    logging.getLogger("backlog_spark").setLevel(logging.ERROR)
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    # Half of the keys have a row; a table of this size is rewritten in half a second.
    load = Load(
        seed=seed,
        changes=given.changes,
        records=given.records,
        keys=max(2_000, 20 * given.changes),
        sums=5_000,
        before=5 * given.records,
        away_s=given.minutes * 10,
    )
    began, on_terminal = time.monotonic(), sys.stderr.isatty()

    def say(line: str) -> None:
        if on_terminal:
            sys.stderr.write("\r\033[K")
        print(f"{_clock(time.monotonic() - began)} {line}", flush=True)

    def show(line: str) -> None:
        if on_terminal:
            sys.stderr.write(
                f"\r\033[K{_clock(time.monotonic() - began)} of {_clock(given.minutes * 60)}  {line}"[:200]
            )
            sys.stderr.flush()

    say(
        f"seed {seed}: {given.changes:,} changes/s and {given.records:,} records/s for {given.minutes:g} minutes, "
        f"in {root}"
    )
    soak = Soak(root, load, given.minutes * 10, say, show)
    kept = True
    try:
        result = soak.run()
        if on_terminal:
            sys.stderr.write("\r\033[K")
        pages = given.page or (_PAGES if given.minutes >= _LEAST_MINUTES and not result.faults else root)
        command = f"make soak MINUTES={given.minutes:g} SEED={seed} CHANGES={given.changes} RECORDS={given.records}"
        page = write(pages, result, load, given.minutes, command)
        rises = rising(result, load.away_s)
        for fault in (*result.faults, *rises):
            print(f"fault: {fault}")
        kept = given.keep or bool(result.faults or rises) or pages == root
        if kept:
            # Series have functions as defaults, which pickle refuses.
            result.series.of = {query: dict(of) for query, of in result.series.of.items()}
            (root / "result.pickle").write_bytes(pickle.dumps((result, load, given.minutes, command)))
        print(f"{len(result.comparisons)} comparisons, {result.struck.total()} faults struck, "
              f"{len(result.faults)} faults found, {len(rises)} figures rise")  # fmt: skip
        print(f"written: {page}")
        return 1 if result.faults or rises else 0
    except KeyboardInterrupt:
        print("interrupted")
        return 130
    finally:
        if kept:
            print(f"kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--changes", type=int, default=5_000, help="a second")
    parser.add_argument("--records", type=int, default=50_000, help="a second")
    parser.add_argument("--page", type=Path, help="directory for the page; default: docs/proof, if the run is long")
    parser.add_argument("--keep", action="store_true", help="keep the run's folder, with all points in result.pickle")
    return parser.parse_args()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    sys.exit(main())
