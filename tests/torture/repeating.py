"""A thread that does something random again and again."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections import Counter
from typing import Any

LATER = {1205, 1213, 1317}
"""Errors of a statement that may succeed later: lock timeout, deadlock, interrupted."""


class Repeating(ABC):
    """A thread that does something random again and again, with pauses, until stopped.

    Attributes
    ----------
    limit : float or None
        It waits when it has acted so often, until this is raised.
    """

    def __init__(self, seed: int, pause: float) -> None:
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.limit: float | None = None
        self._pause = pause
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)

    @abstractmethod
    def act(self) -> None:
        """Do it once."""

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        acts = 0
        try:
            while not self._stop.wait(self._pause * 2 * self.chance.random()):
                if self.limit is None or acts < self.limit:
                    acts += 1
                    self.act()
        except BaseException as error:
            self._failed.append(error)
