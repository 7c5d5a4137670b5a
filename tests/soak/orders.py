"""How a writer, a process of its own, is told what to do: a line of JSON for each order and each answer."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
_ANSWER_S = 180.0
_TELL_EACH_S = 1.0


class Orders:
    """The writer's side: orders from standard input, answers to standard output."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._told = 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._orders.put(json.loads(line))
        self._orders.put(None)

    def serve(self, orders: dict[str, Callable[[Answer], Answer]], work: Callable[[], None]) -> None:
        """Carry out orders, and work between them while not paused, until standard input ends."""
        paused = True
        while True:
            try:
                order = self._orders.get(timeout=0.2) if paused else self._orders.get_nowait()
            except queue.Empty:
                if not paused:
                    work()
                continue
            if order is None:
                return
            name = order["order"]
            if name in ("go", "pause"):
                paused = name == "pause"
            answer = orders.get(name, lambda _: {})(order)
            _say({"to": name, **answer})

    def tell(self, **counts: Any) -> None:
        """Say how far the writer is, once a second."""
        if time.monotonic() - self._told >= _TELL_EACH_S:
            self._told = time.monotonic()
            _say({"to": "", **counts})


def _say(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class Writer:
    """The other side: starts the process, gives orders, and remembers how far it said it was."""

    def __init__(self, module: str, given: dict[str, Any], log: Path) -> None:
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"tests.soak.{module}", json.dumps(given)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True, start_new_session=True,
                cwd=Path(__file__).parents[2],
            )  # fmt: skip
        self._log = log
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self.counts: Answer = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            to = answer.pop("to")
            self.counts = {**self.counts, **answer}
            if to:
                self._answers.put(answer)
        self._answers.put(None)

    def order(self, name: str, **more: Any) -> Answer:
        """Give an order, and wait until it is carried out.

        Raises
        ------
        RuntimeError
            The writer has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"order": name, **more}) + "\n")
            self._process.stdin.flush()
            answer = self._answers.get(timeout=_ANSWER_S)
        except (BrokenPipeError, queue.Empty):
            answer = None
        if answer is None:
            raise RuntimeError(f"a writer has ended: {self._log.read_text()[-2000:]}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
