"""Connectors of installed packages, found by their entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.spi import registry

SOURCE = """
from pyspark.sql.datasource import DataSource
from backlog_spark.spi import SourceInfo

def inspect(options):
    return SourceInfo(key=("id",))

class FoundDataSource(DataSource):
    keeps_metadata = True
"""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    known, keeping = dict(registry.CONNECTORS), set(registry.KEEPS_METADATA)
    yield
    registry.CONNECTORS.clear()
    registry.CONNECTORS.update(known)
    registry.KEEPS_METADATA.clear()
    registry.KEEPS_METADATA.update(keeping)
    sys.modules.pop("found_source", None)


def install(root: Path, line: str) -> None:
    """The files of an installed package with one entry point."""
    (root / "found_source.py").write_text(SOURCE)
    info = root / "found_source-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: found-source\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\n{line}\n")


def test_a_package_brings_a_connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "found = found_source:FoundDataSource")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.discover()
    registry.discover()
    assert registry.data_source("found").__name__ == "FoundDataSource"
    info = registry.inspect("found", {})
    assert info is not None
    assert info.key == ("id",)
    assert "found" in registry.KEEPS_METADATA


def test_a_known_format_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "mysql_cdc = found_source:FoundDataSource")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.discover()
    assert registry.CONNECTORS["mysql_cdc"][0] == "backlog_spark.connectors.mysql_cdc"


def test_an_entry_point_without_a_class_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "found = found_source")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BacklogError, match=r"found = 'found_source' of found-source names no class.*module:Data"):
        registry.discover()
