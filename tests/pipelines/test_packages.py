"""The commands name a package that is missing, and need only the packages of what the pipeline uses."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# Runs the command in a Python that lacks some packages.
WITHOUT = """
import sys
from importlib.machinery import PathFinder

missing, find = set(sys.argv.pop(1).split(",")), PathFinder.find_spec
PathFinder.find_spec = lambda name, *of: None if name in missing else find(name, *of)
from backlog_spark.tools import main
main()
"""
PIPELINE = """
source: {{type: hybrid, name: numbers, phases: files, path: {root}/in, fileFormat: json, schema: a int}}
sink: {{type: delta_append, path: {root}/out}}
pipeline: {{name: numbers, checkpoint: {root}/checkpoint}}
"""


def check(tmp_path: Path, missing: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"a": 1}\n')
    (tmp_path / "pipeline.yaml").write_text(PIPELINE.format(root=tmp_path))
    command = [sys.executable, "-c", WITHOUT, missing, "check", str(tmp_path / "pipeline.yaml")]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.process
def test_a_pipeline_without_sql_kafka_and_mysql_needs_none_of_their_packages(tmp_path: Path) -> None:
    done = check(tmp_path, "sqlglot,datasketches,pymysql,pymysqlreplication,confluent_kafka,prometheus_client")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("package", ["deltalake", "pyspark", "pydantic", "yaml"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path, package: str) -> None:
    done = check(tmp_path, package)
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert "Traceback" not in told
    assert package in told
    assert "pip install" in told
