"""Spark's Python processes start with byte code, and nothing else changes for them."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
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


def started(module: str, path: list[Path], *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """One of PySpark's programs, as the JVM starts it."""
    given = {
        "PYTHON_WORKER_FACTORY_SECRET": "secret", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, path)), **environment,
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments], env={**os.environ, **given},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def number(text: bytes) -> int:
    return struct.unpack("!i", text)[0]


def sent(text: bytes) -> bytes:
    return struct.pack("!i", len(text)) + text


def printed_by_a_worker(module: str, path: list[Path]) -> str:
    """What PySpark's daemon prints about a worker whose connection the JVM closes."""
    with started("pyspark.daemon", path, module) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        with socket.create_connection(("127.0.0.1", number(daemon.stdout.read(4)))) as jvm:
            worker = number(jvm.recv(4, socket.MSG_WAITALL))
            jvm.sendall(sent(b"secret"))
            assert jvm.recv(6, socket.MSG_WAITALL)[4:] == b"ok"
            jvm.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # what it sent is lost too
        until = time.monotonic() + 60
        while Path("/proc", str(worker)).exists() and time.monotonic() < until:
            time.sleep(0.05)
        daemon.stdin.close()
        return daemon.stderr.read().decode()


def test_a_worker_says_nothing_when_spark_closes_its_connection(tmp_path: Path) -> None:
    assert "BrokenPipeError" in printed_by_a_worker("pyspark.worker", []), "else nothing need be left out any more"
    assert printed_by_a_worker("pyspark.worker", [STARTUP]) == ""
    (tmp_path / "pyspark_own.py").write_text("def main(*_):\n    raise BrokenPipeError('The user s own pipe broke.')\n")
    assert "The user s own pipe broke." in printed_by_a_worker("pyspark_own", [STARTUP, tmp_path])


def test_the_preparation_of_a_keyed_query_prints_only_what_the_user_prints() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}".encode()
    for path, said in (([], True), ([STARTUP], False)):
        with socket.create_server(("127.0.0.1", 0)) as jvm:
            port = str(jvm.getsockname()[1])
            module = "pyspark.sql.streaming.transform_with_state_driver_worker"
            with started(module, path, PYTHON_WORKER_FACTORY_PORT=port) as process:
                with jvm.accept()[0] as connection:
                    connection.recv(10, socket.MSG_WAITALL)
                    connection.sendall(sent(b"ok"))
                    connection.recv(4, socket.MSG_WAITALL)
                    connection.sendall(sent(version))
                out, _ = process.communicate(timeout=60)
        assert (b"Starting Streaming TransformWithStateInPandas Python worker" in out) is said


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
