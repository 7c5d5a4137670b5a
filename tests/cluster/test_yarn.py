"""A job on YARN in cluster mode, with the archive: YARN starts a killed driver again, and every row is there once."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from servers.jars import delta_jars
from tests.connectors.mysql_cdc.replay import table_rows
from tests.integration.submitting import archived, bare_python, zipped_package

from .yarn import wait, yarn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

pytestmark = [pytest.mark.process, pytest.mark.grid]
HOME = Path(pyspark.__file__).parent


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp
    return archived(bare_python(folder("bare")), zipped_package(folder("zipped")), folder("archived"))


@pytest.fixture
def conf(tmp_path: Path) -> Iterator[Path]:
    with yarn(tmp_path / "yarn") as found:
        yield found


def drivers() -> list[int]:
    """Processes of Spark's ApplicationMaster, in which the driver runs."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if re.match(rb"[^\0]*java\0.*\0org\.apache\.spark\.deploy\.yarn\.ApplicationMaster\0", command, re.DOTALL):
            found.append(int(process.name))
    return found


def test_a_killed_driver_is_started_again(
    spark: SparkSession, mysql: MySQLServer, archive: Path, conf: Path, tmp_path: Path
) -> None:
    mysql.execute("DROP DATABASE IF EXISTS yarn")
    mysql.execute("CREATE DATABASE yarn")
    mysql.execute("CREATE TABLE yarn.orders (id INT PRIMARY KEY, amount INT)")
    mysql.execute("INSERT INTO yarn.orders VALUES " + ",".join(f"({n}, {n})" for n in range(5_000)))
    job = tmp_path / "job.py"
    shutil.copy(Path(__file__).parent / "yarn_job.py", job)
    settings = {
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": "./environment/bin/python",
        "spark.executorEnv.PYSPARK_PYTHON": "./environment/bin/python",
        "spark.yarn.maxAppAttempts": "100",
        "spark.yarn.am.attemptFailuresValidityInterval": "1h",
        "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.memory": "700m",
        "spark.executor.memory": "700m",
        "spark.executor.instances": "1",
    }
    command = [
        f"{HOME}/bin/spark-submit", "--master", "yarn", "--deploy-mode", "cluster",
        "--jars", ",".join(map(str, delta_jars())), "--archives", f"{archive}#environment",
        *(f"--conf={name}={text}" for name, text in settings.items()), str(job), str(mysql.port), str(tmp_path),
    ]  # fmt: skip
    own = {name: text for name, text in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHONPATH"))}
    environment = {**own, "HADOOP_CONF_DIR": str(conf), "SPARK_HOME": str(HOME)}
    commits = tmp_path / "checkpoint" / "commits"

    def has(batches: int) -> bool:
        return commits.is_dir() and len([p for p in commits.iterdir() if p.name.isdigit()]) >= batches

    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log)
        try:
            wait(lambda: has(2), process, log)
            mysql.execute("UPDATE yarn.orders SET amount = -1 WHERE id < 100")
            (driver,) = drivers()
            os.kill(driver, signal.SIGKILL)
            mysql.execute("DELETE FROM yarn.orders WHERE id >= 4900")
            done = len(list(commits.iterdir()))
            wait(lambda: len(list(commits.iterdir())) > done, process, log)
            mysql.execute("INSERT INTO yarn.orders VALUES (6000, 6000)")
            (tmp_path / "stop").touch()
            assert process.wait(300) == 0, Path(log.name).read_text()[-3000:]
        finally:
            process.kill()
            process.wait()
    found = Counter(tuple(row) for row in spark.read.format("delta").load(f"{tmp_path}/orders").collect())
    assert found == Counter(table_rows(mysql, "yarn.orders").values())
