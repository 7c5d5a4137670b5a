"""The wheel has the package and the connectors, and nothing that only a checkout needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("backlog_spark", "connectors")  # connectors is installed as backlog_spark.connectors
PARTS = (*PACKAGES, "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "pyspark_hybrid.py", "pyspark_mysql_cdc.py")
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.mark.process
def test_the_wheel_leaves_out_the_servers_alone(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, tree / part, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, tree / part)
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)], cwd=tree, check=True, capture_output=True, text=True
    )
    with zipfile.ZipFile(tmp_path / built.stdout.splitlines()[-1]) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        assert "Provides-Extra: mysql" in wheel.read(metadata).decode()
    expected = {
        str(Path("backlog_spark" if package == "connectors" else "") / path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    servers = {path for path in expected if path.startswith("backlog_spark/embedded/")}
    assert "backlog_spark/embedded/libaio.py" in servers
    assert found == expected - servers | {"pyspark_hybrid.py", "pyspark_mysql_cdc.py"}
