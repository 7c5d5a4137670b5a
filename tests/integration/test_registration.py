"""After an installation Spark finds the source without further steps."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

ROOT = Path(__file__).parents[2]

READ = """
    import sys
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    assert "backlog_spark" not in sys.modules
    port, folder = sys.argv[1:]
    rows = spark.readStream.format("mysql_cdc").options(host="127.0.0.1", port=port, user="root", table="reg.t").load()
    out = rows.writeStream.format("parquet").option("checkpointLocation", folder + "/c").trigger(availableNow=True)
    out.start(folder + "/out").awaitTermination()
    import pyspark_mysql_cdc

    spark.range(3).write.parquet(folder + "/old")
    files = spark.readStream.format("hybrid").option("phases", "files").option("metadataLocation", folder + "/m")
    out = files.load(folder + "/old").writeStream.format("parquet").option("checkpointLocation", folder + "/c2")
    out.trigger(availableNow=True).start(folder + "/out2").awaitTermination()
    print(sorted(tuple(r) for r in spark.read.parquet(folder + "/out2").collect()))
    print(sorted(tuple(r)[:2] for r in spark.read.parquet(folder + "/out").collect()), pyspark_mysql_cdc.__file__)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content that ``pip install`` puts into site-packages, without dependencies."""
    source = tmp_path_factory.mktemp("source")
    for name in (
        "setup.cfg",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        *("pyspark_hybrid.py", "pyspark_mysql_cdc.py"),
        *("backlog_spark", "connectors"),
    ):
        (source / name).symlink_to(ROOT / name)
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True, timeout=300)
    return target


def python(*arguments: str, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.grid
def test_the_format_is_there_without_an_import(mysql: MySQLServer, installed: Path, tmp_path: Path) -> None:
    mysql.execute("CREATE DATABASE reg")
    mysql.execute("CREATE TABLE reg.t (id INT PRIMARY KEY, v VARCHAR(10))")
    mysql.execute("INSERT INTO reg.t VALUES (1, 'one'), (2, 'two')")
    done = python("-c", textwrap.dedent(READ), str(mysql.port), str(tmp_path), path=installed, cwd=tmp_path)
    module = installed / "pyspark_mysql_cdc.py"
    expected = ["[(0,), (1,), (2,)]", f"[(1, 'one'), (2, 'two')] {module}"]
    assert done.stdout.strip().splitlines() == expected, done.stderr[-3000:]


@pytest.mark.process
@pytest.mark.parametrize("module", ["pyspark_mysql_cdc", "pyspark_hybrid"])
def test_sessions_that_do_not_use_it_import_nothing(module: str, tmp_path: Path) -> None:
    """Spark imports it in every session that reads anything."""
    code = f"""
        import sys
        import pyspark.sql.datasource
        before = set(sys.modules)
        import {module}
        print(sorted(set(sys.modules) - before))
    """
    done = python("-c", textwrap.dedent(code), path=ROOT, cwd=tmp_path)
    assert done.stdout.strip() == f"['{module}']", done.stderr


@pytest.mark.process
def test_without_its_driver_only_the_source_fails(tmp_path: Path) -> None:
    code = """
        import sys
        sys.modules["pymysql"] = None
        from pyspark_mysql_cdc import DefaultSource
        from backlog_spark.errors import BacklogError
        assert DefaultSource.name() == "mysql_cdc"
        try:
            DefaultSource({}).schema()
        except BacklogError as error:
            print(error)
    """
    done = python("-c", textwrap.dedent(code), path=ROOT, cwd=tmp_path)
    assert "pymysql" in done.stdout, done.stderr
    assert "pip install 'backlog-spark[mysql]'" in done.stdout
