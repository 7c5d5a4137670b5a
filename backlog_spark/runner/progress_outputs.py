"""Where progress is shown: drawn over on a terminal, updated in place in a notebook, or in a log."""

from __future__ import annotations

import contextlib
import html
import importlib.util
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TextIO

__all__ = ["Output", "bar", "is_terminal", "output_for"]

_WIDTH = 24
_EVERY_S = 60.0
"""How long a log waits for its next line. A backlog in one commit may take hours."""


def bar(share: float, width: int = _WIDTH) -> str:
    """A bar and its percentage, for a share from 0 to 1.

    Examples
    --------
    >>> bar(0.25)
    '[######                  ]  25%'
    """
    return f"[{('#' * int(share * width)).ljust(width)}] {share:4.0%}"


class Output(ABC):
    """Shows lines. `say` may be called by any thread, the others by one."""

    is_drawn: ClassVar[bool] = True
    """Whether lines replace each other. A log keeps them all, so it gets few."""

    @property
    def width(self) -> int | None:
        """Most characters of a line; None: any number."""
        return None

    @abstractmethod
    def show(self, lines: Sequence[str], news: object) -> None:
        """Show these lines instead of the last ones. A log prints them at once if ``news`` is not equal to the last."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Print a line that stays."""

    @abstractmethod
    def close(self) -> None:
        """Called once, at the end."""


def output_for(out: TextIO, *, is_default: bool) -> Output:
    """The output for a file object. ``is_default``: the user has not chosen it, so in a notebook it is the cell."""
    if is_default and _notebook() is not None:
        return _Notebook()
    if is_terminal(out) and importlib.util.find_spec("rich") is not None:
        return _Terminal(out)
    return _Lines(out)


def is_terminal(out: TextIO | None) -> bool:
    """Whether a file object is a terminal. One that is closed, or None, is none."""
    try:
        return out is not None and out.isatty()
    except ValueError:
        return False


def _notebook() -> Any:
    """Jupyter's shell, if this process is its kernel. IPython is never imported for it."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if shell is not None and hasattr(shell, "kernel") else None


class _Terminal(Output):
    """Draws over its lines. What the program prints meanwhile stands above them."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=out)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    @property
    def width(self) -> int:
        return self._console.width

    def show(self, lines: Sequence[str], news: object) -> None:
        from rich.text import Text

        # A cut line is readable, two half lines are not.
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)
        # Spark's JVM writes its warnings from the cursor on: over this line and not behind it.
        self._console.file.write("\r")
        self._console.file.flush()

    def say(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text))

    def close(self) -> None:
        self._live.stop()


class _Notebook(Output):
    """One display of the cell that was last run, without widgets."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._said: list[str] = []
        self._lines: Sequence[str] = ()
        self._is_shown = False

    def show(self, lines: Sequence[str], news: object) -> None:
        with self._lock:
            if list(lines) != list(self._lines):
                self._lines = lines
                self._draw()

    def say(self, text: str) -> None:
        with self._lock:
            self._said.append(text)
            self._draw()

    def close(self) -> None:
        """The last lines stay."""

    def _draw(self) -> None:
        from IPython import display

        text = html.escape("\n".join([*self._said, *self._lines]))
        made = display.HTML(f'<pre role="status" style="white-space: pre-wrap">{text}</pre>')
        if self._is_shown:
            display.update_display(made, display_id=self._id)
        else:
            display.display(made, display_id=self._id)
        self._is_shown = True


class _Lines(Output):
    """Prints the lines when there is news, and once a minute."""

    is_drawn = False

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._news: object = None
        self._lines: Sequence[str] = ()
        self._printed = 0.0

    def show(self, lines: Sequence[str], news: object) -> None:
        now = time.monotonic()
        is_due = now - self._printed >= _EVERY_S and list(lines) != list(self._lines)
        if news != self._news or is_due:
            self._news, self._lines, self._printed = news, lines, now
            for line in lines:
                self.say(line)

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # whoever read it is gone: the query goes on
            print(text, file=self._out, flush=True)

    def close(self) -> None:
        """Nothing is open."""
