"""Where progress is shown: drawn over on a terminal, updated in place in a notebook, or in a log."""

from __future__ import annotations

import html
import importlib.util
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TextIO

__all__ = ["Output", "bar", "output_for"]

_WIDTH = 24
_EVERY_S = 60.0
"""How long a log waits for its next line. A backlog in one commit may take hours."""


def bar(share: float) -> str:
    """A bar and its percentage, for a share from 0 to 1.

    Examples
    --------
    >>> bar(0.25)
    '[######                  ]  25%'
    """
    return f"[{('#' * int(share * _WIDTH)).ljust(_WIDTH)}] {share:4.0%}"


class Output(ABC):
    """Shows lines. `say` may be called by any thread, the others by one."""

    @abstractmethod
    def show(self, lines: Sequence[str], commits: int) -> None:
        """Show these lines instead of the last ones. ``commits``: how many there were."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Print a line that stays."""

    @abstractmethod
    def close(self) -> None:
        """Called once, at the end."""


def output_for(out: TextIO, *, is_default: bool, force: bool) -> Output | None:
    """The output for a file object; None if nothing is to be shown.

    Parameters
    ----------
    is_default : bool
        The user has not chosen ``out``: in a notebook its cell is used.
    force : bool
        Show lines also in a log.
    """
    shell = _notebook() if is_default else None
    if shell is not None:
        return _Notebook()
    if out.isatty() and importlib.util.find_spec("rich") is not None:
        return _Terminal(out)
    return _Lines(out) if force or out.isatty() else None


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

    def show(self, lines: Sequence[str], commits: int) -> None:
        from rich.text import Text

        # A cut line is readable, two half lines are not.
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

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

    def show(self, lines: Sequence[str], commits: int) -> None:
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
    """Prints the lines after each commit, and now and then while a long batch runs."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._commits = -1
        self._lines: Sequence[str] = ()
        self._printed = 0.0

    def show(self, lines: Sequence[str], commits: int) -> None:
        now = time.monotonic()
        is_due = now - self._printed >= _EVERY_S and list(lines) != list(self._lines)
        if commits != self._commits or is_due:
            self._commits, self._lines, self._printed = commits, lines, now
            for line in lines:
                self.say(line)

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def close(self) -> None:
        """Nothing is open."""
