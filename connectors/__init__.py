"""Streaming sources for Spark that report whether they are processing backlog.

A connector is a package here with a ``DataSource`` class and a function ``inspect(options) -> SourceInfo``, which
checks options and server in the driver's own process, so that a mistake is told before Spark is involved.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from backlog_spark.errors import BacklogError
from backlog_spark.watermarks import WatermarkCharacteristic

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

__all__ = [
    "CONNECTORS",
    "KEEPS_METADATA",
    "SourceInfo",
    "WatermarkCharacteristic",
    "add_connector",
    "check_start",
    "data_source",
    "inspect",
]

# Format name -> module with the DataSource class of that name and ``inspect``.
CONNECTORS: dict[str, tuple[str, str]] = {
    "mysql_cdc": ("connectors.mysql_cdc", "MySqlCdcDataSource"),
    "hybrid": ("connectors.hybrid", "HybridDataSource"),
}

# What has the packages of each, as in ``pip install 'backlog-spark[mysql]'``.
_EXTRAS = {"mysql_cdc": "mysql", "hybrid": "kafka,files"}
# Formats that keep files of their own beside the checkpoint, in the directory of the option ``metadataLocation``.
KEEPS_METADATA = {"hybrid"}


@dataclass(frozen=True)
class SourceInfo:
    """What a query needs to know of a source before it starts.

    Parameters
    ----------
    key : tuple of str
        Columns that identify a row of the source's table; empty if there are none.
    starts_in_backlog : bool
        ``isProcessingBacklog`` of the source's very first offset.
    unique_in_backlog : bool
        Its backlog batches together hold each key at most once, as an insert.
    watermark_characteristic : WatermarkCharacteristic
        ``ANY_WATERMARK``: its flag tells when it has left backlog, so that a temporal join by processing time may wait
        for it. ``UNDEFINED``, the default: it cannot tell (FLIP-326).
    use_processing_time : bool
        Once it has left backlog, its event time goes on with the system time. Needs ``ANY_WATERMARK``.
    waits_for_rows : bool
        Takes the option ``pollWait``: for so many milliseconds its ``latestOffset`` may wait for rows, as
        `connectors.pacing.LongPoll` does.

    Raises
    ------
    BacklogError
        For processing time with ``UNDEFINED``.
    """

    key: tuple[str, ...] = ()
    starts_in_backlog: bool = False
    unique_in_backlog: bool = False
    watermark_characteristic: WatermarkCharacteristic = WatermarkCharacteristic.UNDEFINED
    use_processing_time: bool = False
    waits_for_rows: bool = False

    def __post_init__(self) -> None:
        if self.use_processing_time and self.watermark_characteristic is not WatermarkCharacteristic.ANY_WATERMARK:
            raise BacklogError(
                f"A source uses processing time, and its watermark characteristic is {self.watermark_characteristic}.",
                "Give its SourceInfo watermark_characteristic=WatermarkCharacteristic.ANY_WATERMARK.",
            )


def add_connector(source_format: str, module: str, data_source: str, *, keeps_metadata: bool = False) -> None:
    """Make a connector of another package one that queries know.

    Its offsets are JSON objects with ``isProcessingBacklog`` and ``isBacklog``. It takes the options ``interval``,
    ``intervalDuringBacklog`` and ``availableNowTarget``, as ``mysql_cdc`` documents them. With the target
    ``backlogEnd`` it still gives the offset in which only the flag has become false; with ``none`` it gives nothing
    new. While it is not in backlog it hands out a batch when `connectors.pacing.Pacer` says so, which asks the query by
    the option ``queryToken`` whether another source is.

    Parameters
    ----------
    source_format : str
        What ``DataSource.name`` of its class says.
    keeps_metadata : bool
        Whether it takes the option ``metadataLocation``: a directory for files of its own. A query sets it to one in
        its checkpoint.
    module, data_source : str
        Where the class is; the module also has ``inspect(options) -> SourceInfo``, called once when a query is
        started, and may have ``check_start(options)``, called when that is the first start on its checkpoint: it raises
        a `BacklogError` where what the options name is not there. Executors must have the module too. A class may have
        ``secrets``, a regular expression for the whole names of options whose values Spark is not to show.
    """
    CONNECTORS[source_format] = (module, data_source)
    if keeps_metadata:
        KEEPS_METADATA.add(source_format)


def inspect(source_format: str, options: Mapping[str, str]) -> SourceInfo | None:
    """Check a source before the start; None for a format that is not ours.

    Raises
    ------
    BacklogError
        As the connector's ``inspect``.
    """
    if source_format not in CONNECTORS:
        return None
    module = importlib.import_module(CONNECTORS[source_format][0])
    info: SourceInfo = module.inspect(options)
    return info


def check_start(source_format: str, options: Mapping[str, str]) -> None:
    """Look at what a source's options name, before a query first starts; nothing for a format that is not ours.

    Raises
    ------
    BacklogError
        As the connector's ``check_start``, if it has one.
    """
    if source_format in CONNECTORS:
        check = getattr(importlib.import_module(CONNECTORS[source_format][0]), "check_start", None)
        if check is not None:
            check(options)


def data_source(source_format: str) -> type[DataSource]:
    """The class of a format. Where a package is missing that it needs, one that says so when it is used."""
    from backlog_spark.requirements import check_pyspark  # in every session of Spark's, nothing is imported before

    check_pyspark()
    module, name = CONNECTORS[source_format]
    try:
        return cast("type[DataSource]", getattr(importlib.import_module(module), name))
    except ImportError as missing:
        return _missing(source_format, str(missing))


def _missing(source_format: str, reason: str) -> type[DataSource]:
    from pyspark.sql.datasource import DataSource

    class Missing(DataSource):
        @classmethod
        def name(cls) -> str:
            return source_format

        def schema(self) -> StructType:
            extra = _EXTRAS.get(source_format)
            what = f"'backlog-spark[{extra}]'" if extra else "it"
            raise BacklogError(
                f"{source_format} cannot run in {sys.executable}: {reason}.",
                f"Install what is missing there (-m pip install {what}), or set PYSPARK_PYTHON to an interpreter that "
                "has it, on the driver and on every executor.",
            )

    return Missing
