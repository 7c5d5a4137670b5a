"""Claims of drivers on a checkpoint: the newest one counts, a dead one is not waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.spark.checkpoint import driver_claim
from backlog_spark.spark.checkpoint.driver_claim import DriverClaim, NewerDriver
from backlog_spark.spark.checkpoint.logs import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def checkpoint(spark: SparkSession, tmp_path: Path) -> Checkpoint:
    return Checkpoint(spark, str(tmp_path / "checkpoint with space"))


def claims(checkpoint: Checkpoint) -> list[str]:
    return checkpoint.names_in("backlog/drivers")


def left_by(checkpoint: Checkpoint, pid: int, machine: str | None) -> str:
    """A claim of another driver."""
    name = f"drivers/7-{'a' * 32}"
    who = {"version": 1, "pid": pid, "host": "there", "machine": machine, "at": "2026-01-01T00:00:00+00:00"}
    checkpoint.make_directory("backlog/drivers")
    assert checkpoint.write_metadata(name, who)
    return f"backlog/{name}.json"


def waits(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    monkeypatch.setattr(driver_claim, "sleep", lambda _: act())


def never() -> None:
    raise AssertionError("it waits")


def test_the_newest_claim_counts(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    waits(monkeypatch, never)  # a process runs one query at a time on a checkpoint
    first, second = DriverClaim(checkpoint), DriverClaim(checkpoint)
    first.check()
    first.take()
    first.check()
    second.take()
    second.check()
    with pytest.raises(NewerDriver, match=r"checkpoint with space \(process \d+ on .*Run one driver at a time"):
        first.check()
    first.release()
    first.release()
    second.check()
    second.release()
    assert claims(checkpoint) == []
    first.check()


def test_claims_at_the_same_moment(checkpoint: Checkpoint) -> None:
    for _ in range(5):
        drivers = [DriverClaim(checkpoint) for _ in range(4)]
        start, won = threading.Barrier(len(drivers)), []

        def run(driver: DriverClaim, start: threading.Barrier = start, won: list[DriverClaim] = won) -> None:
            start.wait()
            try:
                driver.take()
            except NewerDriver:
                driver.release()
                return
            won.append(driver)

        threads = [threading.Thread(target=run, args=(driver,)) for driver in drivers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left = []
        for driver in won:
            try:
                driver.check()
                left.append(driver)
            except NewerDriver:
                driver.release()
        assert len(left) == 1
        left[0].release()
        assert claims(checkpoint) == []


def test_a_dead_process_is_not_waited_for(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    waits(monkeypatch, never)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    for _ in ("its status is not asked for", "it is"):
        left_by(checkpoint, dead.pid, driver_claim._machine())
        claim = DriverClaim(checkpoint)
        claim.take()
        assert len(claims(checkpoint)) == 1
        claim.check()
        claim.release()
        dead.wait()


def test_a_running_driver_is_waited_for(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    name = left_by(checkpoint, 1, driver_claim._machine())
    waits(monkeypatch, lambda: checkpoint.delete(name))
    claim = DriverClaim(checkpoint)
    claim.take()
    claim.check()


@pytest.mark.parametrize(
    ("machine", "written"),
    [("another", None), (None, None), ("stopped before the claim was on its disk", ""), ("of another version", "{}"),
     ("without its pid", json.dumps({"version": 1, "machine": driver_claim._machine()}))],
)  # fmt: skip
def test_a_driver_of_another_machine_is_waited_for_a_while(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, machine: str | None, written: str | None
) -> None:
    name = left_by(checkpoint, 2**30, machine)
    if written is not None:
        checkpoint.write_file(name, written)
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(driver_claim, "monotonic", lambda: next(clock))
    pauses: list[None] = []
    waits(monkeypatch, lambda: pauses.append(None))
    claim = DriverClaim(checkpoint)
    claim.take()
    assert pauses
    assert checkpoint.read_file(name) is None, "it is fenced when it comes back"
    claim.check()


def test_a_driver_that_waits_can_be_overtaken(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    left_by(checkpoint, 1, driver_claim._machine())
    later = DriverClaim(checkpoint)

    def overtake() -> None:
        waits(monkeypatch, lambda: checkpoint.delete(f"backlog/drivers/7-{'a' * 32}.json"))
        later.take()

    waits(monkeypatch, overtake)
    with pytest.raises(NewerDriver):
        DriverClaim(checkpoint).take()
    later.check()


def test_without_its_claim_a_driver_is_fenced(checkpoint: Checkpoint) -> None:
    claim = DriverClaim(checkpoint)
    claim.take()
    checkpoint.delete("backlog/drivers")
    with pytest.raises(NewerDriver, match="or backlog/drivers was removed"):
        claim.check()


def test_a_newer_claim_that_does_not_say_whose_it_is(checkpoint: Checkpoint) -> None:
    claim = DriverClaim(checkpoint)
    claim.take()
    checkpoint.write_file(left_by(checkpoint, 1, None), json.dumps({"version": 9}))
    with pytest.raises(NewerDriver, match="Another driver has started"):
        claim.check()
