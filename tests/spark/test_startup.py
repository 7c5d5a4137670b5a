"""Spark's Python processes start with byte code, and nothing else changes for them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

import backlog_spark as bs
from backlog_spark.errors import SettingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.process

STARTUP = Path(bs.__file__).parent / "spark" / "startup"
INSTALLED = Path(pyspark.__file__).parent
LIBRARIES = sorted((INSTALLED / "python" / "lib").glob("*.zip"), reverse=True)  # pyspark.zip comes first


def run(code: str, *path: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.stdout.strip()


def test_pyspark_is_taken_from_its_directory() -> None:
    code = "import pyspark.sql.types as t; print(t.__file__)"
    assert "pyspark.zip" in run(code, *LIBRARIES), "else there is nothing to gain any more"
    assert run(code, *LIBRARIES, STARTUP) == str(INSTALLED / "sql" / "types.py")


def test_forgetting_what_is_on_the_path_reads_no_zip() -> None:
    code = """if True:
        import importlib, sys, zipimport
        read = zipimport._read_directory
        def told(archive):
            print(archive.rpartition("/")[2])
            return read(archive)
        zipimport._read_directory = told
        import pyspark
        importlib.invalidate_caches()
        print(*(entry for entry in sys.path if "pyspark.zip" in entry))
        """
    (jar,) = (INSTALLED / "jars").glob("spark-core_*.jar")  # Spark puts it there too
    assert {LIBRARIES[0].name, jar.name} <= set(run(code, LIBRARIES[0], jar).split()), "else nothing is gained"
    assert run(code, LIBRARIES[0], jar, STARTUP) == ""


def test_another_installation_behind_it_is_not_taken(tmp_path: Path) -> None:
    for name in ("spark", "own"):
        (tmp_path / name / "python" / "lib").mkdir(parents=True)
        with zipfile.ZipFile(tmp_path / name / "python" / "lib" / "pyspark.zip", "w") as zipped:
            zipped.writestr("pyspark/__init__.py", f"here = '{name} zip'\n")
    own = tmp_path / "own" / "python" / "pyspark"
    own.mkdir()
    (own / "__init__.py").write_text("here = 'own'\n")
    zips = [tmp_path / name / "python" / "lib" / "pyspark.zip" for name in ("own", "spark")]
    code = "import pyspark; print(pyspark.here)"
    assert run(code, *zips, STARTUP) == "own"
    assert run(code, *reversed(zips), STARTUP) == "spark zip"


def test_a_spark_installation_without_pip(tmp_path: Path) -> None:
    (tmp_path / "python" / "lib").mkdir(parents=True)
    (tmp_path / "python" / "lib" / "pyspark.zip").symlink_to(LIBRARIES[0])
    (tmp_path / "python" / "pyspark").mkdir()
    (tmp_path / "python" / "pyspark" / "__init__.py").write_text("here = True\n")
    zipped = tmp_path / "python" / "lib" / "pyspark.zip"
    assert run("import pyspark; print(pyspark.here)", zipped, STARTUP) == "True"


def test_the_users_own_startup_module_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.own = 'ran'\n")
    code = "import sys, pyspark, sitecustomize; print(sys.own, pyspark.__file__, sitecustomize.__file__)"
    expected = f"ran {INSTALLED / '__init__.py'} {tmp_path / 'sitecustomize.py'}"
    assert run(code, *LIBRARIES, STARTUP, tmp_path) == expected


def test_without_a_zip_nothing_is_changed() -> None:
    code = "import sys; print([type(f).__name__ for f in sys.meta_path if type(f).__name__ == '_FromDirectory'])"
    assert run(code, STARTUP) == "[]"


def test_a_session_puts_it_on_the_path_once(spark: SparkSession) -> None:
    environment = spark.sparkContext.environment
    before = environment.get("PYTHONPATH")
    try:
        environment["PYTHONPATH"] = "/own"
        spark.conf.set("spark.backlog.fastPythonStart", "false")
        bs.register(spark)
        assert environment["PYTHONPATH"] == "/own"
        spark.conf.unset("spark.backlog.fastPythonStart")
        for _ in range(2):
            bs.register(spark)
            assert environment["PYTHONPATH"] == f"/own{os.pathsep}{STARTUP}"
        spark.conf.set("spark.backlog.fastPythonStart", "perhaps")
        with pytest.raises(SettingError, match="fastPythonStart"):
            bs.register(spark)
    finally:
        spark.conf.unset("spark.backlog.fastPythonStart")
        if before is None:
            environment.pop("PYTHONPATH", None)
        else:
            environment["PYTHONPATH"] = before


def test_a_worker_of_a_session_has_it(spark: SparkSession) -> None:
    def where(batches: object) -> object:
        import pyarrow as pa
        import pyspark.sql.types as t

        yield pa.RecordBatch.from_pydict({"file": [t.__file__]})

    bs.register(spark)
    found = spark.range(1).mapInArrow(where, "file string").first()
    assert found is not None
    assert found[0] == str(INSTALLED / "sql" / "types.py")
