"""Runs when a Python process of Spark starts: it imports pyspark from its directory, not from its zip.

Spark puts ``pyspark.zip`` first on the path of every Python process that it starts. A zip holds no byte code, so each
process compiles some 60,000 lines. The same installation has the same package as a directory too, whose byte code
Python keeps. Measured on two cores in a new JVM: from `start()` to the first commit, ``mysql_cdc`` takes 5.0 s instead
of 7.2, and a keyed query takes 6.4 s to its first live output instead of 10.3.

The zip and Spark's jar, which has no Python code, then leave the path. Spark's processes call
`importlib.invalidate_caches` after they add to the path, and Python would read both archives again, for 0.1 s.

It also leaves out three things that these processes print in a good run. A worker, and a process that serves a query,
print a traceback if Spark closes their connection, which is how Spark ends them. The process that prepares a keyed
query prints five paragraphs.

With ``spark.backlog.fastPythonStart=false`` this directory is not on the path. Python imports only one module of this
name, so this one also runs the installation's own ``sitecustomize``.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any


class _FromDirectory:
    """Finds top-level packages in one directory, before the path is searched."""

    def __init__(self, directory: str, packages: Sequence[str]) -> None:
        self._directory = directory
        self._packages = frozenset(packages)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or fullname not in self._packages:
            return None
        return PathFinder.find_spec(fullname, [self._directory], target)


def _end_quietly() -> None:
    """Print no traceback when Spark closes the connection of a process that serves a query. Its stop does that."""
    if not any(word.startswith("pyspark.sql.streaming.") for word in sys.orig_argv):
        return
    print_failure = sys.excepthook

    def print_others(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # EOFError while it waits, a broken pipe while it answers, a failure to connect before that.
        if not issubclass(kind, (EOFError, BrokenPipeError, ConnectionError)) and "CANNOT_OPEN_SOCKET" not in str(
            error
        ):
            print_failure(kind, error, trace)

    sys.excepthook = print_others


def _package_beside(zipped: str) -> _FromDirectory | None:
    """The package directory next to ``pyspark.zip``, in a Spark installation or an installed package."""
    home = Path(zipped).parent.parent  # <home>/python, or <site-packages>/pyspark/python
    for directory in (home, home.parent.parent):
        if (directory / "pyspark" / "__init__.py").is_file():
            return _FromDirectory(str(directory), ["pyspark"])
    return None


def _install() -> None:
    _end_quietly()
    zips = [entry for entry in sys.path if Path(entry).name == "pyspark.zip"]
    # Only the first zip on the path counts: a later one belongs to another installation.
    finder = _package_beside(zips[0]) if zips else None
    if finder is not None:
        sys.meta_path.insert(0, finder)
        _leave(zips[0])
    for entry in list(sys.path):
        name = Path(entry).name
        if name.startswith("spark-core_") and name.endswith(".jar"):
            _leave(entry)


def _leave(entry: str) -> None:
    sys.path.remove(entry)
    sys.path_importer_cache.pop(entry, None)


def _be_quiet(program: Sequence[str]) -> None:
    """Change what a program prints, given its command line."""
    if "pyspark.daemon" in program:
        print_exc = traceback.print_exc

        def print_failures(*values: Any, **options: Any) -> None:
            if not _is_closed_connection(sys.exc_info()[1]):
                print_exc(*values, **options)

        traceback.print_exc = print_failures
    if "pyspark.sql.streaming.transform_with_state_driver_worker" in program:
        print_all = builtins.print

        def print_others(*values: Any, **options: Any) -> None:
            text = str(values[0]) if values else ""
            if not text.removeprefix("Starting ").startswith("Streaming TransformWithStateInPandas Python worker"):
                print_all(*values, **options)

        builtins.print = print_others


def _is_closed_connection(error: BaseException | None) -> bool:
    """Whether a worker of the daemon could not answer, because Spark has closed its connection.

    An error of the worker's own code is raised in other functions.
    """
    if not isinstance(error, (BrokenPipeError, ConnectionResetError)) or error.__traceback__ is None:
        return False
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [(code.co_filename.replace("\\", "/").endswith("/pyspark/daemon.py"), code.co_name) for code in frames]
    return names[-2:] == [(True, "manager"), (True, "worker")]


def _path_of_others() -> list[str]:
    here = Path(__file__).parent
    return [entry for entry in sys.path if Path(entry) != here]


def _run_the_others() -> None:
    """Run the module of the same name that this one hides."""
    sys.path[:] = _path_of_others()
    own = sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    if own is not None:
        sys.modules.setdefault("sitecustomize", own)


_be_quiet(sys.orig_argv)
_install()
_run_the_others()
