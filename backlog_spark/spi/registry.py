"""The registry of connectors, and the functions by which a query asks them.

A connector is a module with a ``DataSource`` class and a function ``inspect(options) -> SourceInfo``. ``inspect``
checks options and server in the driver's own process, so mistakes are reported before Spark starts. Other packages
register their connectors by an entry point of the group ``backlog_spark.connectors`` or by `add_connector`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from backlog_spark.common.requirements import check_pyspark, required
from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

    from backlog_spark.spi.examination import Examination
    from backlog_spark.spi.options import Option
    from backlog_spark.spi.signals import Signal
    from backlog_spark.spi.source_info import SourceInfo
    from backlog_spark.spi.tables_at import TablesAt

__all__ = [
    "CONNECTORS",
    "KEEPS_METADATA",
    "READS_COLUMNS",
    "add_connector",
    "advice",
    "check_log",
    "check_options",
    "check_resume",
    "check_signal",
    "check_start",
    "compares_offsets",
    "connector_module",
    "data_source",
    "discover",
    "documented_options",
    "examine",
    "inspect",
    "table_names",
    "table_progress",
    "tables_at",
]

ENTRY_POINTS: Final = "backlog_spark.connectors"
"""The group of entry points for connectors of other packages."""

# Format name -> module with the DataSource class of that name and ``inspect``.
CONNECTORS: dict[str, tuple[str, str]] = {
    "mysql_cdc": ("backlog_spark.connectors.mysql_cdc", "MySqlCdcDataSource"),
    "hybrid": ("backlog_spark.connectors.hybrid", "HybridDataSource"),
    "datagen": ("backlog_spark.connectors.datagen", "DatagenDataSource"),
}

# Formats that keep files of their own outside the checkpoint, in the directory of the option ``metadataLocation``.
KEEPS_METADATA = {"hybrid"}

# Formats that can do without that option. Only one reader may use the directory.
MAY_KEEP_METADATA = {"mysql_cdc"}

# Formats with the option ``neededColumns``: a query sets it to the columns that it reads.
READS_COLUMNS = {"hybrid"}


def add_connector(source_format: str, module: str, data_source: str, *, keeps_metadata: bool = False) -> None:
    """Register a connector of another package.

    Its offsets are JSON objects with ``isProcessingBacklog`` and ``isBacklog``. It takes the options ``interval``,
    ``intervalDuringBacklog`` and ``availableNowTarget``, as ``mysql_cdc`` documents them. With the target
    ``backlogEnd`` it also gives the offset in which only the flag has become false. With ``none`` it gives no new
    offset. While it is not in backlog, it gives a batch when `backlog_spark.spi.pacing.Pacer` allows it. The pacer uses
    the option ``queryToken`` to ask the query whether another source is in backlog.

    Parameters
    ----------
    source_format : str
        The ``DataSource.name`` of its class.
    keeps_metadata : bool
        Whether it takes the option ``metadataLocation``: a directory for its own files. A query sets it to a directory
        of its checkpoint.
    module, data_source : str
        Module and name of the class. The module also has ``inspect(options) -> SourceInfo``, called once when a query
        starts. It may have ``check_start(options)``, called at the first start on a checkpoint: it raises a
        `BacklogError` if something in the options does not exist. It may have ``check_resume(options, offset)``,
        called at later starts with the checkpoint's newest offset of the source, as JSON: it raises a `BacklogError` if
        the source cannot continue with these options. For pipelines in a file it may have ``check_options(options)``,
        ``documented_options()`` and ``examine(options)``, and for `explain` ``advice(options)``; see the functions of
        these names. Executors must have the module too. The class may have ``secrets``, a regular expression for the
        whole names of options whose values Spark must not show.
    """
    CONNECTORS[source_format] = (module, data_source)
    if keeps_metadata:
        KEEPS_METADATA.add(source_format)


def discover() -> None:
    """Register the connectors of all installed packages by their entry points. Called when a session is registered.

    An entry point of the group ``backlog_spark.connectors`` has the format's name and ``module:DataSourceClass``, which
    are passed to `add_connector`. A class attribute ``keeps_metadata = True`` is passed too. A format that is already
    registered is not replaced, so a job can register its own connector instead of an installed one.

    Raises
    ------
    BacklogError
        For an entry point of another form.
    """
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if point.name in CONNECTORS:
            continue
        if not point.module or not point.attr:
            package = point.dist.name if point.dist else "a package"
            raise BacklogError(
                f"The entry point {point.name} = {point.value!r} of {package} names no class.",
                f"Write {point.name} = module:DataSourceClass in its group {ENTRY_POINTS}, or uninstall the package.",
            )
        add_connector(point.name, point.module, point.attr)
        if getattr(data_source(point.name), "keeps_metadata", False):
            KEEPS_METADATA.add(point.name)


def inspect(source_format: str, options: Mapping[str, str]) -> SourceInfo | None:
    """Check a source before the start; None for a format that is not a connector's.

    Raises
    ------
    BacklogError
        Raised by the connector's ``inspect``.
    """
    if source_format not in CONNECTORS:
        return None
    info: SourceInfo = _module(source_format).inspect(options)
    return info


def check_options(source_format: str, options: Mapping[str, str]) -> None:
    """Check names and values of options, without a server. Only for connectors.

    Raises
    ------
    SettingError
        Raised by the connector's ``check_options``, if it has one. ``setting`` is the option.
    """
    if check := _function(source_format, "check_options"):
        check(options)


def documented_options(source_format: str) -> tuple[Option, ...]:
    """The options of a connector. Empty if its module has no ``documented_options``."""
    found = _function(source_format, "documented_options")
    return tuple(found()) if found else ()


def examine(source_format: str, options: Mapping[str, str]) -> Examination | None:
    """Everything about server and tables that would fail, and what is worth knowing. None if the connector cannot.

    Raises
    ------
    BacklogError
        Raised by the connector's ``examine``: the server cannot be reached.
    """
    found = _function(source_format, "examine")
    made: Examination | None = found(options) if found else None
    return made


def advice(source_format: str, options: Mapping[str, str]) -> str:
    """When to take another source instead, for `explain`. Empty if the connector's module has no ``advice``."""
    found = _function(source_format, "advice")
    text: str = found(options) if found else ""
    return text


def check_start(source_format: str, options: Mapping[str, str]) -> None:
    """Check that everything in a source's options exists, before a query first starts. Only for connectors.

    Raises
    ------
    BacklogError
        Raised by the connector's ``check_start``, if it has one.
    """
    if check := _function(source_format, "check_start"):
        check(options)


def check_resume(source_format: str, options: Mapping[str, str], offset: Mapping[str, Any]) -> None:
    """Check that a source can continue from its offset with these options, before a query resumes. Only for connectors.

    Raises
    ------
    BacklogError
        Raised by the connector's ``check_resume``, if it has one.
    """
    if check := _function(source_format, "check_resume"):
        check(options, offset)


def check_log(source_format: str, options: Mapping[str, str], offset: Mapping[str, Any]) -> None:
    """Check that a source still has what follows after its offset. Only for connectors; the query checks it itself.

    Raises
    ------
    BacklogError
        Raised by the connector's ``check_log``, if it has one.
    """
    if check := _function(source_format, "check_log"):
        check(options, offset)


def compares_offsets(source_format: str) -> bool:
    """Whether a connector compares its options with a checkpoint's offset itself: it has ``check_resume``."""
    return _function(source_format, "check_resume") is not None


def check_signal(source_format: str, options: Mapping[str, str], signal: Signal) -> None:
    """Check that a source can carry out a signal, before the query keeps it.

    Raises
    ------
    BacklogError
        Raised by the connector, or because it takes no signals.
    """
    connector = CONNECTORS.get(source_format)
    check = getattr(importlib.import_module(connector[0]), "check_signal", None) if connector else None
    if check is None:
        raise BacklogError(f"A source of the format {source_format!r} takes no signals.", "mysql_cdc does.")
    check(options, signal)


def tables_at(
    source_format: str,
    options: Mapping[str, str],
    offset: Mapping[str, Any],
    *,
    table: str = "",
    rows_per_chunk: int | None = None,
) -> TablesAt:
    """The rows of a source's tables as of an offset.

    Parameters
    ----------
    options : mapping
        The source's options.
    offset : mapping
        An offset from Spark's log.
    table : str
        One of several tables, as `TableName` writes it. "" for all.
    rows_per_chunk : int, optional
        Approximately the most rows of a part. Default: the source's options decide.

    Raises
    ------
    BacklogError
        The connector has no function ``tables_at``, or that function raises it.
    """
    found = _function(source_format, "tables_at")
    if found is None:
        raise BacklogError(
            f"A source of the format {source_format!r} cannot read earlier states of its tables.",
            "verify compares tables that mysql_cdc reads.",
        )
    made: TablesAt = found(options, offset, table=table, rows_per_chunk=rows_per_chunk)
    return made


def table_names(source_format: str, offset: Mapping[str, Any]) -> tuple[str, ...]:
    """The tables that a source reads at an offset, as `TableName` writes them. Empty if the connector cannot say it."""
    found = _function(source_format, "table_names")
    return tuple(found(offset)) if found else ()


def table_progress(source_format: str, offset: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """How far the snapshot of each table is at an offset: its name, a word for it, and the rows that were read.

    Empty if the connector cannot say it.
    """
    found = _function(source_format, "table_progress")
    return list(found(offset)) if found else []


def _module(source_format: str) -> Any:
    with required(source_format):
        return importlib.import_module(CONNECTORS[source_format][0])


def _function(source_format: str, name: str) -> Any:
    """A function that a connector's module may have. None if it has none, or the format is not a connector's."""
    return getattr(_module(source_format), name, None) if source_format in CONNECTORS else None


def connector_module(source_format: str, name: str) -> Any:
    """A module of a connector's package, for what the core needs from one connector alone.

    Parameters
    ----------
    name : str
        Name inside the connector's package, such as ``"kafka.native_starts"``.
    """
    return importlib.import_module(f"{CONNECTORS[source_format][0]}.{name}")


def data_source(source_format: str) -> type[DataSource]:
    """The class of a format. If a needed package is missing, a class that raises an error when it is used."""
    check_pyspark(for_source=True)
    module, name = CONNECTORS[source_format]
    try:
        with required(source_format):
            return cast("type[DataSource]", getattr(importlib.import_module(module), name))
    except (BacklogError, ImportError) as missing:
        return _missing(source_format, missing)


def _missing(source_format: str, reason: BacklogError | ImportError) -> type[DataSource]:
    from pyspark.sql.datasource import DataSource

    class Missing(DataSource):
        @classmethod
        def name(cls) -> str:
            return source_format

        def schema(self) -> StructType:
            problem, hint = f"{source_format} cannot run in {sys.executable}: {reason}.", "Install what is missing."
            if isinstance(reason, BacklogError):
                problem, hint = reason.problem, reason.hint
            raise BacklogError(
                problem,
                f"{hint} Or set PYSPARK_PYTHON to an interpreter that has it, on the driver and on every executor.",
            )

    return Missing
