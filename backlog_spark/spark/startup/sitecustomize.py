"""Runs when a Python process of Spark starts: it imports pyspark from its directory, not from its zip.

Spark puts ``pyspark.zip`` first on the path of every Python process that it starts. A zip holds no byte code, so each
process compiles some 60,000 lines. The same installation has the same package as a directory too, whose byte code
Python keeps. Measured on two cores in a new JVM: from `start()` to the first commit, ``mysql_cdc`` takes 5.0 s instead
of 7.2, and a keyed query takes 6.4 s to its first live output instead of 10.3.

The zip and Spark's jar, which has no Python code, then leave the path. Spark's processes call
`importlib.invalidate_caches` after they add to the path, and Python would read both archives again, for 0.1 s.

A process of a query whose connection Spark has closed, as it does when the query stops, ends without a traceback.

With ``spark.backlog.fastPythonStart=false`` this directory is not on the path. Python imports only one module of this
name, so this one also runs the installation's own ``sitecustomize``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, TracebackType


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


_install()
_run_the_others()
