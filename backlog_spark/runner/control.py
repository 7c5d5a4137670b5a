"""The control source: sends watermarks, due timers and record attributes to every key group.

It is a small Python source beside the seeds of each operator that needs time. Its offsets hold what it sent, so a
replayed batch gets the same. It asks the query's runner for news over a loopback connection. That also wakes a query
whose other sources are idle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from backlog_spark.common.gc_tuning import keep_imports
from backlog_spark.common.loopback import LoopbackLine, LoopbackServer
from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import END_OF_TIME, MIN_WATERMARK, Watermark
from backlog_spark.state.seeds import SEED_SCHEMA, Control, packed_control
from backlog_spark.state.store import AT_EVERY_TICK, NEVER

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Clerk", "ControlDataSource", "ControlServer"]

# How often at most timers that go by the clock are looked after: a batch each time.
_TICK_MS = 100
# In an offset: when a batch was made in which nobody is told anything.
_WOKEN = "woken"


@dataclass
class _Known:
    """What an operator has reported."""

    next_event: int = NEVER
    next_processing: int = 0
    """0: what is due after a start is not known before the key groups have been asked."""
    is_firing: bool = False
    budget: int | None = None


class Clerk:
    """What there is to tell, kept by the runner between batches (pure but for the clock).

    Parameters
    ----------
    clock : callable
        Milliseconds since 1970.
    """

    def __init__(self, *, clock: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._watermarks: Callable[[], Mapping[str, Watermark]] = dict
        self._backlog: dict[str, int] = {}
        self._holding = True
        self._woken: int | None = None
        self._lock = threading.Lock()

    def tell(self, *, watermarks: Callable[[], Mapping[str, Watermark]], backlog: Mapping[str, int]) -> None:
        """Set what is told from the next batch on.

        Parameters
        ----------
        watermarks : callable
            Gives each operator's watermark, as of now; those that are left out are told none.
        backlog : mapping of str to int
            Each operator's record attributes, as in `backlog_spark.operators.fold.Clock`.
        """
        with self._lock:
            self._holding = False
            self._watermarks, self._backlog = watermarks, dict(backlog)

    def report(
        self, operator: str, *, next_event: int, next_processing: int, is_firing: bool, budget: int | None
    ) -> None:
        """What an operator's key groups have left to fire after a batch.

        Parameters
        ----------
        operator : str
        next_event, next_processing : int
            When the next timers are due.
        is_firing : bool
            Whether timers are left that the watermark has made due: they go on at once, and time stands still.
        budget : int or None
            How many timers a key group may fire in the next batch; None: all.
        """
        with self._lock:
            self._known[operator] = _Known(next_event, next_processing, is_firing, budget)

    def begin(self, budgets: Mapping[str, int | None]) -> None:
        """A run starts: what key groups reported before may have been taken back with its last batch.

        Parameters
        ----------
        budgets : mapping of str to int or None
            How many timers a key group of each operator may fire in the first batch.
        """
        with self._lock:
            self._known = {name: _Known(budget=budget) for name, budget in budgets.items()}

    def hold(self, *, wakes: bool = False) -> None:
        """Report nothing new, for runs without a control-source consumer.

        Parameters
        ----------
        wakes : bool
            Whether there is to be a batch, though no rows may come.
        """
        with self._lock:
            self._holding = True
            self._woken = self._clock() if wakes else None

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
        with self._lock:
            if self._holding:
                return dict(start) if self._woken is None else {**start, _WOKEN: self._woken}
            known, now = self._known.get(operator, _Known()), self._clock()
            offset = {**start, "isBacklog": self._backlog.get(operator, start["isBacklog"])}
            if known.is_firing:
                # Not the same offset as before, or there would be no batch.
                offset["firing"] = (start.get("firing") or 0) + 1
            else:
                offset["firing"] = None
                offset["watermark"] = self._reached(operator, start["watermark"], known, now, at_once=at_once)
            # Rows that wait for the end of a backlog are looked at when that is told.
            is_new = offset["isBacklog"] != start["isBacklog"] and known.next_processing <= AT_EVERY_TICK
            if is_new or self._ticks(start["now"], known, now, at_once=at_once):
                offset["now"] = now
            if known.is_firing or (offset["watermark"], offset["now"]) != (start["watermark"], start["now"]):
                offset["budget"] = known.budget
            elif offset["isBacklog"] == start["isBacklog"]:
                return dict(start)
            return {**offset, "at": now}

    def _reached(self, operator: str, before: int | None, known: _Known, now: int, *, at_once: bool) -> int | None:
        """The watermark that an operator is told."""
        found = self._watermarks().get(operator)
        if found is None:
            return before
        reached = found.at(now)
        # By the clock time goes on all the while: it is told when something is due, and not more often than it ticks.
        by_clock = found.use_processing_time and reached < END_OF_TIME and before is not None
        is_unknown = known.next_processing == 0
        if by_clock and not is_unknown and (now - (before or 0) < _TICK_MS or known.next_event > now or at_once):
            return before
        if reached == MIN_WATERMARK or (before is not None and reached <= before):
            return before
        return reached

    @staticmethod
    def _ticks(before: int | None, known: _Known, now: int, *, at_once: bool) -> bool:
        """Whether an operator is told the time, for its processing-time timers."""
        # Those that were due already and are still left have been interrupted.
        is_left = known.budget is not None and before is not None and AT_EVERY_TICK < known.next_processing <= before
        due = known.next_processing <= now and (is_left or now - (before or 0) >= _TICK_MS)
        return due and not (at_once and known.next_processing and before and not is_left)


class ControlServer(LoopbackServer):
    """Lets control sources ask a `Clerk`."""

    def __init__(self, clerk: Clerk) -> None:
        super().__init__(lambda asked: clerk.answer(asked["operator"], asked["start"], at_once=asked["atOnce"]))

    @property
    def options(self) -> dict[str, str]:
        """What a source needs to reach it."""
        return {"port": str(self.port), "token": self.token}


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
        self._line = LoopbackLine(int(options["port"]), options["token"])
        self._at_once = False

    def initialOffset(self) -> dict[str, Any]:
        return {"watermark": None, "now": None, "isBacklog": None, "firing": None, "budget": None, "at": None}

    def prepareForTriggerAvailableNow(self) -> None:
        self._at_once = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        asked = {"operator": self._options["operator"], "start": start, "atOnce": self._at_once}
        try:
            return self._line.ask(asked)
        except (EOFError, OSError) as error:
            raise BacklogError(
                f"The query's runner does not answer on 127.0.0.1:{self._options['port']}: {error}",
                "It has ended, or the machine forbids connections to itself. Start the query again.",
            ) from None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if {**start, _WOKEN: None} == {**end, _WOKEN: None}:
            return []
        control = Control(
            watermark=Control.watermark if end["watermark"] is None else end["watermark"],
            now=end["now"] if end["now"] != start["now"] else None,
            backlog=end["isBacklog"],
            budget=end["budget"],
            at=end.get("at"),
        )
        return [_Message(int(self._options["keygroups"]), control)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Message)
        keep_imports()
        yield packed_control(partition.groups, partition.control)
