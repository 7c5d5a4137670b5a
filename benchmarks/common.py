"""The common parts of all benchmarks: arguments, interleaved measuring, the equality check and the RESULT line.

A benchmark is a module with a function that takes the parsed arguments, prints one line per candidate and
ends with `result`. It passes that function to `main`.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

__all__ = [
    "Unequal",
    "arguments_parser",
    "interleave",
    "main",
    "positives",
    "progress",
    "require_equal",
    "result",
    "show",
]

Measured = TypeVar("Measured")


class Unequal(Exception):
    """Candidates gave different results, so their times cannot be compared.

    Parameters
    ----------
    results : mapping of str to object
        The result of each candidate, by name.
    """

    def __init__(self, results: Mapping[str, object]) -> None:
        self.results = dict(results)
        shown = "; ".join(f"{name} {found}" for name, found in self.results.items())
        super().__init__(f"the results differ, so nothing was compared: {shown}")


def arguments_parser(
    description: str | None, *, rows: int | Sequence[int], keys: int | None = None, runs: int = 3
) -> argparse.ArgumentParser:
    """Parser of a benchmark's arguments, as passed on by the Makefile.

    Parameters
    ----------
    description : str or None
        The benchmark's module docstring.
    rows : int or sequence of int
        Default of ``--rows``. If it is a sequence, the argument is a list, separated by commas.
    keys : int, optional
        Default of ``--keys``. Without it the benchmark refuses the argument.
    runs : int
        Default of ``--runs``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    several = not isinstance(rows, int)
    shown = ",".join(map(str, rows)) if several else rows
    parser.add_argument(
        "--rows", type=positives if several else _positive, default=rows, help=f"input rows, default {shown}"
    )
    if keys is not None:
        parser.add_argument("--keys", type=_positive, default=keys, help=f"distinct keys, default {keys}")
    parser.add_argument("--runs", type=_positive, default=runs, help=f"measured runs, default {runs}")
    return parser


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def positives(text: str) -> list[int]:
    """Type of an argument: positive integers, separated by commas."""
    return [_positive(number) for number in text.split(",")]


def progress(text: str) -> None:
    """Show on a terminal's standard error what is running. Writes nothing to a log or a pipe."""
    if sys.stderr.isatty():
        # Clears the rest of a longer previous text.
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)


def interleave(candidates: Mapping[str, Callable[[], Measured]], runs: int) -> dict[str, list[Measured]]:
    """Seconds, or other figures, of each candidate's runs.

    There is one warm-up of each, then ``runs`` rounds in which each runs once.

    A candidate times itself, so that it can prepare and clean up outside of the measured time. Rounds spread other load
    of the machine evenly over all candidates.

    Parameters
    ----------
    candidates : mapping of str to callable
        Name, and a function that runs the candidate once and returns its figures, mostly its seconds.
    runs : int
        Measured runs of each.
    """
    for name, run in candidates.items():
        progress(f"warm-up: {name}")
        run()
    times: dict[str, list[Measured]] = {name: [] for name in candidates}
    for number in range(1, runs + 1):
        for name, run in candidates.items():
            progress(f"run {number} of {runs}: {name}")
            times[name].append(run())
    progress("")
    return times


def show(name: str, rows: int, times: Sequence[float]) -> float:
    """Print one candidate's line and return its rows per second, by the median of its runs."""
    median = statistics.median(times)
    each = " ".join(f"{seconds:.2f}" for seconds in times)
    print(f"{name}: {rows / median:,.0f} rows/s, {median:.2f} s (runs: {each})", flush=True)
    return rows / median


def require_equal(results: Mapping[str, object]) -> None:
    """Refuse to compare the times of candidates whose results differ.

    Raises
    ------
    Unequal
        With the result of each candidate.
    """
    found = list(results.values())
    if any(other != found[0] for other in found[1:]):
        raise Unequal(results)


def result(case: str, variant: str, ours: float, peers: Mapping[str, float], *, less_is_better: bool = False) -> None:
    """Print the RESULT line of the benchmark contract.

    Parameters
    ----------
    case, variant : str
        The benchmark's name, and the name of the figure, such as ``"rows=1000000"``.
    ours : float
        Rows per second.
    peers : mapping of str to float
        Rows per second of each peer. The printed ratio is ours divided by it: above 1, ours is faster.
    less_is_better : bool, default False
        The figures are costs, such as seconds. The ratio is the peer's divided by ours: above 1, ours costs less.
    """
    if less_is_better:
        ratios = {name: round(peer / max(ours, 0.001), 3) for name, peer in peers.items()}
    else:
        ratios = {name: round(ours / peer, 3) for name, peer in peers.items()}
    shown = round(ours, 3) if less_is_better else round(ours)
    figures = {"case": case, "variant": variant, "ours": shown, "ratios": ratios}
    print(f"RESULT {json.dumps(figures)}", flush=True)


def main(run: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> int:
    """Run a benchmark. The exit status is 1, with a line that says why, if results differ."""
    arguments = parser.parse_args()
    # py4j logs each connection that closes with the session.
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        run(arguments)
    except Unequal as unequal:
        progress("")
        print(f"error: {unequal}", file=sys.stderr, flush=True)
        return 1
    return 0
