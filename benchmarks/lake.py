"""A MySQL table into a lake: the snapshot of an orders table, then changes of a tenth as many rows.

Each candidate is a program in a process of its own, started anew for each run. It copies ``shop.orders`` (the demo's
table, 10 columns of mixed types) into a new Delta table, then follows. When it has said that the copy is complete, the
copy is compared with MySQL, and an application makes the changes, in transactions of 1,000, as fast as the server takes
them. The target is polled until it equals the table, by the number of rows and the sum of a hash of each row. MySQL
and DuckDB compute these, and neither is part of a candidate. A candidate whose target does not become equal has no
figures.

* Processor seconds are those of all processes of a candidate, from its start: interpreters, JVMs, workers. Those of the
  server, and of a broker, are apart.
* Memory is the most that all processes of a candidate had together at one time: the sum of their PSS, each second.
* *equal* is the time from the last commit of the application to the commit of the first version that was equal.

``--peers`` chooses candidates, among them ``ours``. ``--seconds`` is the limit of one phase of one candidate. With
``--write`` each candidate's figures go to ``docs/proof/lake.json`` as soon as they are there, and to the page.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import lake_page as page
from benchmarks.common import arguments_parser, main, progress, result
from benchmarks.lake_candidates import CANDIDATES, Candidate
from benchmarks.lake_table import OPTIONS, Orders
from benchmarks.lake_target import Target, first_equal, micros
from benchmarks.measured import Ended, Measured, Sampler
from benchmarks.peers.lake.job import Job
from servers.mysql import MySQLServer
from servers.server import EmbeddedServer

__all__ = ["measure"]

_POLL_S = 0.2
# Of a phase, unless `--seconds` says another one: so slow is no candidate that is of use.
_LEAST_LIMIT_S, _ROWS_A_SECOND = 300, 10_000


@dataclass(frozen=True)
class _Bench:
    """The table on its server, and what all candidates have in common."""

    server: MySQLServer
    orders: Orders
    limit_s: float


def measure(bench: _Bench, name: str, candidate: Candidate) -> page.Run:
    """One run of a candidate.

    Raises
    ------
    Ended
        It ended early, takes too long, or its target is not equal. The text says which.
    """
    orders, server = bench.orders, bench.server
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="backlog-lake-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(orders.undo)
        broker = stack.enter_context(candidate.broker()) if candidate.broker else None
        job = Job(
            server.host, server.port, server.user, server.password, orders.rows, str(folder),
            broker.address() if broker else "",
        )  # fmt: skip
        samplers = [_sampler(stack, each) for each in (server, broker) if each]
        program = stack.enter_context(Measured(candidate.command(job.write()), folder / "log", candidate.environment))

        def shown(phase: str) -> Callable[[], None]:
            def show() -> None:
                sample = program.sampler.samples[-1]
                progress(f"{name}: {phase}, {sample.at - program.began:.0f} s, {sample.cpu:.0f} CPU s")

            return show

        copied = program.said("SNAPSHOT", bench.limit_s, shown("snapshot"))
        ready = program.said("READY", 0)
        target = candidate.target(job)
        stack.callback(target.close)
        version = target.newest()
        if version is None:
            raise Ended("there is no table after the snapshot")
        version = first_equal(target, version)
        progress(f"{name}: comparing the copy")
        found = target.fingerprint(version)
        if found != orders.before:
            raise Ended(f"differs after the snapshot: {found} instead of {orders.before}")
        run = page.Run(
            start_s=ready - program.began,
            snapshot_s=version.at - program.began,
            snapshot_cpu=program.sampler.cpu(version.at),
            start_cpu=program.sampler.cpu(ready),
            snapshot_memory=program.sampler.peak(),
            servers_cpu=[_between(each, program.began, version.at) for each in samplers],
        )
        # What a candidate does after it has said that the copy is complete belongs to the copy.
        began = time.time()
        run.after_cpu = program.sampler.cpu(began) - program.sampler.cpu(copied)
        first, last = orders.change()
        equal = _until_equal(bench, program, target, candidate.sees_deletes, shown("changes"))
        time.sleep(2 * _POLL_S)  # for the samples after it
        run.changes_s, run.changing_s = equal - last, last - first
        run.changes_cpu = program.sampler.cpu(equal) - program.sampler.cpu(began)
        run.memory = program.sampler.peak()
        run.servers_changes_cpu = [_between(each, began, equal) for each in samplers]
        return run


def _sampler(stack: contextlib.ExitStack, server: EmbeddedServer) -> Sampler:
    assert server.pid is not None
    sampler = Sampler(server.pid).start()
    stack.callback(sampler.end)
    return sampler


def _between(sampler: Sampler, begin: float, end: float) -> float:
    return sampler.cpu(end) - sampler.cpu(begin)


def _until_equal(
    bench: _Bench, program: Measured, target: Target, sees_deletes: bool, meanwhile: Callable[[], None]
) -> float:
    """Wait until the target has all changes. Returns the time of the commit, in seconds since 1970."""
    orders = bench.orders
    deleted = () if sees_deletes else orders.changes.deleted()
    quick = (orders.after.rows + len(deleted), micros(orders.changes.last))
    limit, seen, differs = time.monotonic() + bench.limit_s, -1, ""
    while True:
        program.require_running()
        version = target.newest()
        if version and version.number != seen:
            seen = version.number
            if target.quick(version) == quick:
                found = target.fingerprint(version, deleted)
                if found == orders.after:
                    return first_equal(target, version).at
                differs = f"{found} instead of {orders.after}"
        if time.monotonic() > limit:
            newest = f"{target.quick(version)} instead of {quick}" if version else "no table"
            raise Ended(f"differs {bench.limit_s:,.0f} s after the changes: {differs or newest}")
        meanwhile()
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _loaded(rows: int) -> Iterator[tuple[MySQLServer, Orders]]:
    with MySQLServer(options=OPTIONS, fast=True) as server:
        yield server, Orders(server, rows, progress)


def run(arguments: argparse.Namespace) -> None:
    """Load tables of each size and measure the candidates."""
    unknown = [name for name in arguments.peers if name not in CANDIDATES]
    if unknown:
        raise SystemExit(f"error: no candidate {unknown[0]!r}; PEERS is some of {','.join(CANDIDATES)}")
    failed = []
    for rows in arguments.rows:
        with _loaded(rows) as (server, orders):
            bench = _Bench(server, orders, arguments.seconds or _LEAST_LIMIT_S + rows / _ROWS_A_SECOND)
            found: dict[str, page.Row] = {}
            for name in arguments.peers:
                row = found[name] = _row(bench, name, arguments.runs)
                failed += [name] if row.why else []
                progress("")
                print(page.line(row), flush=True)
                if arguments.write:
                    page.write([row], page.Facts.of(server.execute("SELECT VERSION()")[0][0]))
        _results(rows, found)
    if "ours" in failed:
        raise SystemExit("error: ours has no figures")


def _row(bench: _Bench, name: str, runs: int) -> page.Row:
    row = page.Row.begun(name, bench.orders.rows, len(bench.orders.changes), CANDIDATES[name].versions())
    try:
        row.runs += [measure(bench, name, CANDIDATES[name]) for _ in range(runs)]
    except Exception as error:
        # The next candidate is measured all the same.
        row.runs.clear()
        row.why = str(error) if isinstance(error, Ended) else repr(error)
    return row


def _results(rows: int, found: Mapping[str, page.Row]) -> None:
    done = {name: row for name, row in found.items() if row.runs}
    if "ours" not in done:
        return
    ours = done.pop("ours")
    result(
        "lake", f"rows={rows} snapshot", rows / ours.median("snapshot_s"),
        {name: rows / row.median("snapshot_s") for name, row in done.items()},
    )  # fmt: skip
    for figure, label in page.COSTS.items():
        costs = {name: row.median(figure) for name, row in done.items()}
        result("lake", f"rows={rows} {label}", ours.median(figure), costs, less_is_better=True)


def _parser() -> argparse.ArgumentParser:
    parser = arguments_parser(__doc__, rows=[1_000_000], runs=1)
    names = ",".join(CANDIDATES)
    parser.add_argument(
        "--peers", type=lambda text: text.split(","), default=list(CANDIDATES), help=f"candidates, default {names}"
    )
    parser.add_argument("--seconds", type=float, default=0, help="limit of one phase of one candidate")
    parser.add_argument("--write", action="store_true", help="write docs/proof/lake.md")
    return parser


if __name__ == "__main__":
    sys.exit(main(run, _parser()))
