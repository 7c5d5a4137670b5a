"""Runs a soak: six stages of load and faults, each followed by a comparison of both targets."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import plan
from .plan import CHANGES, QUERIES, RECORDS, STAGES, Faults
from .stage import Load, Stage, wait_until
from .targets import beat, counted, differences_of_sums, differences_of_table
from .watch import Series, Watch

_CATCH_UP_S = 900.0
# Caught up: what is missing was written in the last seconds.
_NEAR_S = 15.0
_BEGIN_S = 900.0
_END_S = 90.0


@dataclass
class Comparison:
    """Of both targets after a stage."""

    at_s: float
    caught_up_s: dict[str, float]
    rows: dict[str, int]
    changes: int
    records: int
    faults: list[str]


@dataclass
class CatchUp:
    """After a driver was away.

    Parameters
    ----------
    away_s : float
    first_commit_s : float
        From the start of the program.
    seconds : float
        From the start of the program until only the last seconds were missing; NaN: not within the limit.
    missed, written : int
        Rows written while it was away, and then until it had caught up.
    saw_backlog : bool
        Whether the query said that it processes backlog.
    """

    away_s: float
    missed: int
    first_commit_s: float = float("nan")
    seconds: float = float("nan")
    written: int = 0
    saw_backlog: bool = False


@dataclass
class Result:
    """What a run has found."""

    series: Series = field(default_factory=Series)
    comparisons: list[Comparison] = field(default_factory=list)
    catch_ups: dict[str, CatchUp] = field(default_factory=dict)
    struck: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    written_s: float = 0.0
    lives: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    ended: dict[str, list[str]] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    processor_s: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Soak:
    """One run.

    Parameters
    ----------
    root : Path
    load : Load
    stage_s : float
        Seconds of a stage.
    say : callable
        Takes a line for the log.
    show : callable
        Takes a line for the terminal.
    """

    def __init__(
        self, root: Path, load: Load, stage_s: float, say: Callable[[str], None], show: Callable[[str], None]
    ) -> None:
        self._root, self._load, self._stage_s = root, load, stage_s
        self._say, self._show = say, show
        self.result = Result()
        self._logged = 0.0
        self._began = time.monotonic()

    def _now(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> Result:
        """All of it. Faults are in the result; all processes have ended."""
        result = self.result
        with contextlib.closing(Stage(self._root, self._load)) as stage:
            self._stage = stage
            for driver in stage.drivers.values():
                driver.start()
            self._began = time.monotonic()
            each_s = min(5.0, max(1.0, self._stage_s / 60))
            watch = Watch(stage, result.series, self._now, each_s, max(60.0, self._stage_s / 5))
            self._watch = watch
            try:
                faults = Faults(self._load.seed, self._stage_s)
                wait_until("the first commits", lambda: self._have_begun(), self._tend, _BEGIN_S)
                self._say("both queries have begun")
                for number in range(STAGES):
                    self._one(number, faults)
                    if result.faults:
                        break
            except (TimeoutError, RuntimeError) as error:
                result.faults.append(f"{type(error).__name__}: {error}")
            finally:
                watch.close()
                self._finish()
        return result

    def _have_begun(self) -> bool:
        return beat(self._stage.drivers[CHANGES].target) is not None and (
            counted(self._stage.drivers[RECORDS].target) >= self._load.before
        )

    def _one(self, number: int, faults: Faults) -> None:
        """A stage, and its comparison."""
        result, stage = self.result, self._stage
        end = time.monotonic() + self._stage_s
        began = time.monotonic()
        for writer in stage.writers.values():
            writer.order("go")
        for query in QUERIES:
            if plan.is_away(query, number):
                stage.drivers[query].kill()
                result.series.away[query] = (self._now(), self._now())
                result.catch_ups[query] = CatchUp(0.0, -self._written(query))
                self._say(f"the driver of {query} is away")
        for fault in faults.of(number):
            self._until(min(began + fault.after_s, end))
            self._strike(fault)
        self._until(end)
        for query in QUERIES:
            if plan.is_away(query, number):
                self._come_back(query)
        for writer in stage.writers.values():
            writer.order("pause")
        result.written_s += time.monotonic() - began
        self._compare()

    def _strike(self, fault: plan.Fault) -> None:
        at = self._now()
        did = self._stage.strike(fault)
        if did:
            self.result.struck[fault.kind] += 1
            self.result.series.faults.append((at, did))
            self._say(f"{did} ({self._now() - at:.1f} s)")

    def _come_back(self, query: str) -> None:
        """Start a driver that was away, and wait until it has caught up while writers go on."""
        result, driver, watch = self.result, self._stage.drivers[query], self._watch
        began_away, caught = result.series.away[query][0], result.catch_ups[query]
        back = self._now()
        result.series.away[query] = (began_away, back)
        caught.away_s = back - began_away
        caught.missed += self._written(query)
        at_start, began = self._written(query), time.monotonic()
        driver.start()
        points = result.series.of[query]["lag"]
        limit = _NEAR_S if query == CHANGES else _NEAR_S * self._load.records

        def is_near() -> bool:
            status = driver.status()
            caught.saw_backlog |= bool(status.get("backlog"))
            if status.get("commits") and caught.first_commit_s != caught.first_commit_s:
                caught.first_commit_s = time.monotonic() - began
            return bool(status.get("commits")) and points[-1][0] > back and points[-1][1] < limit

        with contextlib.suppress(TimeoutError):
            caught.seconds = wait_until("the catch-up", is_near, self._tend, max(self._stage_s, 120.0))
        caught.written = self._written(query) - at_start
        self._say(f"{query}: back after {caught.away_s:.0f} s, caught up in {caught.seconds:.0f} s, {caught}")
        if watch.error:
            raise RuntimeError(f"no more samples: {watch.error!r}")

    def _written(self, query: str) -> int:
        return int(self._stage.writers[query].counts.get(query, 0))

    def _compare(self) -> None:
        """Wait until both targets have all, and compare them."""
        stage, result, began = self._stage, self.result, time.monotonic()
        last = stage.writers[CHANGES].order("pause")["beat"]
        sent = stage.writers[RECORDS].order("pause")["records"]
        took: dict[str, float] = {}

        def are_there() -> bool:
            changes, records = stage.drivers[CHANGES].target, stage.drivers[RECORDS].target
            if CHANGES not in took and (beat(changes) or 0) >= last:
                took[CHANGES] = time.monotonic() - began
            if RECORDS not in took and counted(records) >= sent + self._load.before:
                took[RECORDS] = time.monotonic() - began
            return len(took) == len(QUERIES)

        wait_until("the end of what was written", are_there, self._tend, _CATCH_UP_S)
        found = [
            *(f"{CHANGES}: {one}" for one in differences_of_table(stage.primary, stage.drivers[CHANGES].target)),
            *(f"{RECORDS}: {one}" for one in differences_of_sums(self._load, sent, stage.drivers[RECORDS].target)),
        ]
        rows = {CHANGES: int(stage.primary.execute("SELECT COUNT(*) FROM soak.t")[0][0]), RECORDS: self._load.sums}
        done = Comparison(self._now(), took, rows, self._written(CHANGES), sent, found)
        result.comparisons.append(done)
        result.faults += found
        told = ", ".join(f"{query} after {seconds:.1f} s" for query, seconds in took.items())
        self._say(
            f"compared: {'DIFFERENT' if found else 'equal'}; {rows[CHANGES]:,} rows, {done.changes:,} changes, "
            f"{sent:,} records; all there: {told}"
        )

    def _until(self, end: float) -> None:
        while time.monotonic() < end:
            self._tend()
            time.sleep(min(0.5, max(0.0, end - time.monotonic())))

    def _tend(self) -> None:
        """What is done all the time: drivers that have ended are started, and lines are shown."""
        for query in QUERIES:
            driver, before = self._stage.drivers[query], len(self._stage.drivers[query].ended)
            driver.go_on()
            if len(driver.ended) > before:
                self.result.series.faults.append((self._now(), f"{query} ended by itself"))
                self._say(f"{query} ended by itself: {driver.ended[-1][:300]}")
        told = (
            f"{self._written(CHANGES):,} changes, {self._written(RECORDS):,} records, "
            f"lag {self._watch.lag(CHANGES) or 0:.1f} s and {self._watch.lag(RECORDS) or 0:,.0f} records, "
            f"{sum(self.result.struck.values())} faults, {len(self.result.comparisons)} comparisons"
        )
        self._show(told)
        if self._now() - self._logged >= 60:
            self._logged = self._now()
            self._say(told)

    def _finish(self) -> None:
        result = self.result
        result.seconds = self._now()
        for query, driver in self._stage.drivers.items():
            driver.kill()
            with contextlib.suppress(TimeoutError):
                wait_until("the end of all workers", lambda d=driver: not d.left(), lambda: None, _END_S)
            if left := driver.left(kill=True):
                result.faults.append(f"{query}: {left} processes are left of drivers that were killed")
            result.lives[query] = [(a - self._began, b - self._began) for a, b in driver.lives]
            result.ended[query] = driver.ended
            result.commits[query], result.restarts[query] = driver.commits, driver.restarts
