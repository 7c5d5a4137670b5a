"""Starts Spark's JVM: without settings on its command line, and in a process group of its own.

Everybody on the machine could read secrets on the command line. And what ends a program often signals its whole process
group, such as ``timeout``: the JVM would end before the running batch. It still ends with this process, however that
dies, as it reads from a pipe that this process holds.

PySpark passes each setting of a new session to spark-submit as ``--conf``. Here they are in a file for
``--properties-file`` that only this user can read and that is removed when the JVM runs. The session's builder sets
them again, so they count to the letter. Reaches for ``SparkContext._ensure_initialized`` and ``launch_gateway``, which
start the JVM (seen in Spark 4.2). Without them PySpark starts it, with the settings on its command line and in this
process's group.

If Ivy gets packages, it writes about 100 lines to the JVM's stderr, which Spark has no setting for. So the JVM then
writes to a pipe, and a thread passes its lines on, without those of Ivy. If the JVM does not start, Ivy's lines are
printed too. What the JVM prints after this process has ended is lost.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.errors import BacklogError
from backlog_spark.spark.jvm.internals import is_off

__all__ = ["delta_package", "is_spark_gone", "launch", "relaying"]

_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_OPTION: Final = "--properties-file"
_OF_IVY: Final = re.compile(
    rb"::|\t(::|\||-{3}|confs:|found |\[SUCCESSFUL|\d+ artifacts|\S+#)|downloading "
    rb"|Ivy Default Cache set to:|The jars for the packages stored in:|\S+ added as a "
    rb"|You probably access the destination server through a proxy"
)
# Written into the pipe when the JVM runs, or does not
_RUNS: Final = b"\0backlog_spark: the JVM runs\n"
_FAILED: Final = b"\0backlog_spark: the JVM does not run\n"


def launch(settings: Mapping[str, str]) -> None:
    """Start the JVM with settings for it. No effect if this process has one, or uses Spark Connect.

    The user's ``spark-defaults.conf`` and ``PYSPARK_SUBMIT_ARGS`` count as before.
    """
    from pyspark import SparkContext, java_gateway

    start, gateway = getattr(SparkContext, "_ensure_initialized", None), cast("Any", java_gateway)
    connects = "SPARK_REMOTE" in os.environ or "spark.remote" in settings or settings.get("spark.api.mode") == "connect"
    if start is None or connects or is_off() or cast("Any", SparkContext)._gateway is not None:
        return
    packages = settings.get("spark.jars.packages")
    _keep_tracebacks_out()
    with _in_a_file(settings), relaying(packages) if packages else nullcontext() as stderr:
        how = {"stderr": stderr, "start_new_session": True}
        start(gateway=gateway.launch_gateway(popen_kwargs=how))


@contextmanager
def relaying(packages: str) -> Iterator[int]:
    """The JVM's stderr while the block starts it: a pipe whose lines reach our own, without those of Ivy.

    Parameters
    ----------
    packages : str
        What Ivy gets.
    """
    reading, writing = os.pipe()
    threading.Thread(target=_relay, args=[reading, packages], name="jvm-stderr", daemon=True).start()
    mark = _FAILED
    try:
        yield writing
        mark = _RUNS
    finally:
        os.write(writing, mark)  # after all that the JVM has printed until now
        os.close(writing)


def _relay(reading: int, packages: str) -> None:
    """Pass on what the JVM prints, as long as it runs."""
    rest, is_starting = b"", True
    held: list[bytes] = []  # Ivy's lines
    is_ivys = in_summary = False

    def pass_on(lines: Sequence[bytes]) -> None:
        nonlocal is_ivys, in_summary
        for line in lines:
            if line.startswith(b":: "):
                in_summary = line.startswith(b":: problems summary")
            is_ivys = in_summary or _OF_IVY.match(line) is not None or (is_ivys and not line.strip())
            if not is_ivys:
                _print(line)
                continue
            if not held:
                _print(f"Getting {packages} and what it needs.\n".encode())
            held.append(line)

    while chunk := os.read(reading, 1 << 16):
        rest += chunk
        mark = next((each for each in (_RUNS, _FAILED) if is_starting and each in rest), None)
        if mark is not None:
            before, _, rest = rest.partition(mark)
            pass_on(before.splitlines(keepends=True))
            _print(b"".join(held) if mark == _FAILED else b"")
            is_starting = False
        if is_starting:
            *lines, rest = rest.splitlines(keepends=True)
            if rest.endswith(b"\n"):
                lines, rest = [*lines, rest], b""
            pass_on(lines)
        else:
            _print(rest)
            rest = b""
    _print(rest)
    os.close(reading)


def _print(text: bytes) -> None:
    with suppress(OSError, ValueError):  # it is closed
        sys.stderr.write(text.decode(errors="replace"))
        sys.stderr.flush()


def is_spark_gone(error: BaseException) -> bool:
    """Whether a call into the JVM failed because it has ended."""
    return isinstance(error, (ConnectionError, Py4JNetworkError))


def _keep_tracebacks_out() -> None:
    """Keep Py4J from logging a traceback for each call that an ended JVM does not answer. One error says so."""

    def is_news(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        has_ended = error is not None and (is_spark_gone(error) or "Connection refused" in str(error))
        return not (has_ended and "py4j" in record.pathname)

    for name in (None, "py4j.clientserver", "py4j.java_gateway"):  # it also logs to the root
        logging.getLogger(name).addFilter(is_news)


def delta_package() -> str:
    """The Maven coordinate of Delta's jar for the installed packages delta-spark and pyspark."""
    spark = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"


@contextmanager
def _in_a_file(settings: Mapping[str, str]) -> Iterator[None]:
    before = os.environ.get(_ARGUMENTS)
    theirs, left = _properties_file(shlex.split(before if before is not None else "pyspark-shell"))
    # spark-submit takes the last of several files, and no spark-defaults.conf beside one.
    text, defaults = (_text(theirs), []) if theirs else ("", ["--load-spark-defaults"])
    text += "\n\n" + "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())
    handle, file = tempfile.mkstemp(prefix="backlog-spark-", suffix=".conf")  # with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.environ[_ARGUMENTS] = shlex.join([_OPTION, file, *defaults, *left])
        yield
    finally:
        Path(file).unlink()
        os.environ.pop(_ARGUMENTS, None)
        if before is not None:
            os.environ[_ARGUMENTS] = before


def _properties_file(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The user's own file, and the other arguments."""
    found, left, rest = None, [], iter(arguments)
    for each in rest:
        if each == _OPTION:
            found = next(rest, None)
        elif each.startswith(f"{_OPTION}="):
            found = each.partition("=")[2]
        else:
            left.append(each)
    return found, left


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BacklogError(
            f"{_ARGUMENTS} names the properties file {file}, which cannot be read.", "Correct the variable."
        ) from error


def _escaped(text: str) -> str:
    """A text for Java's ``Properties``, which takes units of UTF-16 as escapes."""
    return re.sub(r"[^A-Za-z0-9_.-]", lambda found: _units(found[0]), text)


def _units(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
