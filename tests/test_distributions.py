"""Wheel, sdist, editable install and `git archive` bring everything, the connectors under their name in the package."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PACKAGES = ("backlog_spark", "connectors")  # connectors is installed as backlog_spark.connectors
SOURCES = "pyspark_hybrid.py", "pyspark_mysql_cdc.py"


def copied(tree: Path) -> Path:
    """What git has of this checkout, in a directory of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.exists():  # not removed since the last commit
            target.write_bytes(source.read_bytes())
    return tree


def files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)) for path in found}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def built(tree: Path) -> Path:
    """A directory with the sdist and the wheel that is built from it."""
    target = tree.parent / "dist"
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(tree)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return target


@pytest.mark.process
def test_the_sdist_has_what_the_repository_has(tree: Path, built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    expected = {name for name in files(tree) - {".gitignore"} if ".egg-info/" not in name}
    connectors = {f"backlog_spark/{name}" for name in expected if name.startswith("connectors/")}
    made = {name for name in members if ".egg-info/" in name} | {"PKG-INFO"}
    assert members - made == expected | connectors


@pytest.mark.process
def test_the_wheel_of_the_sdist_has_the_package_alone(tree: Path, built: Path) -> None:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        text = wheel.read(metadata).decode()
    expected = {
        str(Path("backlog_spark" if package == "connectors" else "") / package / name)
        for package in PACKAGES
        for name in files(tree / package)
        if name.endswith((".py", "py.typed")) or name.startswith("tools/templates/")
    }
    assert found == expected | set(SOURCES)
    assert "\nAuthor: backlog_spark developers\n" in text
    assert "\nProject-URL: Documentation, https://" in text
    relative = [line for line in text.splitlines() if "](docs/" in line or "](conf/" in line]
    assert not relative, "a page of the package index needs absolute links"


@pytest.mark.process
def test_an_editable_install_maps_no_top_level_connectors(tree: Path, tmp_path: Path) -> None:
    code = "import sys; from setuptools.build_meta import build_editable; print(build_editable(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=tree, check=True, capture_output=True, text=True, timeout=300
    )
    with zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]) as wheel:
        finder = next(name for name in wheel.namelist() if name.endswith("_finder.py"))
        mapping = next(line for line in wheel.read(finder).decode().splitlines() if line.startswith("MAPPING"))
    mapped = eval(mapping.partition("=")[2])
    assert set(mapped) == {"backlog_spark", "pyspark_hybrid", "pyspark_mysql_cdc"}
    assert Path(mapped["backlog_spark"], "connectors", "hybrid", "__init__.py").is_file()


@pytest.mark.process
def test_git_archive_brings_the_link(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        return  # an sdist has no repository
    packed = tmp_path / "tree.tar"
    subprocess.run(["git", "archive", "--output", str(packed), "HEAD"], cwd=ROOT, check=True, timeout=60)
    with tarfile.open(packed) as archive:
        link = archive.getmember("backlog_spark/connectors")
        assert (link.issym(), link.linkname) == (True, "../connectors")
        assert archive.getmember("connectors/hybrid/__init__.py").isfile()


@pytest.mark.process
@pytest.mark.parametrize("place", ["working directory", "site-packages"])
def test_another_package_called_connectors_does_no_harm(built: Path, tmp_path: Path, place: str) -> None:
    installed, work = tmp_path / "installed", tmp_path / "work"
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(installed)
    work.mkdir()
    home = {"working directory": work, "site-packages": installed}[place]
    (home / "connectors").mkdir()
    (home / "connectors" / "__init__.py").write_text("name = 'theirs'\n")
    (home / "connectors" / "hybrid.py").write_text("raise ImportError('theirs')\n")
    code = f"""
import sys
sys.path[:0] = ["", {str(installed)!r}]
import connectors
from backlog_spark.connectors.hybrid import HybridDataSource
from backlog_spark.connectors.mysql_cdc import MySqlCdcDataSource
from pyspark_hybrid import DefaultSource
import backlog_spark
print(connectors.name, HybridDataSource.name(), MySqlCdcDataSource.name(), backlog_spark.__file__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=work, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["theirs", "hybrid", "mysql_cdc", f"{installed}/backlog_spark/__init__.py"], (
        done.stderr
    )


def test_every_requirement_is_pinned_to_a_version_of_its_range() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lists = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    wanted = [Requirement(line) for each in lists for line in each.splitlines() if line]
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[canonical(name)] = version
    for each in wanted:
        if each.name != "backlog-spark":
            assert each.specifier.contains(pins[canonical(each.name)]), each


def canonical(name: str) -> str:
    return name.lower().replace("_", "-")
