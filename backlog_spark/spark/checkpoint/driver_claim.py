"""Lets only the newest driver of a checkpoint go on.

A driver writes a claim before it reads the checkpoint. Its number is above those of all claims that exist:

    <checkpoint>/backlog/drivers/<number>-<uuid>.json

A driver whose claim is gone, or is not the newest, is fenced: its query ends. It looks before each batch that it writes
and every `LOOK_S` seconds, and removes its claim when the query has ended. The newer driver waits for that, up to
`_WAIT_S` seconds. It does not wait for a process of the same machine that is known to be dead.

Spark alone is not enough. It fails if an entry of its logs exists already, but only HDFS checks that and renames in one
step. On a local disk and on S3 two drivers that plan at the same moment can both write. Two queries with the same
interval do plan at the same moment. Claims have unique names, so they need nothing but a listing that is up to date.

A driver that is paused for longer than the wait may still finish the batch that it had begun. The newer driver replays
that batch from the same entry of Spark's log, and a sink takes a batch once.

One case is left, except on HDFS: such a driver wakes up just when the newer one logs a batch, and replaces its entry
before it finds out. `tests/spark/test_driver_interleavings.py` goes through every order of two drivers' steps.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import socket
import uuid
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from backlog_spark.spark.checkpoint.logs import Checkpoint

__all__ = ["DIRECTORY", "LOOK_S", "DriverClaim", "NewerDriver", "is_dead", "newest_claim", "runs"]

LOOK_S = 3.0
"""How often a running query looks for a newer driver. Each time it lists one directory."""

# An older driver needs `LOOK_S` to notice, and some time to stop its query.
_WAIT_S = 10.0
_PAUSE_S = 0.1
DIRECTORY = "backlog/drivers"
_FORM = re.compile(r"(\d+)-([0-9a-f]{32})\.json")

_KEYS = {"pid", "host", "at"}

Claim = tuple[int, str]
"""Number and UUID. The greatest one is the newest."""


class NewerDriver(BacklogError):
    """Another driver has started a query on the same checkpoint. This one must not write any more.

    Parameters
    ----------
    location : str
        The checkpoint.
    other : str
        Which driver; empty if unknown.
    """

    def __init__(self, location: str, other: str) -> None:
        self.location, self.other = location, other
        super().__init__(
            f"Another driver has started a query on the checkpoint {location}{other}. This query has ended.",
            "Run one driver at a time on a checkpoint: stop one of the two jobs, or give it a checkpointLocation of "
            "its own.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.location, self.other))


class DriverClaim:
    """This driver's claim on a checkpoint.

    Parameters
    ----------
    checkpoint : Checkpoint
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._mine: Claim | None = None
        self._first_batch: int | None = None  # of the run that was decided last, until it has begun

    def take(self) -> None:
        """Become the newest driver, and wait until older ones have ended. Called before the checkpoint is read.

        Raises
        ------
        NewerDriver
            If another driver starts meanwhile.
        """
        self._checkpoint.make_directory(DIRECTORY)
        mine = max((number for number, _ in self._claims()), default=-1) + 1, uuid.uuid4().hex
        self._checkpoint.write_metadata(_name(mine), _who())
        self._mine = mine
        limit = monotonic() + _WAIT_S
        while True:
            self.check()
            older = [claim for claim in self._claims() if claim < mine]
            if monotonic() > limit or all(self._is_dead(claim) for claim in older):
                break
            sleep(_PAUSE_S)
        for claim in older:
            self._delete(claim)

    def check(self) -> None:
        """Check that this driver is the newest. No effect before `take`.

        Raises
        ------
        NewerDriver
            If it is not.
        """
        if self._mine is None:
            return
        there = self._claims()
        newest = max([*there, self._mine])
        if newest != self._mine or self._mine not in there:
            raise NewerDriver(self._checkpoint.location, self._described(newest))

    def run_begins(self, first_batch: int) -> None:
        """Told before each run with which batch it begins, by the logs from which the run was decided."""
        self._first_batch = first_batch

    def check_batch(self, batch_id: int) -> None:
        """Check that this driver may write a batch. Called before anything of it is written.

        Raises
        ------
        NewerDriver
            If another driver has started on the checkpoint.
        BacklogError
            If an older one, paused for long, has committed a batch since this run was decided.
        """
        self.check()
        decided, self._first_batch = self._first_batch, None
        if decided is not None and batch_id != decided:
            raise BacklogError(
                f"Another driver has committed batch {decided} meanwhile.", "Run one driver at a time on a checkpoint."
            )

    def release(self) -> None:
        """Remove the claim. Called when the query has ended."""
        mine, self._mine = self._mine, None
        if mine is not None:
            self._delete(mine)

    def _delete(self, claim: Claim) -> None:
        self._checkpoint.delete(f"backlog/{_name(claim)}.json")

    def _claims(self) -> list[Claim]:
        names = self._checkpoint.names_in(DIRECTORY)
        return [(int(found[1]), found[2]) for name in names if (found := _FORM.fullmatch(name))]

    def _described(self, claim: Claim) -> str:
        if claim == self._mine:
            return f", or {DIRECTORY} was removed from it"
        who = self._read(claim)
        return f" (process {who['pid']} on {who['host']}, {who['at']})" if who and who.keys() >= _KEYS else ""

    def _is_dead(self, claim: Claim) -> bool:
        """Whether the process of an older claim is known not to run its query any more."""
        who = self._read(claim)
        # Without a claim it has ended. This process runs one query at a time on a checkpoint.
        return who is None or is_dead(who, by=os.getpid())

    def _read(self, claim: Claim) -> dict[str, Any] | None:
        """Who made a claim. None without the claim; {} if its machine stopped before it was on the disk."""
        try:
            return self._checkpoint.read_metadata(_name(claim))
        except BacklogError:
            return {}


def is_dead(who: Mapping[str, Any], *, by: int | None = None) -> bool:
    """Whether the process that wrote a claim is known not to run its query any more. False for another machine's.

    Also False if the claim does not say which process it is: it was cut off, or is another version's.

    Parameters
    ----------
    by : int, optional
        A process whose earlier claims count as dead: the one that makes a new claim.
    """
    found = runs(who)
    return found is not None and (not found or who["pid"] == by)


def runs(who: Mapping[str, Any]) -> bool | None:
    """Whether the process that wrote a claim runs; None if that is unknown, as on another machine."""
    if who.get("machine") is None or who["machine"] != _machine() or type(who.get("pid")) is not int:
        return None
    return _runs(who["pid"])


def newest_claim(names: Iterable[str]) -> str | None:
    """The file of the newest claim among the files of `DIRECTORY`; None without one."""
    claims = [(int(found[1]), found[2], name) for name in names if (found := _FORM.fullmatch(name))]
    return max(claims)[2] if claims else None


def _name(claim: Claim) -> str:
    """As `Checkpoint.read_metadata` takes it."""
    return f"drivers/{claim[0]}-{claim[1]}"


def _who() -> dict[str, Any]:
    at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return {"version": 1, "pid": os.getpid(), "host": socket.gethostname(), "machine": _machine(), "at": at}


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError, OverflowError):
        return False
    except PermissionError:
        return True  # another user's
    return state not in "ZX"  # dead, and its parent has not asked for its status


def _machine() -> str | None:
    """Where process ids are comparable: one start of one machine, one container. None if it is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None
