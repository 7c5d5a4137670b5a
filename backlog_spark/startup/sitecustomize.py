"""Runs when a Python process of Spark starts: pyspark is taken from where it has byte code.

Spark puts ``pyspark.zip`` first on the path of every Python process that it starts. A zip holds no byte code, so each
of them compiles some 60,000 lines: 0.6 s of processor time for every start of a source and of a stateful query. The
same installation has the same package as a directory too, whose byte code Python keeps. Taking it from there changes
nothing but the time.

Python looks for one module of this name only; whatever the installation has itself is run as well.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


class _FromDirectory:
    """Finds top-level packages in one directory, before the path is asked."""

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
    """For ``<home>/python/lib/pyspark.zip`` of a Spark installation, or that of an installed package."""
    home = Path(zipped).parent.parent  # <home>/python, or <site-packages>/pyspark/python
    for directory in (home, home.parent.parent):
        if (directory / "pyspark" / "__init__.py").is_file():
            return _FromDirectory(str(directory), ["pyspark"])
    return None


def _install() -> None:
    for entry in sys.path:
        if Path(entry).name == "pyspark.zip":
            finder = _package_beside(entry)
            if finder is not None:
                sys.meta_path.insert(0, finder)
            return


def _run_the_others() -> None:
    """The module of this name that is hidden by this one."""
    here = Path(__file__).parent
    sys.path[:] = [entry for entry in sys.path if Path(entry) != here]
    own = sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    if own is not None:
        sys.modules.setdefault("sitecustomize", own)


_install()
_run_the_others()
