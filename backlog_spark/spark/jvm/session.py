"""Registers the sources and the listener with a SparkSession.

Reaches for: ``SparkSession.cloneSession`` and the manager of data sources (seen in Spark 4.2; entries "session copy"
and "installed sources" of `backlog_spark.spark.jvm.internals`). Without them settings are set in the session itself for
a while, and a source that Spark has found by itself is registered again. Also uses the JVM's active session, which is
public in Java.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.common.failure_causes import first_line, with_next_step
from backlog_spark.common.familiar_names import choice, described
from backlog_spark.common.hadoop_arguments import with_keys
from backlog_spark.common.requirements import refuse_other_than
from backlog_spark.common.settings import is_read, parse_settings
from backlog_spark.errors import BacklogError
from backlog_spark.spark import startup
from backlog_spark.spark.jvm import internals
from backlog_spark.spark.jvm.listener import BacklogListener
from backlog_spark.spark.jvm.py4j_helpers import hadoop_conf, java_class
from backlog_spark.spark.jvm.quiet import end_source_lookup, filter_messages
from backlog_spark.spi.registry import CONNECTORS, data_source, discover

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

    from backlog_spark.model.nodes import SourceSpec

__all__ = [
    "REDACTION",
    "check_session",
    "hadoop_settings",
    "heap_bytes",
    "is_stopped",
    "load",
    "loading",
    "own_conf",
    "redaction",
    "refuse_spark_connect",
    "register",
    "register_source",
    "session_conf",
    "session_copy",
    "session_listener",
    "starting",
]

REDACTION = "spark.sql.redaction.options.regex"
"""Regular expression for option names. Spark hides their values in plans, and so in errors and event logs."""

# Streaming sources that come with Spark, or with Delta's and Kafka's jars.
_FORMATS = frozenset({"avro", "csv", "delta", "json", "kafka", "orc", "parquet", "rate", "socket", "text", "xml"})

# Held while a source is loaded and while a query starts. Spark reads session settings then, and another query of ours
# may have set some for itself. A started query has a copy of its own.
starting = threading.RLock()
_lock = threading.Lock()
_sources: weakref.WeakKeyDictionary[Any, dict[str, type[DataSource]]] = weakref.WeakKeyDictionary()
# The sources of each session whose secrets are hidden already.
_hidden: weakref.WeakKeyDictionary[Any, set[type[DataSource]]] = weakref.WeakKeyDictionary()
# One listener per session: Spark calls each listener for every event of every query.
_listeners: weakref.WeakKeyDictionary[Any, BacklogListener] = weakref.WeakKeyDictionary()


def register(spark: SparkSession) -> None:
    """Register the data sources and the listener with a session. Calling it again does no harm.

    Afterwards ``spark.readStream.format("mysql_cdc")`` works. Queries started through `backlog_spark.source` call
    this themselves. The session conf `REDACTION` grows by the sources' options that contain secrets.

    Notes
    -----
    Spark runs Python sources with ``PYSPARK_PYTHON``. If that is unset it takes ``python3`` from the path, where
    packages may be missing; then a source fails only when it is read. So with a local master this function sets the
    interpreter that it runs in.
    """
    check_session(spark)
    internals.probe(spark)
    context = spark.sparkContext
    if "PYSPARK_PYTHON" not in os.environ and (context.master or "").startswith("local"):
        found = shutil.which("python3")
        if found is None or os.path.realpath(found) != os.path.realpath(sys.executable):
            context.pythonExec = sys.executable
    _pass_on_path(spark)
    _start_faster(spark)
    discover()
    sources = [data_source(source_format) for source_format in CONNECTORS]
    with _lock:
        _hide_secrets(spark, sources)
    for source in sources:
        register_source(spark, source)
    end_source_lookup(spark)
    session_listener(spark)


def refuse_spark_connect(thing: object) -> None:
    """Refuse a session or DataFrame of Spark Connect.

    Raises
    ------
    BacklogError
    """
    if type(thing).__module__.startswith("pyspark.sql.connect."):
        raise BacklogError(
            f"This is a {type(thing).__name__} of Spark Connect. backlog_spark needs a classic session: it starts, "
            "follows and stops its queries through the driver's JVM.",
            "Run the job on the driver: with spark-submit, or SparkSession.builder.master(…) without remote(…) and "
            "SPARK_REMOTE. The sources alone, such as spark.readStream.format('mysql_cdc'), may be used where the "
            "Spark Connect server has the package.",
        )


def check_session(spark: Any) -> None:
    """Refuse a session that no query can run in: Spark Connect, a stopped session, or another version of Spark.

    Raises
    ------
    BacklogError
    """
    from pyspark.sql import SparkSession

    refuse_spark_connect(spark)
    if not isinstance(spark, SparkSession):
        raise BacklogError(f"There is no SparkSession: found {described(spark)}.", "Create one, or pass spark=….")
    if is_stopped(spark):
        raise BacklogError("The SparkSession is stopped.", "Create one again, with SparkSession.builder.getOrCreate().")
    refuse_other_than(spark.version, "Spark", "SPARK_HOME and PySpark must be of one version: pyspark==4.2.*.")


def is_stopped(spark: SparkSession) -> bool:
    """Whether a session's context has been stopped."""
    return cast("Any", spark.sparkContext)._jsc is None


def own_conf(spark: SparkSession) -> dict[str, str]:
    """The session's configuration: keys that start with ``spark.backlog.``, and Flink's."""
    return {name: text for name, text in spark.conf.getAll.items() if is_read(name)}


@contextmanager
def loading(source_format: str) -> Iterator[None]:
    """Adds a next step to the error if Spark cannot load a streaming source of this format."""
    from pyspark.errors import ParseException

    with with_next_step(f"The source {source_format} could not be loaded"):
        try:
            yield
        except Exception as error:
            text = str(error)
            if isinstance(error, ParseException):
                raise BacklogError(
                    f"The schema of the source {source_format} cannot be read: {first_line(error)}",
                    "Write it as in SQL: schema='id BIGINT, at TIMESTAMP'.",
                ) from error
            if "DATA_SOURCE_NOT_FOUND" not in text and "does not support streamed reading" not in text:
                raise
            hint = choice(source_format, [*CONNECTORS, *_FORMATS], "There are")
            if source_format == "delta":
                hint = f"Its jars are not in the session: see delta.configure_spark_with_delta_pip. {hint}"
            raise BacklogError(
                f"Spark finds no streaming source with the format {source_format!r}.",
                f"{hint} Register a source of your own with spark.dataSource.register(…).",
            ) from error


def _pass_on_path(spark: SparkSession) -> None:
    """Give what ``spark-submit --py-files`` has put on this process's path to Spark's processes on this machine.

    Spark gives it to the driver's program and to the executors, but not to the processes that plan Python sources.
    """
    environment = spark.sparkContext.environment
    of_jvm = cast("Any", spark._jvm).System.getenv("PYTHONPATH") or ""
    there = {*of_jvm.split(os.pathsep), *environment.get("PYTHONPATH", "").split(os.pathsep)}
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    new = [e for e in given if e and e not in there and not _is_of_spark(e)]
    if new:
        before = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(entry for entry in [*new, before] if entry)


def _is_of_spark(entry: str) -> bool:
    """Whether spark-submit puts this on the path itself: Spark's Python directory and the archives in it."""
    home = os.environ.get("SPARK_HOME")
    return Path(entry).name.startswith(("pyspark.zip", "py4j-")) or bool(home and Path(entry) == Path(home, "python"))


def _start_faster(spark: SparkSession) -> None:
    """Put `startup` on the path of Spark's Python processes. Workers without the directory ignore it."""
    wanted = parse_settings(own_conf(spark))["spark.backlog.fastPythonStart"] == "true"
    if not wanted or not internals.is_usable("Python start"):
        return
    ours = str(Path(startup.__file__).parent)
    environment = spark.sparkContext.environment
    before = environment.get("PYTHONPATH", "").split(os.pathsep)
    if ours not in before:
        environment["PYTHONPATH"] = os.pathsep.join(entry for entry in [*before, ours] if entry)
    # The path may have got longer since the last call. A server forks only processes of its own environment.
    environment.pop(startup.SERVER, None)
    server = startup.fork_server(spark.sparkContext.pythonExec, _of_processes(spark), _ours(spark))
    if server is not None:
        environment[startup.SERVER] = server


def _of_processes(spark: SparkSession) -> dict[str, str]:
    """The environment that Spark gives to Python processes on the driver's machine."""
    context, jvm = spark.sparkContext, cast("Any", spark._jvm)
    of_jvm = _environment_of(jvm)
    added = context.environment
    # As Spark's PythonWorkerFactory joins them.
    path = [
        jvm.org.apache.spark.api.python.PythonUtils.sparkPythonPath(),
        *(e.get("PYTHONPATH") for e in (added, of_jvm)),
    ]
    return {
        **of_jvm,
        **added,
        "PYTHONPATH": os.pathsep.join(entry for entry in path if entry),
        "PYTHONUNBUFFERED": "YES",
    }


@functools.lru_cache(maxsize=1)
def _environment_of(jvm: Any) -> dict[str, str]:
    # Two calls into the JVM for each variable. It cannot change there.
    return {str(name): str(value) for name, value in jvm.System.getenv().items()}


def _ours(spark: SparkSession) -> list[str]:
    """Modules of this project that a process on the driver's machine may import."""
    if cast("Any", spark.sparkContext)._python_includes:
        return []  # --py-files may bring modules of the same names, and comes onto the path later
    return [
        "backlog_spark.runner.control",
        "backlog_spark.spark.plan.group_processor",
        "backlog_spark.connectors.mysql_cdc",
        "backlog_spark.connectors.hybrid",
    ]


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source with a session, unless it is there.

    Spark warns about each source that replaces another, again in each copy of the session that a query starts with.
    """
    with _lock:
        known = _sources.setdefault(spark, {})
        if known.get(source.name()) is not source:
            # The path is kept with the source, so it must be set now.
            _pass_on_path(spark)
            _start_faster(spark)
            _hide_secrets(spark, [source])
            if not _found_by_spark(spark, source.name()):
                filter_messages(spark)  # Spark warns
                with _active(spark):
                    spark.dataSource.register(source)
            known[source.name()] = source


def _found_by_spark(spark: SparkSession, name: str) -> bool:
    """Whether Spark has found our source by itself, as an installed package. Then it starts fast as well.

    False if that is unknown. The source is then registered again, which works but logs a warning.
    """
    if not internals.is_usable("installed sources"):
        return False
    context = spark.sparkContext
    try:
        manager = cast("Any", spark)._jsparkSession.sessionState().dataSourceManager()
        if not manager.dataSourceExists(name):
            return False
        function = manager.lookupDataSource(name).dataSourceCls()
        if f"pyspark_{name}".encode() not in bytes(function.command().unsafeArray()):
            return False  # a user's own source of the same name
        if function.pythonExec() != context.pythonExec:
            return False
        for key, value in context.environment.items():
            function.envVars().put(key, value)
    except (Py4JError, TypeError):
        return False
    return True


def redaction(sources: Iterable[type[DataSource]], before: str) -> str:
    """The new value of `REDACTION`: hides the secrets of the sources, and all that the old value hides."""
    names = "|".join(secrets for source in sources if (secrets := getattr(source, "secrets", "")))
    ours = f"(?i:^({names})$)"
    return before if not names or ours in before else f"{ours}|{before}"


def _hide_secrets(spark: SparkSession, sources: Iterable[type[DataSource]]) -> None:
    """Hide secrets in the plans that Spark writes. Once per session and source."""
    hidden = _hidden.setdefault(spark, set())
    new = [source for source in sources if getattr(source, "secrets", "") and source not in hidden]
    if new:
        before = spark.conf.get(REDACTION) or ""
        wanted = redaction(new, before)
        if wanted != before:
            spark.conf.set(REDACTION, wanted)
        hidden.update(new)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the thread's active one for a while.

    Spark looks for a source in the session itself, then in the active session. If only the active one has it, Spark
    refuses to register it.
    """
    sessions = java_class(spark, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(cast("Any", spark)._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def session_listener(spark: SparkSession) -> BacklogListener:
    """The session's listener, added on the first call."""
    with _lock:
        listener = _listeners.get(spark)
        if listener is None:
            listener = BacklogListener()
            spark.streams.addListener(listener)
            _listeners[spark] = listener
        return listener


# For each session and setting that is set for a while: its value before the first setter, and each setter's own value.
_overruled: dict[tuple[str, str], list[tuple[object, str | None]]] = {}
_overruling = threading.Lock()


def session_copy(spark: SparkSession) -> SparkSession:
    """A session with the same catalog and, at first, the same settings. Settings made in it reach no other query.

    The fallback is the session itself: use `session_conf` in it.
    """
    from pyspark.sql import SparkSession

    if not internals.is_usable("session copy"):
        return spark
    return SparkSession(spark.sparkContext, cast("Any", spark)._jsparkSession.cloneSession())


@contextmanager
def session_conf(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set session confs for a while. Afterwards each has its old value, or is unset.

    Several threads may do so at once. The last one to end restores the value from before the first.
    """
    session, own = str(cast("Any", spark)._jsparkSession.hashCode()), object()  # the identity of a Java object
    try:
        for name, value in values.items():
            with _overruling:
                wanted = _overruled.setdefault((session, name), [])
                if not wanted:
                    wanted.append((None, spark.conf.get(name, None)))
                wanted.append((own, value))
                spark.conf.set(name, value)
        yield
    finally:
        for name in values:
            with _overruling:
                _end_overruling(spark, session, name, own)


def _end_overruling(spark: SparkSession, session: str, name: str, own: object) -> None:
    wanted = [each for each in _overruled.pop((session, name), []) if each[0] is not own]
    if not wanted:
        return
    if len(wanted) > 1:
        _overruled[session, name] = wanted
    value = wanted[-1][1]
    if value is None:
        spark.conf.unset(name)
    else:
        spark.conf.set(name, value)


def heap_bytes(spark: SparkSession) -> int:
    """How large the driver's heap may become."""
    return int(java_class(spark, "java.lang.Runtime").getRuntime().maxMemory())


def hadoop_settings(spark: SparkSession) -> Callable[[str], str | None]:
    """Hadoop's settings by name, also those that a credential provider keeps."""
    conf = hadoop_conf(spark)

    def get(name: str) -> str | None:
        found = conf.getPassword(name)
        return None if found is None else "".join(found)

    return get


def load(spark: SparkSession, source: SourceSpec, more: Mapping[str, str | None]) -> DataFrame:
    """The streaming DataFrame of a declared source. The runner's options replace the user's."""
    options = with_keys(source.format, source.completed(more), lambda: hadoop_settings(spark))
    with starting, loading(source.format):
        return spark.readStream.format(source.format).options(**options).load()
