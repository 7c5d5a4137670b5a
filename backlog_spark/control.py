"""The control source: tells every key group of watermarks, of due timers and of the rows' attributes.

A small Python source beside the seeds of each operator that needs time. What it told is in Spark's offset log, so a
replayed batch is told the same. It asks the query's runner, over a loopback connection, what there is to tell; that
also wakes a query whose other sources are idle.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from backlog_spark.errors import BacklogError
from backlog_spark.state.seeds import SEED_SCHEMA, Control, packed_control
from backlog_spark.state.store import NEVER

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Clerk", "ControlDataSource", "ControlServer", "GroupReports"]

# How often at most processing-time timers are looked after: a batch each time.
_TICK_MS = 100

Report = dict[tuple[str, int], tuple[int, int]]


class GroupReports(AccumulatorParam[Report]):
    """Sums up what key groups report: when their next processing-time timer is due, and rows that were late."""

    def zero(self, value: Report) -> Report:
        return {}

    def addInPlace(self, value1: Report, value2: Report) -> Report:
        for group, (due, late) in value2.items():
            value1[group] = (due, value1.get(group, (0, 0))[1] + late)
        return value1


class Clerk:
    """What there is to tell, kept by the runner between batches (pure but for the clock).

    Parameters
    ----------
    has_timers : bool
        Whether any operator may have processing-time timers.
    clock : callable
        Milliseconds since 1970.
    """

    def __init__(self, *, has_timers: bool, clock: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._clock = clock
        # What is due after a start is not known before the key groups have been asked.
        self._has_timers = has_timers
        self._next_timer = 0 if has_timers else NEVER
        self._watermark: int | None = None
        self._backlog: dict[str, int] = {}
        self._holding = True
        self._lock = threading.Lock()

    def tell(self, *, watermark: int | None, next_timer: int | None, backlog: Mapping[str, int]) -> None:
        """Set what is told from the next batch on.

        Parameters
        ----------
        watermark : int or None
            None tells none.
        next_timer : int or None
            When the next processing-time timer is due; None leaves it.
        backlog : mapping of str to int
            Each operator's record attributes, as in `backlog_spark.operators.fold.Clock`.
        """
        with self._lock:
            self._holding = False
            self._watermark, self._backlog = watermark, dict(backlog)
            self._next_timer = self._next_timer if next_timer is None else next_timer

    def begin(self) -> None:
        """A run starts: what key groups reported before may have been taken back with its last batch."""
        with self._lock:
            self._next_timer = 0 if self._has_timers else NEVER

    def hold(self) -> None:
        """Tell nothing new: for runs in which nobody listens."""
        with self._lock:
            self._holding = True

    def answer(self, operator: str, start: Mapping[str, Any], *, at_once: bool) -> dict[str, Any]:
        """The offset after ``start``; the same if there is nothing new.

        Parameters
        ----------
        operator : str
        start : mapping
            What the operator was told last.
        at_once : bool
            For runs that end when all is read: timers that become due later are left alone.
        """
        offset = dict(start)
        with self._lock:
            if self._holding:
                return offset
            if self._watermark is not None and (start["watermark"] is None or self._watermark > start["watermark"]):
                offset["watermark"] = self._watermark
            backlog = self._backlog.get(operator)
            if backlog is not None:
                offset["isBacklog"] = backlog
            now = self._clock()
            due = self._next_timer <= now and now - (start["now"] or 0) >= _TICK_MS
            if due and not (at_once and self._next_timer and start["now"]):
                offset["now"] = now
        return offset


class ControlServer:
    """Lets control sources ask a `Clerk`, from processes on this machine that know the key."""

    def __init__(self, clerk: Clerk) -> None:
        self._clerk = clerk
        self._key = secrets.token_hex(16)
        self._listener = Listener(("127.0.0.1", 0), authkey=self._key.encode())
        self._address: tuple[str, int] = self._listener.address
        self._closing = False
        threading.Thread(target=self._accept, name="backlog-control", daemon=True).start()

    @property
    def options(self) -> dict[str, str]:
        """What a source needs to reach it."""
        return {"port": str(self._address[1]), "token": self._key}

    def close(self) -> None:
        """Stop listening; connections end with their sources."""
        self._closing = True
        # A thread that waits in accept() is not woken by a close.
        with contextlib.suppress(OSError), socket.create_connection(self._address):
            pass
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError):  # somebody who does not know the key, or `close`
                continue
            threading.Thread(target=self._serve, args=(connection,), name="backlog-control", daemon=True).start()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        with connection:
            while True:
                try:
                    asked = json.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    return
                answer = self._clerk.answer(asked["operator"], asked["start"], at_once=asked["atOnce"])
                connection.send_bytes(json.dumps(answer).encode())


class ControlDataSource(DataSource):
    """Options: port, token, operator, keyGroups."""

    @classmethod
    def name(cls) -> str:
        return "backlog_control"

    def schema(self) -> str:
        return SEED_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _ControlReader(dict(self.options))


class _Message(InputPartition):
    def __init__(self, groups: int, control: Control) -> None:
        self.groups, self.control = groups, control


class _ControlReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._connection: Connection[Any, Any] | None = None
        self._at_once = False

    def initialOffset(self) -> dict[str, Any]:
        return {"watermark": None, "now": None, "isBacklog": None}

    def prepareForTriggerAvailableNow(self) -> None:
        self._at_once = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        asked = {"operator": self._options["operator"], "start": start, "atOnce": self._at_once}
        try:
            if self._connection is None:
                address = ("127.0.0.1", int(self._options["port"]))
                self._connection = Client(address, authkey=self._options["token"].encode())
            self._connection.send_bytes(json.dumps(asked).encode())
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise BacklogError(
                f"The query's runner does not answer on 127.0.0.1:{self._options['port']}: {error}",
                "It has ended, or the machine forbids connections to itself. Start the query again.",
            ) from None
        return answer

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        control = Control(
            watermark=Control.watermark if end["watermark"] is None else end["watermark"],
            now=end["now"] if end["now"] != start["now"] else None,
            backlog=end["isBacklog"],
        )
        return [_Message(int(self._options["keygroups"]), control)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Message)
        yield packed_control(partition.groups, partition.control)
