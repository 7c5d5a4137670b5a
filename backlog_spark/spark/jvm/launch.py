"""Starts Spark's JVM without settings on its command line, where everybody on the machine could read secrets.

PySpark passes each setting of a new session to spark-submit as ``--conf``. Here they are in a file for
``--properties-file`` that only this user can read and that is removed when the JVM runs. The session's builder sets
them again, so they count to the letter. Reaches for ``SparkContext._ensure_initialized``, which starts the JVM (seen in
Spark 4.2). Without it PySpark starts the JVM, with the settings on its command line.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

from backlog_spark.errors import BacklogError
from backlog_spark.spark.jvm.internals import is_off

__all__ = ["delta_package", "launch"]

_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_OPTION: Final = "--properties-file"


def launch(settings: Mapping[str, str]) -> None:
    """Start the JVM with settings for it. No effect if this process has one, or uses Spark Connect.

    The user's ``spark-defaults.conf`` and ``PYSPARK_SUBMIT_ARGS`` count as before.
    """
    from pyspark import SparkContext

    start = getattr(SparkContext, "_ensure_initialized", None)
    connects = "SPARK_REMOTE" in os.environ or "spark.remote" in settings or settings.get("spark.api.mode") == "connect"
    if start is None or connects or is_off():
        return
    with _in_a_file(settings):
        start()


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
