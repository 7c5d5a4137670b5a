"""The page about the architecture names files and rooms that exist."""

from __future__ import annotations

import re
from pathlib import Path

from docs import errors
from tests.test_rooms import ROOMS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_files_exist() -> None:
    files = set(re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE))
    tops = (ROOT, ROOT / "backlog_spark")
    assert files
    assert {file for file in files if not any((top / file).exists() for top in tops)} == set()


def test_the_table_has_every_room_in_its_order() -> None:
    assert tuple(room for room in re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == ROOMS


def test_the_pages_of_errors_have_every_room() -> None:
    listed = [folder for _, folders in errors._PAGES.values() for folder in folders]
    rooms = {f"backlog_spark/{room}" for room in ROOMS if room != "errors"}
    assert sorted(listed) == sorted({*rooms, "connectors/mysql_cdc", "connectors/hybrid"})
