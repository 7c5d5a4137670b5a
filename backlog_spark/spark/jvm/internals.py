"""The table of Spark's internals that this package uses, and a probe of each.

Only modules of ``backlog_spark.spark`` touch the driver's JVM. Each has an entry in `INTERNALS`: the classes and
members that it reaches for, and what it does without them. The probe asks Java's reflection whether they exist. It runs
when a session is registered (`backlog_spark.spark.jvm.session.register`), once a process: it has one JVM. The probe
takes milliseconds and starts no job.

An internal with a fallback is replaced by it: slower, with the same results. One without a fallback fails closed:
`require` raises before the query reads a row. ``BACKLOG_SPARK_INTERNALS=off`` in the environment forces every fallback.

PySpark's way to the JVM (``_jvm``, ``_jsparkSession``) has no fallback: Hadoop's public classes need it too.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.errors import BacklogError, SettingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "INTERNALS",
    "SEEN",
    "SWITCH",
    "Internal",
    "fails_closed",
    "is_off",
    "is_usable",
    "missing",
    "probe",
    "require",
    "table",
]

_log = logging.getLogger(__name__)

SWITCH: Final = "BACKLOG_SPARK_INTERNALS"
"""Environment variable: ``off`` forces every fallback. Default: ``on``."""
SEEN: Final = "4.2"
"""The version of Spark in which the members of the table were seen."""

_SQL = "org.apache.spark.sql"
_STREAMING = f"{_SQL}.execution.streaming"
_SESSION, _DATASET = f"{_SQL}.classic.SparkSession", f"{_SQL}.classic.Dataset"
_STREAM, _BATCHES = f"{_STREAMING}.runtime.StreamExecution", f"{_STREAMING}.runtime.MicroBatchExecution"
_CONTEXT = f"{_STREAMING}.runtime.MicroBatchExecutionContext"
_QUERY, _PLAN = f"{_SQL}.execution.QueryExecution", f"{_SQL}.catalyst.plans.logical.LogicalPlan"
_PHYSICAL = f"{_SQL}.execution.SparkPlan"

_PRIMITIVES = {"int": "Integer", "long": "Long", "boolean": "Boolean"}


@dataclass(frozen=True)
class Internal:
    """What one module uses of Spark's internals.

    Parameters
    ----------
    module : str
        In ``backlog_spark.spark``.
    members : mapping of str to tuple of str
        For each class: its public methods with their parameter types, and its fields, including private ones.
    purpose : str
    fallback : str
        What happens without it. Empty: there is no safe fallback, and `require` raises.
    jar : str
        The jar of the classes, if it is not Spark's own. Without that jar the probe reports nothing.
    beside_java : str
        Anything else that the module uses, for the documentation.
    """

    module: str
    members: Mapping[str, tuple[str, ...]]
    purpose: str
    fallback: str = ""
    jar: str = ""
    beside_java: str = ""


INTERNALS: Final[dict[str, Internal]] = {
    "source layout": Internal(
        "checkpoint/source_layout",
        {_DATASET: ("queryExecution()",), _QUERY: ("analyzed()",), _PLAN: ("collectLeaves()", "isStreaming()")},
        "which entry of Spark's offset log belongs to which source",
    ),
    "event times": Internal(
        "jvm/batch_execution",
        {_STREAM: ("lastExecution()",), _QUERY: ("observedMetrics()",)},
        "the greatest event time of a batch, before it commits",
    ),
    "batch plan": Internal(
        "jvm/batch_execution",
        {
            _STREAM: ("lastExecution()",),
            _QUERY: ("executedPlan()",),
            _PHYSICAL: ("execute()", "children()", "metrics()", "collectLeaves()"),
            f"{_SQL}.execution.LogicalRDD": ("rdd()", "outputPartitioning()"),
            _DATASET: (f"ofRows({_SESSION}, {_PLAN})",),
        },
        "a backlog batch without the idle stateful branches",
        "The batch is kept by `localCheckpoint` and run as a whole.",
    ),
    "end between batches": Internal(
        "jvm/stop_between_batches",
        {
            _STREAM: (
                "state()",
                "awaitProgressLock()",
                "queryExecutionThread()",
                "getLatestExecutionContext()",
                "trigger()",
            ),
            _BATCHES: ("triggerExecutor()",),
            _CONTEXT: ("isCurrentBatchConstructed()", "getDuration(java.lang.String)"),
            f"{_STREAMING}.runtime.TERMINATED$": ("MODULE$",),
        },
        "a run that ends between two batches, and whether it reached the end of its input",
        "`StreamingQuery.stop()`: the running batch is interrupted and replayed. A run counts as ended only if its "
        "last progress shows that it looked for rows and found none.",
    ),
    "trigger interval": Internal(
        "jvm/stop_between_batches",
        {_BATCHES: ("triggerExecutor()",), f"{_STREAMING}.runtime.ProcessingTimeExecutor": ("intervalMs",)},
        "a batch that continues firing timers starts at once",
        "They fire at the next interval.",
    ),
    "query settings": Internal(
        "jvm/own_settings",
        {_STREAM: ("sparkSessionForStream()", "pollingDelayMs", "resolvedCheckpointRoot()")},
        "settings for one query only",
        "They are set in the session while the query starts. Another query that starts at that moment gets them too.",
    ),
    "session copy": Internal(
        "jvm/session",
        {_SESSION: ("cloneSession()",)},
        "settings while one source loads or one sink writes",
        "They are set in the session for that time.",
    ),
    "installed sources": Internal(
        "jvm/session",
        {
            f"{_SQL}.execution.datasources.DataSourceManager": (
                "dataSourceExists(java.lang.String)",
                "lookupDataSource(java.lang.String)",
            ),
            f"{_SQL}.execution.datasources.v2.python.UserDefinedPythonDataSource": ("dataSourceCls()",),
        },
        "installed sources, which Spark finds by itself, are not registered again",
        "They are registered again, and Spark logs a warning.",
    ),
    "console progress": Internal(
        "jvm/quiet",
        {"org.apache.spark.SparkContext": ("progressBar()",), "org.apache.spark.ui.ConsoleProgressBar": ("stop()",)},
        "no progress bar of Spark between the lines of a query's progress",
        "Spark's bar goes on, unless `spark.ui.showConsoleProgress=false` is set.",
    ),
    "log filters": Internal(
        "jvm/quiet",
        {
            "org.apache.logging.log4j.core.LoggerContext": ("getConfiguration()", "updateLoggers()"),
            "org.apache.logging.log4j.core.config.LoggerConfig": ("addFilter(org.apache.logging.log4j.core.Filter)",),
        },
        "no warnings that come in each good run, such as `Failed to cancel job group`",
        "They are printed. `conf/log4j2.properties` leaves them out too.",
    ),
    "Python start": Internal(
        "startup",
        {},
        "Python processes that are forked, or import PySpark's byte code (`spark.backlog.fastPythonStart`)",
        "They start as Spark starts them, import PySpark from its zip, and print what they print in a good run.",
        beside_java="`sitecustomize`; the directory of PySpark next to `pyspark.zip`",
    ),
    "launch": Internal(
        "jvm/launch",
        {},
        "Spark's JVM has no settings on its command line, and gets no signals of the process group",
        "PySpark puts them there, and other users of the machine can read them. A SIGTERM to the group ends the JVM.",
        beside_java="PySpark's `SparkContext._ensure_initialized` and `launch_gateway`",
    ),
    "state connection": Internal(
        "plan/state_connection",
        {},
        "tasks with state leave no file descriptor open (SPARK-58932)",
        "Spark 4.2.0 leaves one open in the executor for each such task of each batch, until the executor ends.",
        beside_java="PySpark's `StatefulProcessorHandle._statefulProcessorApiClient` and its `set_handle_state`",
    ),
    "checkpoint files": Internal(
        "checkpoint/files",
        {
            f"{_STREAMING}.checkpointing.CheckpointFileManager": (
                "create(org.apache.hadoop.fs.Path, org.apache.hadoop.conf.Configuration)",
            ),
            f"{_STREAMING}.checkpointing.CheckpointFileManager$CancellableFSDataOutputStream": ("cancel()",),
        },
        "files of a checkpoint, written as Spark writes its own",
        "Hadoop's `FileContext`: a temporary file is written, then renamed. A file system without one is refused.",
    ),
    "columns read": Internal(
        "plan/columns_read",
        {_QUERY: ("optimizedPlan()",), _PLAN: ("toJSON()",)},
        "the columns that a query reads, so that `hybrid` does not read others from Parquet and ORC",
        "It reads all columns.",
    ),
    "plan checks": Internal(
        "plan/batch_frames",
        {
            _QUERY: ("analyzed()",),
            _PLAN: ("deterministic()", "containsPattern(scala.Enumeration$Value)", "stats()"),
            f"{_SQL}.catalyst.trees.TreePattern": ("PLAN_EXPRESSION()", "CURRENT_LIKE()", "PYTHON_UDF()"),
            f"{_SQL}.execution.LogicalRDD": ("rdd()",),
            "org.apache.spark.SparkContext": ("unpersistRDD(int, boolean)",),
        },
        "which rows are the same in a replay, the size of Arrow batches, and the end of rows that are kept for a batch",
        "No plan counts as repeatable, so state is written before results. Spark counts the bytes of Arrow batches. It "
        "frees kept rows when it collects garbage.",
    ),
    "shuffle once": Internal(
        "jvm/shuffle_once",
        {
            f"{_SQL}.execution.adaptive.AdaptiveSparkPlanExec": ("executedPlan()",),
            f"{_SQL}.execution.exchange.ShuffleExchangeLike": (
                "getShuffleRDD([Lorg.apache.spark.sql.execution.ShufflePartitionSpec;)",
                "mapOutputStatisticsFuture()",
            ),
            f"{_SQL}.execution.LogicalRDD": ("rdd()", "outputPartitioning()"),
        },
        "rows that several steps read are shuffled once",
        "Each step shuffles them.",
    ),
    "key sample": Internal(
        "plan/cardinality",
        {
            _PHYSICAL: ("collectLeaves()", "clone()", "execute()"),
            f"{_SQL}.execution.FileSourceScanExec": ("relation()",),
        },
        "an estimate of how many keys a batch has",
        "Rows are always aggregated before they are shuffled.",
    ),
    "progress text": Internal(
        "jvm/listener",
        {f"{_SQL}.streaming.StreamingQueryProgress": ("json()",)},
        "a progress event in one call",
        "PySpark's own listener, which reads each field in a call of its own.",
    ),
    "file sizes": Internal(
        "foreign/outstanding_files",
        {_QUERY: ("optimizedPlan()",), _PLAN: ("stats()",)},
        "the bytes of a source's files",
        "The size of each file is read on its own.",
    ),
    "named sources": Internal(
        "foreign/named_sources",
        {_SESSION: ("cloneSession()",), _DATASET: (f"ofRows({_SESSION}, {_PLAN})",)},
        "the phases of `bs.hybrid`, which are named sources of Spark",
        "The settings that they need are set in the session while a phase is loaded.",
    ),
    "file sink": Internal(
        "jvm/file_sink",
        {
            f"{_SQL}.execution.datasources.DataSource": ("providingInstance()",),
            f"{_SQL}.execution.datasources.DataSourceUtils": (
                f"verifySchema({_SQL}.execution.datasources.FileFormat, {_SQL}.types.StructType, boolean)",
            ),
            f"{_STREAMING}.sinks.FileStreamSink": (f"addBatch(long, {_SQL}.Dataset)",),
        },
        "files that are written once, and that Spark's readers find, by its own file sink: `bs.FilesSink`",
    ),
    "Kafka client": Internal(
        "foreign/kafka_admin",
        {f"{_SQL}.kafka010.SubscribePatternStrategy": ("createAdmin(java.util.Map)",)},
        "offsets and topics for phases of Spark's Kafka source",
        "Kafka's public `Admin`, with the source's options. It does not know delegation tokens.",
        jar="spark-sql-kafka-0-10",
    ),
    "Delta log": Internal(
        "jvm/delta_log",
        {
            f"{_SQL}.delta.DeltaLog": ("forTable(org.apache.spark.sql.SparkSession, java.lang.String)",),
            f"{_SQL}.delta.Snapshot": ("transactions()", "metadata()"),
        },
        "a Delta table's newest version and the last batch in it",
        jar="delta-spark",
    ),
    "Delta files": Internal(
        "jvm/delta_log",
        {
            f"{_SQL}.delta.OptimisticTransaction": ("deltaLog()",),
            f"{_SQL}.delta.DummySnapshot": ("metadata()",),
            f"{_SQL}.delta.actions.Action$": ("fromJson(java.lang.String)",),
        },
        "the files of a large append, which delta-rs commits",
        "Spark commits as well.",
        jar="delta-spark",
    ),
}
"""By name."""

_SIMPLE = re.compile(r"(\[L)?([a-z]\w*\.)+")
_lock = threading.Lock()
_found: dict[str, str] = {}


def is_usable(name: str) -> bool:
    """Whether an internal may be used. If not, the caller takes its fallback.

    Parameters
    ----------
    name : str
        The entry's name in the table.
    """
    return not (INTERNALS[name].fallback and is_off()) and not missing(name)


def require(name: str) -> None:
    """Check that an internal may be used. For callers without a fallback.

    Raises
    ------
    BacklogError
        If it may not. The error has the version of Spark and what to do.
    """
    if not is_usable(name):
        raise fails_closed(name, missing(name))


def fails_closed(name: str, lacks: str = "") -> BacklogError:
    """The error of `require`, for callers that find the fault themselves.

    Parameters
    ----------
    name : str
    lacks : str
        The missing part. Empty if nothing is missing and the environment variable is ``off``.
    """
    from pyspark.version import __version__

    purpose = INTERNALS[name].purpose
    if not lacks and is_off():
        return BacklogError(f"{SWITCH} is off, and this query needs {purpose}.", "Unset it for this query.")
    return BacklogError(
        f"Spark {__version__} does not have what backlog_spark uses for {purpose}"
        f"{f' ({lacks})' if lacks else ''}. There is no other safe way.",
        f"Use Spark {SEEN}, and start the query again on its checkpoint.",
    )


def missing(name: str) -> str:
    """The first part of an internal that this Spark lacks; empty if it has all parts."""
    with _lock:
        found = _found.get(name)
        # The answer may change: a jar can be added to a running session.
        if found is None or (found and INTERNALS[name].jar):
            members = _members()
            if members is None:
                return "a JVM outside this process"
            found = _found[name] = _lacks(INTERNALS[name], members)
        return found


def probe(spark: SparkSession) -> None:
    """Check all internals that have not been checked yet, and log the missing ones.

    Raises
    ------
    SettingError
        If the environment variable is neither ``on`` nor ``off``.
    """
    off = is_off()
    with _lock:
        new = [name for name in INTERNALS if name not in _found]
        members = _members() if new else None
        if members is None:
            return
        for name in new:
            internal = INTERNALS[name]
            _found[name] = lacks = _lacks(internal, members)
            if lacks and not internal.jar and not off:
                then = internal.fallback or "queries that need it are refused."
                _log.warning("Spark %s lacks %s (%s): %s", spark.version, lacks, internal.purpose, then)


def table() -> str:
    """The table in Markdown, for the documentation."""
    lines = ["| module | what for | reaches for | without it |", "|---|---|---|---|"]
    for internal in INTERNALS.values():
        # Types by their simple names.
        members = "; ".join(
            f"`{_SIMPLE.sub('', name)}`: " + ", ".join(f"`{_SIMPLE.sub('', each)}`" for each in found)
            for name, found in internal.members.items()
        )
        then = internal.fallback or "The query is **refused**."
        lines.append(f"| `{internal.module}` | {internal.purpose} | {members or internal.beside_java} | {then} |")
    return "\n".join(lines) + "\n"


def is_off() -> bool:
    """Whether the environment forces every fallback.

    Raises
    ------
    SettingError
        The variable is neither ``on`` nor ``off``.
    """
    value = os.environ.get(SWITCH, "on").lower()
    if value not in ("on", "off"):
        raise SettingError(SWITCH, value, "is neither on nor off.", "Unset it.")
    return value == "off"


def _lacks(internal: Internal, members: _Members) -> str:
    for name, wanted in internal.members.items():
        if lacks := next((each for each in ("", *wanted) if not members.has(name, each)), None):
            return f"{name}.{lacks}"
        if lacks is not None:
            return f"the class {name}"
    return ""


def _members() -> _Members | None:
    from pyspark import SparkContext

    gateway = cast("Any", SparkContext)._gateway
    return None if gateway is None else _Members(gateway)


class _Members:
    """Finds out whether classes have members, with Java's reflection. Each is looked up once."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._loader: Any = self._gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader()
        self._classes: dict[str, Any] = {}
        self._known: dict[tuple[str, str], bool] = {}

    def has(self, name: str, member: str) -> bool:
        """Whether a class has a member; without a member name, whether the class exists."""
        if (name, member) not in self._known:
            try:
                self._find(self._class(name), member)
                self._known[name, member] = True
            except Py4JError:
                self._known[name, member] = False
        return self._known[name, member]

    def _class(self, name: str) -> Any:
        if name not in self._classes:
            if name.startswith("["):  # class loaders do not load array classes
                found = self._gateway.jvm.java.lang.Class.forName(name, False, self._loader)
            elif name in _PRIMITIVES:
                found = getattr(self._gateway.jvm.java.lang, _PRIMITIVES[name]).TYPE
            else:
                found = self._loader.loadClass(name)
            self._classes[name] = found
        return self._classes[name]

    def _find(self, found: Any, member: str) -> None:
        name, parenthesis, rest = member.partition("(")
        if parenthesis:
            types = [self._class(each) for each in rest.removesuffix(")").split(", ") if each]
            taken: Any = self._gateway.new_array(self._gateway.jvm.java.lang.Class, len(types)) if types else None
            for i, each in enumerate(types):
                taken[i] = each
            found.getMethod(name, taken)
        elif name:
            found.getDeclaredField(name)
