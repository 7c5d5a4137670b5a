"""SIGKILL of a driver that writes into a database: before, in and after its transactions, and while tasks load."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from backlog_spark.sinks.database.staging import stage_prefix
from tests.connectors.mysql_cdc.proxy import Proxy

from .job import BATCHES, HELD, after
from .targets import Target
from .test_connection import locked_row, wait_for, waiting

# Each life ends in a batch, after those before it are done. Those with an even number are staged, and so are those that
# an earlier life has begun; the others are live.
LIVES = [
    (0, "before"), (0, "after"), (1, "merging"), (1, "after"), (2, "loading"), (2, "merging"), (2, "after"),
    (3, "after"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    ["postgres-17", *(pytest.param(name, marks=pytest.mark.grid) for name in ("mysql-8.0", "mariadb-11.4.5"))],
    indirect=True,
)
def test_killed_at_each_moment(target: Target, tmp_path: Path) -> None:
    noted, log = tmp_path / "noted", tmp_path / "log"
    for life, (batch_id, moment) in enumerate([*LIVES, (-1, "")]):
        reached = tmp_path / f"reached{life}"
        with contextlib.ExitStack() as stack:
            url, proxy = target.url, None
            if moment == "loading":
                # So slow that tasks are still at it.
                proxy = stack.enter_context(Proxy(target.server.port, bytes_per_second=2_000, stall_s=0))
                url = url.replace(f":{target.server.port}/", f":{proxy.port}/")
            if moment in ("loading", "merging"):
                stack.enter_context(locked_row(target, HELD))  # it does not get to its commit
            job = {
                "url": url, "user": target.server.user, "noted": str(noted), "reached": str(reached),
                "hold": [batch_id, moment], "planned": LIVES[life - 1][0] + 1 if life else 0,
            }  # fmt: skip
            out = stack.enter_context(log.open("ab"))
            command = [sys.executable, "-m", "tests.sinks.database.job", json.dumps(job)]
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            try:
                if moment == "merging":
                    wait_for(lambda run=process: _runs(run, log) and waiting(target))
                elif proxy is not None:
                    wait_for(lambda run=process: _runs(run, log) and _is_staged(target))
                    before = proxy.connections
                    wait_for(lambda run=process, to=proxy, n=before: _runs(run, log) and to.connections > n)
                elif moment:
                    wait_for(lambda run=process, file=reached: _runs(run, log) and file.exists())
                else:
                    assert process.wait(300) == 0, log.read_text()
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
        if moment:
            # The batch that was killed is there after its commit alone.
            done = batch_id + (moment == "after")
            found = target.rows(columns="id, v") if "t" in target.tables() else Counter()
            assert found == Counter(after(done).items()), (batch_id, moment)
    assert target.rows(columns="id, v") == Counter(after(BATCHES).items())
    assert target.marks() == [("app", "t", BATCHES - 1)]


def _runs(process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    return True


def _is_staged(target: Target) -> bool:
    prefix = stage_prefix("app")
    return any(name.startswith(prefix) and not name.endswith("probe") for name in target.tables())
