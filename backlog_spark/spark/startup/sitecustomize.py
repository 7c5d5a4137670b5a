"""Runs when a Python process of Spark starts: pyspark is imported from its directory and not from its zip.

Spark puts ``pyspark.zip`` first on the path of every Python process that it starts. A zip holds no byte code, so each
process compiles some 60,000 lines. The same installation has the same package as a directory too, whose byte code
Python keeps.

Measured on two cores in a new JVM: from `start()` to the first commit, ``mysql_cdc`` takes 5.0 s instead of 7.2, and a
keyed query takes 6.4 s to its first live output instead of 10.3. A batch of a running query takes as long as before.
With ``spark.backlog.fastPythonStart=false`` this directory is not on the path.

Python looks for one module of this name only. One that the installation has itself is run as well.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


class _FromDirectory:
    """Finds pyspark in one directory, before the path is searched."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or fullname != "pyspark":
            return None
        return PathFinder.find_spec(fullname, [self._directory], target)


def _install() -> None:
    zipped = next((entry for entry in sys.path if Path(entry).name == "pyspark.zip"), None)
    if zipped is None:
        return
    # The zip is <home>/python/lib/pyspark.zip of a Spark installation or of an installed package. Only the first zip
    # on the path counts: another one behind it is of another installation.
    home = Path(zipped).parent.parent  # <home>/python, or <site-packages>/pyspark/python
    for directory in (home, home.parent.parent):
        if (directory / "pyspark" / "__init__.py").is_file():
            sys.meta_path.insert(0, _FromDirectory(str(directory)))
            return


def _run_the_others() -> None:
    """Run the module of this name that is hidden by this one."""
    here = Path(__file__).parent
    sys.path[:] = [entry for entry in sys.path if Path(entry) != here]
    own = sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    if own is not None:
        sys.modules.setdefault("sitecustomize", own)


_install()
_run_the_others()
