"""Runs when a Python process of Spark starts. Forks it if possible, otherwise imports pyspark's byte code.

On the driver's machine a process is forked (see `backlog_forks`). Elsewhere it imports pyspark from its directory and
not from its zip. Spark puts ``pyspark.zip`` first on the path of every Python process that it starts. A zip holds no
byte code, so each process compiles some 60,000 lines. The same installation has the same package as a directory too,
whose byte code Python keeps. Measured on two cores in a new JVM: from `start()` to the first commit, ``mysql_cdc``
takes 5.0 s instead of 7.2, and a keyed query takes 6.4 s to its first live output instead of 10.3.

The zip and Spark's jar, which has no Python code, then leave the path. Spark's processes call
`importlib.invalidate_caches` after they add to the path, and Python would read both archives again, for 0.1 s.

It also leaves out what these processes print in a good run (see `backlog_quiet`).

With ``spark.backlog.fastPythonStart=false`` this directory is not on the path. Python imports only one module of this
name, so this one also runs the installation's own ``sitecustomize``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import backlog_quiet  # type: ignore[import-not-found]


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


def _package_beside(zipped: str) -> _FromDirectory | None:
    """The package directory next to ``pyspark.zip``, in a Spark installation or an installed package."""
    home = Path(zipped).parent.parent  # <home>/python, or <site-packages>/pyspark/python
    for directory in (home, home.parent.parent):
        if (directory / "pyspark" / "__init__.py").is_file():
            return _FromDirectory(str(directory), ["pyspark"])
    return None


def _install() -> None:
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


def _fork() -> None:
    """Run this process in a child of the server. It returns if that is not possible."""
    server = os.environ.get("BACKLOG_SPARK_FORK_SERVER")
    command = sys.orig_argv
    if not server or "-m" not in command[:-1]:
        return
    import backlog_forks  # type: ignore[import-not-found]

    module = command[command.index("-m") + 1]
    if module in backlog_forks.MODULES and command[-1] == module:
        backlog_forks.ask(server, module, _path_of_others())


def _run_the_others() -> None:
    """Run the module of the same name that this one hides."""
    sys.path[:] = _path_of_others()
    own = sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    if own is not None:
        sys.modules.setdefault("sitecustomize", own)


_install()
_fork()
backlog_quiet.be_quiet(sys.orig_argv)
_run_the_others()
