"""What a source reports to a query before it starts (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from backlog_spark.errors import BacklogError

__all__ = ["FILLS_COLUMNS", "REWRITING_ALTER", "SourceInfo", "WatermarkCharacteristic"]

REWRITING_ALTER = "rewritingAlter"
"""Option: ``snapshot``, the source reads such rows again, as upserts; ``stop``; or ``ignore``."""
FILLS_COLUMNS = "fillsColumns"
"""Option, for new columns that have one value in all old rows: the ``sink`` sets it (`Sink.fills`), ``nothing`` needs
it, or the rows are read ``again``, whatever the option `REWRITING_ALTER` says."""


class WatermarkCharacteristic(StrEnum):
    """Which watermarks a source can send (FLIP-326, Public Interfaces 3)."""

    UNDEFINED = "UNDEFINED"
    """Event time only, and no watermark without a watermark strategy. Holds for an unknown source."""
    ANY_WATERMARK = "ANY_WATERMARK"
    """Event time with a watermark strategy, processing time without one."""


@dataclass(frozen=True)
class SourceInfo:
    """What a query needs to know about a source before it starts.

    Parameters
    ----------
    key : tuple of str
        Columns that identify a row of the source's table; empty if there are none.
    starts_in_backlog : bool
        ``isProcessingBacklog`` of the source's very first offset.
    unique_in_backlog : bool
        Its backlog batches together have each key at most once, as an insert.
    watermark_characteristic : WatermarkCharacteristic
        ``ANY_WATERMARK``: its flag tells when it has left backlog, so that a temporal join by processing time may wait
        for it. ``UNDEFINED``, the default: it cannot tell (FLIP-326).
    use_processing_time : bool
        After its backlog, event time follows the system time. Needs ``ANY_WATERMARK``.
    waits_for_rows : bool
        Takes the option ``pollWait``: its ``latestOffset`` may wait this many milliseconds for rows, with
        `backlog_spark.spi.pacing.LongPoll`.
    of_one_table : bool
        All its rows are of one table.
    takes_signals : bool
        It carries out signals of the query, with `backlog_spark.spi.signals.QuerySignals`. Its module has
        ``check_signal(options, signal)``.
    reads_again : bool
        It may emit rows once more, as upserts, when it is asked by others than the query. Keyed operators cannot follow
        that.
    renews : bool
        It may empty its tables by rows of type ``truncate`` and begin again with a snapshot. Keyed operators cannot
        follow that.
    notices_old_rows : bool
        It notices when rows that it gave have other values by now, without a change of each. It takes the options
        `REWRITING_ALTER` and `FILLS_COLUMNS`.
    snapshot_of : tuple of (str, str)
        Database and name of each table of which it first reads a complete snapshot; empty if it reads none, or if its
        stream leaves out statements that remove rows. Its offsets have ``isSnapshot``: true as long as rows of that
        snapshot follow, false afterwards.
    address : str
        Where it reads from, for people and to tell sources apart; without secrets.

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
    of_one_table: bool = False
    takes_signals: bool = False
    reads_again: bool = False
    renews: bool = False
    notices_old_rows: bool = False
    snapshot_of: tuple[tuple[str, str], ...] = ()
    address: str = ""

    def __post_init__(self) -> None:
        if self.use_processing_time and self.watermark_characteristic is not WatermarkCharacteristic.ANY_WATERMARK:
            raise BacklogError(
                f"A source uses processing time, and its watermark characteristic is {self.watermark_characteristic}.",
                "Give its SourceInfo watermark_characteristic=WatermarkCharacteristic.ANY_WATERMARK.",
            )
