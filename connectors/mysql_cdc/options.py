"""The options of ``mysql_cdc``, parsed and checked (pure)."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from backlog_spark.durations import parse_duration
from backlog_spark.errors import SettingError
from backlog_spark.settings import resolve_intervals

__all__ = ["MySqlOptions", "option_table"]


@dataclass(frozen=True)
class _Option:
    name: str
    type: str
    default: str
    doc: str
    bounds: str = ""
    flink: str = ""  # the option of Flink CDC's MySQL connector that means the same


_OPTIONS = (
    _Option("host", "string", "required", "Server to read from.", flink="hostname"),
    _Option("port", "int", "3306", "Its port.", "1..65535", "port"),
    _Option(
        "user",
        "string",
        "required",
        "Needs SELECT on the table, REPLICATION SLAVE and REPLICATION CLIENT (MariaDB: BINLOG MONITOR).",
        flink="username",
    ),
    _Option("password", "string", '""', "Never written to logs, offsets or errors.", flink="password"),
    _Option("table", "string", "required", "`database.table`.", flink="database-name, table-name"),
    _Option(
        "chunkSize",
        "int",
        "50000",
        "Rows of one task's SELECT in the snapshot phase. Where chunks are cut by arithmetic, about so many.",
        ">= 1",
        "scan.incremental.snapshot.chunk.size",
    ),
    _Option(
        "chunkKeyColumn",
        "string",
        "the primary key",
        "Column that the snapshot is cut by. An index must begin with it. Outside the primary key, or without one, the "
        "whole snapshot is one batch (see Keys).",
        "a column of the table",
        "scan.incremental.snapshot.chunk.key-column",
    ),
    _Option(
        "distributionFactorLower",
        "float",
        "0.05",
        "Chunks are cut by arithmetic, instead of stepping along the index, only if (greatest key - least key + 1) / "
        "rows is at least this. Heeded where a batch has no limit on rows: with `intervalDuringBacklog` and without "
        "`maxRowsPerBatch`.",
        "0..1",
        "chunk-key.even-distribution.factor.lower-bound",
    ),
    _Option(
        "distributionFactorUpper",
        "float",
        "1000",
        "… and at most this.",
        ">= 1",
        "chunk-key.even-distribution.factor.upper-bound",
    ),
    _Option(
        "maxRowsPerBatch",
        "int",
        "200000",
        "Most rows of a batch. A batch never splits a transaction, a step between two keys or rows of one chunk key, "
        "so a single larger transaction is one batch. With `intervalDuringBacklog` set, the snapshot phase heeds it "
        "only if it is given; with 0, and for a snapshot that is one batch, not at all.",
        ">= 1",
    ),
    _Option(
        "interval",
        "duration",
        "unset",
        "In the binary log phase, hand out a batch at most once in this time. Set by `BacklogQuery`.",
    ),
    _Option(
        "intervalDuringBacklog",
        "duration",
        "unset",
        "Size snapshot batches so that each takes about this long; 0: one batch (FLIP-309).",
        "0 or >= interval",
    ),
    _Option(
        "availableNowTarget",
        "string",
        "latest",
        "Where `trigger(availableNow=True)` ends: at the log's end when the run began, with the snapshot, or before "
        "anything new is read.",
        "latest, backlogEnd, none",
    ),
    _Option(
        "startup.mode", "string", "initial", "Snapshot first, then the binary log.", "initial", "scan.startup.mode"
    ),
)
_KNOWN = {o.name.lower(): o.name for o in _OPTIONS}
# What Spark puts among the options by itself.
_SPARK_OWN = {"path"}


def option_table() -> str:
    """The table of options for the documentation, in Markdown."""
    lines = ["| option | type | default | bounds | meaning | in Flink CDC |", "|---|---|---|---|---|---|"]
    lines += [
        f"| `{o.name}` | {o.type} | {o.default} | {o.bounds} | {o.doc} | {f'`{o.flink}`' if o.flink else ''} |"
        for o in _OPTIONS
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class MySqlOptions:
    """Parsed options.

    Parameters
    ----------
    host, port, user, password
        Where and as whom to connect.
    database, table : str
        The table to capture.
    chunk_size : int
        Rows of one task's SELECT.
    chunk_key_column : str
        Column to cut the snapshot by; "" for the primary key.
    distribution_factor_lower, distribution_factor_upper : float
        Bounds of keys per row between which chunks are cut by arithmetic.
    max_rows : int
        Most rows of a batch.
    max_rows_given : bool
        Whether the user set it, so that it also bounds snapshot batches sized by time.
    interval_ms, during_backlog_ms : int or None
        Milliseconds; None when unset.
    target : str
        ``"latest"``, ``"backlogEnd"`` or ``"none"``.

    Raises
    ------
    SettingError
        From `parse`, for an option that is unknown, missing, malformed or out of bounds.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    table: str
    chunk_size: int = 50_000
    chunk_key_column: str = ""
    distribution_factor_lower: float = 0.05
    distribution_factor_upper: float = 1000.0
    max_rows: int = 200_000
    max_rows_given: bool = False
    interval_ms: int | None = None
    during_backlog_ms: int | None = None
    target: str = "latest"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> MySqlOptions:
        """From the options of ``readStream``; names in any case."""
        given = {k.lower(): v for k, v in options.items()}
        for name in options:
            if name.lower() not in _KNOWN and name.lower() not in _SPARK_OWN:
                near = [_KNOWN[k] for k in difflib.get_close_matches(name.lower(), _KNOWN)]
                hint = f"Did you mean {' or '.join(near)}? " if near else ""
                # The value is never shown: the name may be a misspelt "password".
                raise SettingError(
                    name, "***", "mysql_cdc has no such option.", f"{hint}Options: {', '.join(_KNOWN.values())}."
                )
        for name in ("host", "user", "table"):
            if not given.get(name):
                raise SettingError(name, given.get(name), "mysql_cdc needs this option.", f'Set .option("{name}", …).')
        database, dot, table = given["table"].partition(".")
        if not (database and dot and table):
            raise SettingError("table", given["table"], "is not database.table.", 'For example "shop.orders".')
        if given.get("startup.mode", "initial") != "initial":
            raise SettingError("startup.mode", given["startup.mode"], "is not supported.", 'Use "initial".')
        target = given.get("availablenowtarget", "latest")
        if target not in ("latest", "backlogEnd", "none"):
            raise SettingError("availableNowTarget", target, "is none of latest, backlogEnd and none.")
        interval = given.get("interval")
        during = given.get("intervalduringbacklog")
        # The rule between the two is the query's own; checked here as well, for plain readStream.
        resolve_intervals({}, {}, [("mysql_cdc", dict(options))])
        return cls(
            host=given["host"],
            port=_integer(given, "port", 3306, 1, 65535),
            user=given["user"],
            password=given.get("password", ""),
            database=database,
            table=table,
            chunk_size=_integer(given, "chunkSize", cls.chunk_size, 1),
            chunk_key_column=given.get("chunkkeycolumn", ""),
            distribution_factor_lower=_float(given, "distributionFactorLower", cls.distribution_factor_lower, 0, 1),
            distribution_factor_upper=_float(given, "distributionFactorUpper", cls.distribution_factor_upper, 1),
            max_rows=_integer(given, "maxRowsPerBatch", cls.max_rows, 1),
            max_rows_given="maxrowsperbatch" in given,
            interval_ms=parse_duration(interval, "interval") if interval else None,
            during_backlog_ms=parse_duration(during, "intervalDuringBacklog") if during else None,
            target=target,
        )

    def connect_arguments(self) -> dict[str, Any]:
        """Arguments for ``pymysql.connect``."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "charset": "utf8mb4",
            "connect_timeout": 10,
            "read_timeout": 300,
            "autocommit": True,
        }

    def __str__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
        return f"MySqlOptions({shown})"


def _integer(given: Mapping[str, str], name: str, default: int, low: int, high: int | None = None) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low or (high is not None and value > high):
        bounds = f"{low}..{high}" if high is not None else f">= {low}"
        raise SettingError(name, text, f"is not an integer {bounds}.")
    return value


def _float(given: Mapping[str, str], name: str, default: float, low: float, high: float | None = None) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (low <= value < math.inf if high is None else low <= value <= high):
        bounds = f"{low:g}..{high:g}" if high is not None else f">= {low:g}"
        raise SettingError(name, text, f"is not a number {bounds}.")
    return value
