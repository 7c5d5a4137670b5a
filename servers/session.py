"""A local Spark session for this project: with Delta, warnings only, in UTC."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from servers.jars import delta_jars, java_executable

__all__ = ["local_session"]

# The rules of conf/log4j2.properties.
_LOG4J2 = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
appender.console.filter.stateful.type = RegexFilter
appender.console.filter.stateful.regex = Disabling AQE .* in stateful workloads.|No more data to read from the socket
appender.console.filter.stateful.onMatch = DENY
appender.console.filter.stateful.onMismatch = NEUTRAL
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.resolve.name = org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream
logger.resolve.level = error
logger.strings.name = org.apache.spark.util.SparkStringUtils
logger.strings.level = error
logger.rdd.name = org.apache.spark.rdd.MapPartitionsRDD
logger.rdd.level = error
logger.dag.name = org.apache.spark.scheduler.DAGScheduler
logger.dag.level = error
logger.sources.name = org.apache.spark.sql.execution.datasources.DataSourceManager
logger.sources.level = error
"""


def local_session(app_name: str, *, master: str = "local[2,4]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """Start a local Spark session, or return the active one after applying ``conf`` to it.

    Parameters
    ----------
    app_name : str
        Name of the application.
    master : str, default "local[2,4]"
        Two threads, and up to four attempts of a task. ``local[2]`` retries no task.
    conf : mapping of str to str, optional
        Settings that replace the defaults below. ``spark.jars`` and ``spark.driver.extraJavaOptions`` are added to the
        defaults instead.

    Raises
    ------
    BacklogError
        Java is missing or too old, or Delta's jars cannot be downloaded.

    Notes
    -----
    Defaults: Delta's jars, extension and catalog; 4 shuffle partitions; 2 tasks to build the state of a Delta table;
    no UI; session time zone UTC; 4 GiB of driver memory; checkpoint files written through Spark's manager for any file
    system; Unix sockets to Python workers; a warehouse in a temporary directory, which is removed at exit; warnings
    only on the console. Python workers use this process's interpreter. Settings of the JVM only apply if this call
    starts the JVM.
    """
    java_executable()  # else PySpark says "Java gateway process exited before sending its port number"
    # Spark would use `python3` from PATH. It may not have the packages, and the workers would fail 10 s later.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # This only prevents a warning about host names. The two loopback settings below choose the address.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = dict(conf or {})
    jars = [str(path) for path in delta_jars()] + [jar for jar in settings.pop("spark.jars", "").split(",") if jar]
    work = _work_directory()
    java_options = f"-Dlog4j2.configurationFile=file:{work / 'log4j2.properties'}"
    more_options = settings.pop("spark.driver.extraJavaOptions", "")
    defaults = {
        "spark.jars": ",".join(jars),
        "spark.driver.extraJavaOptions": f"{java_options} {more_options}".strip(),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": "4",
        # Delta's default of 50 tasks to build a table's state costs each read after a write 3 s on two cores.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # Spark's default for a local disk starts five processes (`readlink`, `chmod`) for each checkpoint file: 36 ms.
        # This manager takes 10 ms. Other file systems have no such costs.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        # Over TCP, the answer of a Python worker waits 40 ms for an acknowledgement: half of the time of a small task.
        "spark.python.unix.domain.socket.enabled": "true",
        # It adds the line of the user's code to error messages, but makes ten calls to the JVM for each column.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.driver.memory": "4g",
        # With loopback Spark also starts on a machine whose host name does not resolve.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return SparkSession.builder.master(master).appName(app_name).config(map={**defaults, **settings}).getOrCreate()


_work: Path | None = None


def _work_directory() -> Path:
    """The directory of this process. The JVM reads its log configuration once, and a warehouse outlives a session."""
    global _work
    if _work is None:
        _work = Path(tempfile.mkdtemp(prefix="backlog-spark-session-"))
        (_work / "log4j2.properties").write_text(_LOG4J2)
        atexit.register(_remove, _work, os.getpid())
    return _work


def _remove(directory: Path, owner: int) -> None:
    # A forked child inherits the exit hook, but the directory belongs to its parent.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
