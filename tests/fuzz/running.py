"""Runs a kind of input in a process of its own: many inputs, with a limit for the time of each and for all memory."""

from __future__ import annotations

import contextlib
import gc
import mmap
import multiprocessing
import os
import random
import resource
import signal
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from backlog_spark.errors import BacklogError
from tests.fuzz.kinds import ANY, Kind, Refusal, Wrong

__all__ = ["MEMORY_BYTES", "Fault", "Inputs", "Result", "judged", "run", "run_apart"]

MEMORY_BYTES = 512 << 20
"""Address space beyond what the process has when the inputs begin. No input has more than some 10 kB."""

# An input is mutated from one of an epoch's valid inputs. So it is made again without those before it.
_EPOCH = 600
_VALID_EVERY = 8
_FAULTS = 40
_SHOWN = 400
_PROGRESS = struct.Struct("<QdQ")
# So long after the deadline the process does not answer any more: it hangs in C.
_STUCK_S = 10.0


class _Hang(BaseException):
    """The deadline has passed. No code under test may catch it."""


@dataclass(frozen=True)
class Fault:
    """Something that must not be: where it is (for people and to tell faults apart), and the input."""

    number: int
    what: str
    where: str
    shown: str


@dataclass
class Result:
    """What a kind's inputs gave. ``memory``: bytes by which the process grew at most."""

    kind: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    slowest: int = 0
    memory: int = 0
    seconds: float = 0.0
    faults: dict[str, Fault] = field(default_factory=dict)
    fault_count: int = 0


class Inputs:
    """The inputs of a kind by number."""

    def __init__(self, kind: Kind, seed: str) -> None:
        self._kind = kind
        self._seed = seed
        self._epoch = -1
        self._corpus: list[tuple[Any, Any]] = []

    def of(self, number: int) -> tuple[Any, Any]:
        """An input, and what it has to give."""
        epoch = number // _EPOCH
        if epoch != self._epoch:
            chance = random.Random(f"{self._kind.name} {self._seed} {epoch}")
            self._corpus = [self._kind.valid(chance) for _ in range(self._kind.corpus)]
            self._epoch = epoch
        chance = random.Random(f"{self._kind.name} {self._seed} {number}")
        found, told = chance.choice(self._corpus)
        if number % _VALID_EVERY == 0:
            return found, told
        return self._kind.mutate(chance, found, chance.choice(self._corpus)[0]), ANY


def judged(kind: Kind, found: Any, told: Any) -> bool:
    """Whether an input is accepted. Raises what is a fault."""
    try:
        kind.judge(found, told)
    except (BacklogError, Refusal) as error:
        if told is not ANY:
            raise Wrong(f"a valid input was refused: {error}") from error
        return False
    return True


@contextlib.contextmanager
def _deadline() -> Iterator[Callable[[float], None]]:
    """A function that sets the seconds left; 0 for none. Only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda seconds: None
        return

    def over(*_: object) -> None:
        raise _Hang

    before = signal.signal(signal.SIGALRM, over)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _where(error: BaseException) -> str:
    """The innermost place of ours, and the type of the error."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/tests/fuzz/" not in f.filename]
    own = [f for f in ours if "/connectors/" in f.filename or "/backlog_spark/" in f.filename]
    found = (own or ours or list(frames))[-1:]
    place = ", ".join(
        f"{f.filename.rpartition('/connectors/')[2].rpartition('/backlog_spark/')[2]}:{f.lineno}" for f in found
    )
    return f"{type(error).__name__} at {place}"


def run(
    kind: Kind,
    seed: str,
    *,
    seconds: float = 0,
    count: int = 0,
    first: int = 0,
    progress: Callable[[int, float], None] = lambda number, at: None,
) -> Result:
    """Judge inputs from number ``first`` on, for some seconds or up to some number of them."""
    result = Result(kind.name)
    inputs = Inputs(kind, seed)
    kind.begin()
    began = time.monotonic()
    grown = _peak()
    number = first
    with _deadline() as left:
        while (not seconds or time.monotonic() - began < seconds) and (not count or number < first + count):
            made: Any = None
            try:
                made, told = inputs.of(number)
                at = time.perf_counter()
                progress(number, time.monotonic())
                left(kind.deadline_s)
                accepted = judged(kind, made, told)
                left(0)
                took = time.perf_counter() - at
                if took > result.slowest_s:
                    result.slowest_s, result.slowest = took, number
                if accepted:
                    result.accepted += 1
                else:
                    result.refused += 1
            except (_Hang, Exception) as error:
                left(0)
                result.fault_count += 1
                told_error = error if not isinstance(error, Wrong) or error.__cause__ is None else error.__cause__
                where = _where(told_error)
                if where not in result.faults and len(result.faults) < _FAULTS:
                    result.faults[where] = Fault(
                        number, f"{type(error).__name__}: {error}"[:_SHOWN], where, repr(made)[:_SHOWN]
                    )
                del error, told_error
                gc.collect()
            result.inputs += 1
            number += 1
    result.seconds = time.monotonic() - began
    result.memory = max(0, _peak() - grown)
    return result


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _space() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _child(kind: Kind, seed: str, seconds: float, first: int, shared: mmap.mmap, results: Any) -> None:
    with open(os.devnull, "w") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 1)  # warnings of libraries
    # What libraries set up once does not count.
    with contextlib.suppress(Exception):
        run(kind, "warming", count=3 * _VALID_EVERY)
    gc.collect()
    limit = _space() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    result = run(
        kind, seed, seconds=seconds, first=first, progress=lambda n, at: _PROGRESS.pack_into(shared, 0, n, at, 1)
    )
    kind.close()
    results.put(result)
    results.close()
    results.join_thread()
    os._exit(0)


def run_apart(kind: Kind, seed: str, seconds: float) -> Result:
    """`run` in a process of its own. If it dies or hangs in C, that is a fault, and another one goes on."""
    if not kind.is_apart:
        try:
            return run(kind, seed, seconds=seconds)
        finally:
            kind.close()
    context = multiprocessing.get_context("fork")
    total = Result(kind.name)
    began, first = time.monotonic(), 0
    while (left := seconds - (time.monotonic() - began)) > 0:
        shared = mmap.mmap(-1, _PROGRESS.size)
        queue: Any = context.Queue()
        process = context.Process(target=_child, args=(kind, seed, left, first, shared, queue), daemon=True)
        process.start()
        result, death = _followed(kind, process, shared, queue)
        number = _PROGRESS.unpack_from(shared, 0)[0]
        if result is not None:
            _add(total, result)
            break
        # What it had counted is lost, but not how many there were.
        made = repr(Inputs(kind, seed).of(number)[0])[:_SHOWN]
        total.inputs += number + 1 - first
        total.fault_count += 1
        total.faults.setdefault(death, Fault(number, death, death, made))
        first = number + 1
    total.seconds = time.monotonic() - began
    return total


def _followed(kind: Kind, process: Any, shared: mmap.mmap, queue: Any) -> tuple[Result | None, str]:
    """The result of a process; or None, and how it died."""
    while True:
        with contextlib.suppress(Exception):
            return queue.get(timeout=0.3), ""
        if not process.is_alive():
            with contextlib.suppress(Exception):
                return queue.get(timeout=0.3), ""
            return None, f"the process died with {process.exitcode}"
        _, at, has_begun = _PROGRESS.unpack_from(shared, 0)
        if has_begun and time.monotonic() - at > kind.deadline_s + _STUCK_S:
            process.kill()
            process.join()
            return None, "the process hangs in C"


def _add(total: Result, more: Result) -> None:
    total.inputs += more.inputs
    total.accepted += more.accepted
    total.refused += more.refused
    total.fault_count += more.fault_count
    total.memory = max(total.memory, more.memory)
    for where, fault in more.faults.items():
        total.faults.setdefault(where, fault)
    if more.slowest_s > total.slowest_s:
        total.slowest_s, total.slowest = more.slowest_s, more.slowest
