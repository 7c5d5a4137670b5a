"""Looks at this machine for a pipeline: packages, versions, jars and Java."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from backlog_spark.common.requirements import check_pyspark, package_of
from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.model import Pipeline
from backlog_spark.pipelines.sections import (
    DeltaSection,
    DeltaTablesSink,
    IcebergSection,
    IcebergTablesSink,
    JdbcUpsertSink,
    PythonSink,
    TopicSink,
)
from backlog_spark.spi.examination import Finding, Severity

__all__ = ["java", "packages"]

_JAVA: Final = 17
_DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
# Sources of Spark that its own distribution lacks.
_JARS: Final = {"kafka": "spark-sql-kafka-0-10", "avro": "spark-avro"}
_DELTA_JARS: Final = re.compile(r"delta-spark|delta_2")


def packages(pipeline: Pipeline) -> Iterator[Finding]:
    """Packages and versions."""
    try:
        check_pyspark()
    except BacklogError as problem:
        yield Finding(Severity.ERROR, "pyspark", problem.problem, problem.hint)
    sinks = [each.section for each in pipeline.outputs()]
    has_delta = any(isinstance(sink, DeltaSection | DeltaTablesSink | PythonSink) for sink in sinks)
    needed = {"delta": "a Delta sink", "deltalake": "a Delta sink"} if has_delta else {}
    if any(isinstance(sink, IcebergSection | IcebergTablesSink) for sink in sinks):
        needed["pyiceberg"] = "an Iceberg sink"
    if any(declared.section.type == "mysql_cdc" for declared in pipeline.sources):
        needed |= {"pymysql": "mysql_cdc", "cryptography": "mysql_cdc"}
    for section in sinks:
        if isinstance(section, JdbcUpsertSink):
            needed["psycopg" if "postgresql:" in section.url else "pymysql"] = section.type
        elif isinstance(section, TopicSink):
            needed |= {"confluent_kafka": section.type} | (
                {"fastavro": section.type} if section.format == "avro" else {}
            )
    if any(transform.sql for transform in pipeline.transforms):
        needed["sqlglot"] = "SQL"
    missing = {name: why for name, why in needed.items() if importlib.util.find_spec(name) is None}
    for name, why in missing.items():
        yield Finding(
            Severity.ERROR, name, f"this Python lacks the package {name}, which {why} needs.",
            f"Run pip install {package_of(name)}.",
        )  # fmt: skip
    if not missing:
        names = ("backlog-spark", "pyspark", "delta-spark", "deltalake")
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names if _is_installed(name))
        yield Finding(Severity.OK, "packages", f"{versions}.")
    yield from _jars(pipeline)


def _jars(pipeline: Pipeline) -> Iterator[Finding]:
    """Jars that the sinks and sources need. The sources ``mysql_cdc`` and ``hybrid`` need none."""
    settings = pipeline.pipeline.settings
    jars = " ".join(settings.get(name, "") for name in ("spark.jars", "spark.jars.packages"))
    has_jars = "spark.jars" in settings or "spark.jars.packages" in settings
    if has_jars and not _DELTA_JARS.search(jars):
        yield Finding(
            Severity.ERROR, "jars", "the settings name jars, and Delta's are not among them.",
            f"Add {_DELTA_PACKAGE} to spark.jars.packages.",
        )  # fmt: skip
    version = importlib.metadata.version("pyspark") if _is_installed("pyspark") else "4.2.0"
    for section in (declared.section for declared in pipeline.sources):
        jar = _JARS.get(section.type)
        if jar is None or jar in jars or _is_in_spark(jar):
            continue
        more = "" if has_jars else f",{_DELTA_PACKAGE}"
        other = " Or use the type hybrid, which needs no jars." if section.type == "kafka" else ""
        yield Finding(
            Severity.ERROR, f"source {section.name}",
            f"Spark's source {section.type} is in a jar that the settings do not name.",
            f"Add org.apache.spark:{jar}_2.13:{version}{more} to spark.jars.packages.{other}",
        )  # fmt: skip
    for jar in filter(None, settings.get("spark.jars", "").split(",")):
        if "://" not in jar and not Path(jar).is_file():
            yield Finding(Severity.ERROR, "jars", f"there is no file {jar}.", "Correct spark.jars.")


def _is_in_spark(jar: str) -> bool:
    """Whether Spark brings a jar, or its defaults or spark-submit's arguments name it."""
    found = importlib.util.find_spec("pyspark")
    homes = [Path(os.environ["SPARK_HOME"])] if os.environ.get("SPARK_HOME") else []
    homes += [Path(found.origin).parent] if found and found.origin else []
    if any(True for home in homes for _ in home.glob(f"jars/*{jar}*.jar")):
        return True
    configured = [Path(os.environ["SPARK_CONF_DIR"])] if os.environ.get("SPARK_CONF_DIR") else []
    configured += [home / "conf" for home in homes]
    texts = [os.environ.get("PYSPARK_SUBMIT_ARGS", "")]
    texts += [p.read_text(errors="replace") for c in configured if (p := c / "spark-defaults.conf").is_file()]
    return any(jar in text for text in texts)


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def java() -> Iterator[Finding]:
    """The version of Java."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    hint = f"Install Java {_JAVA} or later, and set JAVA_HOME."
    if program is None:
        yield Finding(Severity.ERROR, "java", f"there is no java in {'JAVA_HOME' if home else 'the PATH'}.", hint)
        return
    try:
        told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding(Severity.ERROR, "java", f"{program} does not run: {type(error).__name__}.", hint)
        return
    found = re.search(r'version "(\d+)', told)
    version = int(found[1]) if found else 0
    if version < _JAVA:
        yield Finding(
            Severity.ERROR, "java", f"{program} is version {version or 'unknown'}; Spark needs {_JAVA}.", hint
        )
    else:
        yield Finding(Severity.OK, "java", f"version {version}.")
