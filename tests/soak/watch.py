"""Takes samples while a soak runs: memory, threads, descriptors, files, counts and lag of both queries."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from .flat import Point
from .plan import CHANGES, QUERIES, RECORDS
from .samples import Sample
from .stage import Stage
from .targets import beat, counted, tidy

_DISK_EACH = 3
"""Files are counted at every third sample."""


@dataclass
class Series:
    """All that was measured.

    Parameters
    ----------
    of : dict
        By query and name, the points (seconds since the beginning, value).
    faults : list of (seconds, what)
    away : dict
        By query, from when to when its driver was stopped.
    """

    of: dict[str, dict[str, list[Point]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    faults: list[tuple[float, str]] = field(default_factory=list)
    away: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, query: str, at: float, sample: Sample) -> None:
        """Points of one moment."""
        for name, value in sample.items():
            self.of[query][name].append((at, value))


class Watch:
    """A thread that samples until it is stopped.

    Parameters
    ----------
    stage : Stage
    series : Series
        Gets the points.
    now : callable
        Seconds since the beginning.
    each_s, tidy_each_s : float
        Between two samples, and between two removals of old files.
    """

    def __init__(
        self, stage: Stage, series: Series, now: Callable[[], float], each_s: float, tidy_each_s: float
    ) -> None:
        self._stage, self._series, self._now = stage, series, now
        self._each_s, self._tidy_each_s = each_s, tidy_each_s
        self._stop = threading.Event()
        self._samples = 0
        self._tidied = time.monotonic()
        self.error: BaseException | None = None
        self.is_paused = False
        """No files are removed meanwhile."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def lag(self, query: str) -> float | None:
        """The newest: seconds of the changes, records of the sums."""
        points = self._series.of[query].get("lag", [])
        return points[-1][1] if points else None

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._each_s):
                self._sample()
        except BaseException as error:
            self.error = error

    def _sample(self) -> None:
        at, stage, series = self._now(), self._stage, self._series
        sums_of = stage.writers[RECORDS].counts.get("records", 0)
        seen, sums = beat(stage.drivers[CHANGES].target), counted(stage.drivers[RECORDS].target)
        behind = max(0, sums_of + stage.load.before - sums)
        written = stage.writers[CHANGES].counts.get("changes", 0)
        series.add(CHANGES, at, {"written": written, "load": os.getloadavg()[0]})
        series.add(RECORDS, at, {"written": sums_of, "lag": behind})
        if seen is not None:
            series.add(CHANGES, at, {"lag": max(0.0, time.time() - seen / 1000)})
        for query in QUERIES:
            driver = stage.drivers[query]
            series.add(query, at, driver.sample())
            status = driver.status() if driver.is_running else {}
            if status:
                series.add(query, at, {"backlog": float(status["backlog"])})
            if self._samples % _DISK_EACH == 0:
                series.add(query, at, driver.disk())
            if time.monotonic() - self._tidied > self._tidy_each_s and not self.is_paused:
                tidy(driver.target)
        if time.monotonic() - self._tidied > self._tidy_each_s:
            self._tidied = time.monotonic()
        self._samples += 1
