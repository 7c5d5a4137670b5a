"""``spark-submit --py-files`` alone brings the package, and settings come from three places."""

from __future__ import annotations

from pathlib import Path

import pytest

from .submitting import bare_python, submit, zipped_package


@pytest.mark.grid
@pytest.mark.process
def test_py_files_alone_are_enough_and_settings_come_from_all_three_places(tmp_path: Path) -> None:
    zipped, bare = zipped_package(tmp_path), bare_python(tmp_path)
    conf = {"spark.backlog.intervalDuringBacklog": "0"}
    found = submit(tmp_path, "--master", "local[2]", "--py-files", str(zipped), python=bare, conf=conf)
    assert found["package"].startswith(str(zipped))
    assert found["rows"] == [["a", 1], ["a", 3], ["b", 2]]
    settings = found["settings"]
    assert settings["spark.backlog.interval"] == 2_000, "from spark-defaults.conf"
    assert settings["spark.backlog.intervalDuringBacklog"] == 0, "--conf is stronger"
    assert settings["spark.backlog.restart.delay"] == 5_000, "spark.conf.set is strongest"
