"""Ctrl-C while a program waits for queries: they end after their running batch, with a second Ctrl-C at once.

PySpark's own handler cancels all jobs. The running batch fails then, and the query would be restarted.
"""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

__all__ = ["ending_on_interrupt"]

# Queries that Ctrl-C ends, until a wait has raised its KeyboardInterrupt. A wait with a timeout may return before.
_interrupted: weakref.WeakSet[Any] = weakref.WeakSet()


class _Query(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def isActive(self) -> bool: ...
    @property
    def isEnding(self) -> bool: ...
    @property
    def showsProgress(self) -> bool: ...
    @property
    def summary(self) -> str: ...
    def exception(self) -> BaseException | None: ...
    def stop(self, *, after_batch: bool = False) -> None: ...


@contextmanager
def ending_on_interrupt(*queries: _Query, signals: Sequence[signal.Signals] = (signal.SIGINT,)) -> Iterator[None]:
    """Let Ctrl-C end queries while the block waits for them.

    The first one lets each query end after its running batch, and says so on stderr. The block goes on and should
    return when the queries have ended. `KeyboardInterrupt` is raised then. A second one stops the queries at once. It
    raises `KeyboardInterrupt` too. A program that does not catch it ends without a traceback.

    If a query has failed, the first one raises nothing: the caller raises the failure. Both say it on stderr.

    Does nothing outside the main thread, where Python delivers no signals, and with signals that the program ignores.

    Parameters
    ----------
    *queries : BacklogQuery or NativeQuery
        Started.
    signals : sequence of signal.Signals
        Those that count as Ctrl-C. Default: Ctrl-C's own, SIGINT.
    """
    before = {number: signal.getsignal(number) for number in signals}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    if threading.current_thread() is not threading.main_thread() or not before:
        yield
        return

    def interrupted(*_: Any) -> None:
        running = [query for query in queries if query.isActive]
        if not running or all(query.isEnding for query in running):
            raise KeyboardInterrupt
        for query in running:
            query.stop(after_batch=True)
            _interrupted.add(query)
            _say(f"Query {query.name} ends after its running batch. Press Ctrl-C again to end it at once.")

    for number in before:
        signal.signal(number, interrupted)
    try:
        try:
            yield
        except KeyboardInterrupt as raised:
            for query in queries:
                _interrupted.discard(query)
                if query.isActive:
                    query.stop()
                _say_end(query)
            _leave_out_traceback(raised)
            raise
        if any(query in _interrupted for query in queries) and not any(query.isActive for query in queries):
            for query in queries:
                _interrupted.discard(query)
                _say_end(query)
            if all(query.exception() is None for query in queries):
                ended = KeyboardInterrupt()
                _leave_out_traceback(ended)
                raise ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say_end(query: _Query) -> None:
    """Say how a query has ended, unless it has said so itself."""
    if not query.showsProgress:
        _say(query.summary)


def _leave_out_traceback(raised: KeyboardInterrupt) -> None:
    """Let the program end without a traceback if nobody catches this error: all was said already."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, found: TracebackType | None) -> None:
        if error is not raised:
            before(kind, error, found)

    sys.excepthook = hook


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
