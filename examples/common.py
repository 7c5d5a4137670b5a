"""The common parts of the demos: follow a query through its switch, and print the last line."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from backlog_spark.common.durations import parse_duration
from backlog_spark.runner.progress_line import ProgressLine
from backlog_spark.tools.report import page
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint

if TYPE_CHECKING:
    import backlog_spark as bs

__all__ = ["arguments_parser", "follow", "main", "outcome", "write_report"]


def arguments_parser(doc: str | None, *, rows: int, during_backlog: str) -> argparse.ArgumentParser:
    """The arguments of a demo, as passed on by the Makefile. ``rows`` and ``during_backlog`` are defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=rows, help="number of orders at the start")
    parser.add_argument("--interval", default="1 second", help="normal commit interval")
    parser.add_argument("--interval-during-backlog", default=during_backlog, help="0: the backlog is one commit")
    parser.add_argument("--seconds", type=float, default=20, help="how long to follow after the switch")
    return parser


def follow(
    query: bs.BacklogQuery, arguments: argparse.Namespace, began: float, end_of_changes: Callable[[], None]
) -> bs.BacklogProgress:
    """Show a query through its backlog and for some seconds after it, then let it finish and stop it.

    Parameters
    ----------
    began : float
        When the query was started, in seconds since 1970.
    end_of_changes : callable
        Ends the process that changes what the query reads.
    """
    with ProgressLine(query, sys.stdout, every_commit=True) as line:
        line.say(
            f"Query started: a commit every {arguments.interval}, in backlog "
            f"{arguments.interval_during_backlog}; the data keep changing"
        )
        while query.isProcessingBacklog and query.isActive:
            time.sleep(0.05)
        _raise_if_ended(query)
        commits = query.backlogProgress.commits_in_backlog
        line.say(
            f"Switch to streaming after {time.time() - began:.1f} s, at batch {query.history[-1].batch_id}: "
            f"the backlog took {commits} commit{'' if commits == 1 else 's'}"
        )
        end = time.time() + arguments.seconds
        while (time.time() < end or not query.backlogProgress.commits_after) and query.isActive:
            time.sleep(0.2)
        _raise_if_ended(query)
        end_of_changes()
        line.say("No more changes. Waiting for the last commits")
        query.processAllAvailable()
    query.stop()
    return query.backlogProgress


def write_report(checkpoint: Path, name: str) -> str:
    """Write the report page of a query that has ended, and say where it is."""
    target = Path.cwd() / "build" / f"{name}.html"
    target.parent.mkdir(exist_ok=True)
    target.write_text(page(StoredCheckpoint(str(checkpoint))), encoding="utf-8")
    return f"Report page: {target}"


def _raise_if_ended(query: bs.BacklogQuery) -> None:
    if not query.isActive:
        raise query.exception() or RuntimeError("The query ended early.")


def outcome(progress: bs.BacklogProgress, compared: tuple[int, int, int, int]) -> str:
    """The last line. ``compared``: number of rows, and how many are lost, duplicated and different."""
    rows, lost, duplicated, different = compared
    counts = (
        f"rows={rows} commits_in_backlog={progress.commits_in_backlog} commits_after={progress.commits_after} "
        f"lost={lost} duplicated={duplicated} different={different}"
    )
    right = rows > 0 and not (lost or duplicated or different) and progress.commits_after > 0
    return f"demo: {'OK' if right else 'FAILED'} {counts}"


def main(run: Callable[[argparse.Namespace], str], parser: argparse.ArgumentParser) -> int:
    """Run a demo and print its last line. The exit status is 0 if the result is right."""
    arguments = parser.parse_args()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        during = getattr(arguments, "interval_during_backlog", "0")
        parse_duration(during, "INTERVAL_DURING_BACKLOG")
        last = run(arguments)
    except Exception as error:
        last = f"demo: FAILED {type(error).__name__}: {' '.join(str(error).split())[:1000]}"
    print(last, flush=True)
    return 0 if last.startswith("demo: OK") else 1
