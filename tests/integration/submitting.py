"""Environments and programs for the tests of spark-submit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servers.jars import delta_jars

__all__ = ["archived", "bare_python", "submit", "zipped_package"]

ROOT = Path(__file__).parents[2]
SOURCES = "pyspark_hybrid.py", "pyspark_mysql_cdc.py"
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
DEFAULTS = """
spark.ui.enabled                      false
spark.sql.shuffle.partitions          2
spark.backlog.keyGroups               2
spark.backlog.interval                2 seconds
spark.backlog.intervalDuringBacklog   30 minutes
spark.backlog.restart.delay           2 seconds
"""


def zipped_package(folder: Path) -> Path:
    """What `make dist` builds for --py-files: the wheel's files, under a name that ends in .zip."""
    path = folder / "backlog_spark-py-files.zip"
    folders = {"backlog_spark": ROOT / "backlog_spark", "backlog_spark/connectors": ROOT / "connectors"}
    with zipfile.ZipFile(path, "w") as archive:
        for name in SOURCES:
            archive.write(ROOT / name, name)
        for top, part in folders.items():
            for file in part.rglob("*.py"):
                archive.write(file, f"{top}/{file.relative_to(part)}")
    return path


def bare_python(folder: Path) -> Path:
    """An interpreter that has all packages but ours: an editable install is not seen through a path file."""
    home = folder / "environment"
    venv.create(home, symlinks=True)
    (site_of(home) / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = home / "bin" / "python"
    code = "import importlib.util as u; print(u.find_spec('backlog_spark'), u.find_spec('pyarrow') is None)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, "-c", code], cwd=home, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["None", "False"]
    return python


def archived(python: Path, zipped: Path, folder: Path) -> Path:
    """What `make dist` builds for --archives: here the bare environment with our package."""
    path, home = folder / "backlog_spark-environment.tar.gz", python.parents[1]
    unpacked = folder / "package"
    with zipfile.ZipFile(zipped) as package, tarfile.open(path, "w:gz") as packed:
        package.extractall(unpacked)
        for part in home.iterdir():
            packed.add(part, part.name)
        for part in unpacked.iterdir():
            packed.add(part, str(site_of(home).relative_to(home) / part.name))
    return path


def site_of(home: Path) -> Path:
    return next(home.glob("lib/python*/site-packages"))


def written_lines(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.json").write_text('{"k":"a","v":1}\n{"k":"b","v":2}\n')
    (folder / "b.json").write_text('{"k":"a","v":3}\n')
    return folder


def submit(
    work: Path,
    *options: str,
    python: Path | str,
    conf: Mapping[str, str] | None = None,
    given: Sequence[str] = (),
    jars: bool = True,
) -> dict[str, Any]:
    """Run the program with spark-submit in a directory of its own, and return what it printed.

    Parameters
    ----------
    work : Path
    options : str
        Of spark-submit.
    python : Path or str
        What ``PYSPARK_PYTHON`` is.
    conf : mapping of str to str, optional
    given : sequence of str
        Further arguments of the program.
    jars : bool
        Whether Delta's jars are given. Else an option has to.
    """
    (work / "conf").mkdir()
    (work / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    shutil.copy(ROOT / "conf" / "log4j2.properties", work / "conf")
    program = work / "submitted.py"
    shutil.copy(ROOT / "tests" / "integration" / "submitted.py", program)
    home = Path(sysconfig.get_path("purelib"), "pyspark")
    settings = {**({"spark.jars": ",".join(map(str, delta_jars())), **DELTA} if jars else {}), **(conf or {})}
    confs = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_DRIVER_PYTHON")},
        **{"SPARK_HOME": str(home), "SPARK_CONF_DIR": str(work / "conf"), "SPARK_LOCAL_IP": "127.0.0.1"},
        "PYSPARK_PYTHON": str(python),
    }
    arguments = [program, written_lines(work / "lines"), work / "target", *given]
    done = subprocess.run(
        [home / "bin" / "spark-submit", *confs, *options, *map(str, arguments)],
        cwd=work, env=environment, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    told = [line for line in done.stdout.splitlines() if line.startswith("submitted: ")]
    assert told, f"{done.stdout[-2000:]}\n{done.stderr[-5000:]}"
    found: dict[str, Any] = json.loads(told[0].partition(" ")[2])
    return found
