"""An hour of commits to one Delta table, one per second, with and without the care of small files.

There is no Spark: deltalake makes the commits, as for small live batches. The hour passes as fast as the machine can.
Kinds are ``append`` (``--rows`` rows per commit) and ``merge`` (as many changes, half of them new keys, into a table of
10^5 rows). For each tenth of the hour: median seconds of a commit, the longest pause between two commits, seconds to
open and read the table, and the table's files.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake

from backlog_spark.sinks.delta.maintenance.care import TableCare
from benchmarks.common import arguments_parser, main, progress, result

HOUR = 3600
PARTS = 12
TABLE_ROWS = 100_000


class Clock:
    """Each commit advances it by a second, in addition to the time of the work."""

    def __init__(self) -> None:
        self.commits = 0

    def __call__(self) -> float:
        return self.commits + time.perf_counter()


def rows(ids: np.ndarray[Any, Any], batch: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([f"name {i}" for i in ids.tolist()]),
            "batch": pa.array(np.full(len(ids), batch), pa.int64()),
            "amount": pa.array(np.sqrt(ids + batch)),
            "at": pa.array(np.full(len(ids), 1_700_000_000_000_000 + batch), pa.timestamp("us", "UTC")),
        }
    )


def commit(table: DeltaTable, kind: str, count: int, batch: int) -> None:
    properties: dict[str, Any] = {
        "commit_properties": CommitProperties(app_transactions=[Transaction("query", batch)], max_commit_retries=0),
        "post_commithook_properties": PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    }
    if kind == "append":
        write_deltalake(table, rows(np.arange(count) + batch * count, batch), mode="append", **properties)
        return
    new = count // 2
    ids = np.random.default_rng(batch).choice(TABLE_ROWS, count - new, replace=False)
    changes = rows(np.concatenate([ids, TABLE_ROWS + batch * new + np.arange(new)]), batch)
    merge = table.merge(changes, "t.id = s.id", source_alias="s", target_alias="t", streamed_exec=False, **properties)
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def hour(kind: str, cared: bool, count: int, commits: int) -> dict[str, float]:
    """One hour. Returns figures of its last part, compared with those of the second part."""
    folder = Path(tempfile.mkdtemp(prefix="small-files-"))
    try:
        write_deltalake(folder, rows(np.arange(count if kind == "append" else TABLE_ROWS), 0))
        table, clock = DeltaTable(folder), Clock()
        care = TableCare(clock=clock)
        parts, part, pauses, merged = [], [], [], 0
        for batch in range(1, commits + 1):
            began = time.perf_counter()
            commit(table, kind, count, batch)
            part.append(time.perf_counter() - began)
            clock.commits += 1
            if cared:
                began = time.perf_counter()
                done = care.after_batch(table)
                pauses.append(time.perf_counter() - began)
                merged += done.size if done else 0
            if batch % (commits // PARTS) == 0:
                began = time.perf_counter()
                read = DeltaTable(folder).to_pyarrow_table(columns=["id"])
                seconds, found = time.perf_counter() - began, len(table.file_uris())
                expected = (batch + 1) * count if kind == "append" else TABLE_ROWS + batch * (count // 2)
                assert read.num_rows == expected == len(set(read["id"].to_pylist())), (read.num_rows, expected)
                size = sum(pa.table(table.get_add_actions())["size_bytes"].to_pylist())
                line = {"commit": statistics.median(part), "read": seconds, "files": found, "pause": max(pauses or [0])}
                parts.append(line)
                print(
                    f"{kind} {'care' if cared else 'none'} {batch:5d} commits: commit {line['commit'] * 1000:6.1f} ms, "
                    f"longest care {line['pause']:5.2f} s, all care {sum(pauses):6.2f} s, read {seconds:6.3f} s, "
                    f"{found:5d} files, {size / 1e6:6.1f} MB, {merged / 1e6:7.1f} MB rewritten",
                    flush=True,
                )
                part, pauses = [], []
        return {name: parts[-1][name] for name in ("commit", "read", "files")}
    finally:
        shutil.rmtree(folder)


def bench(arguments: argparse.Namespace) -> None:
    for kind in ("append", "merge"):
        found = {}
        for cared in (True, False):
            progress(f"{kind}, {'care' if cared else 'none'}")
            found[cared] = hour(kind, cared, arguments.rows, arguments.commits)
        for name in found[True]:
            ours, without = found[True][name], found[False][name]
            result("small_files", f"{kind} {name}", ours=1 / ours, peers={"without": 1 / without})


if __name__ == "__main__":
    parser = arguments_parser(__doc__, rows=500)
    parser.add_argument("--commits", type=int, default=HOUR, help=f"default {HOUR}")
    sys.exit(main(bench, parser))
