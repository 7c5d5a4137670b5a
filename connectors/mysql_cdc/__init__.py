"""MySQL change data capture: snapshot, then binary log, exactly once and without locks."""

from .server.examination import examine
from .source import (
    MySqlCdcDataSource,
    check,
    check_log,
    check_options,
    check_resume,
    check_signal,
    check_start,
    documented_options,
    inspect,
)
from .stream.tables_at import table_names, table_progress, tables_at

__all__ = [
    "MySqlCdcDataSource",
    "check",
    "check_log",
    "check_options",
    "check_resume",
    "check_signal",
    "check_start",
    "documented_options",
    "examine",
    "inspect",
    "table_names",
    "table_progress",
    "tables_at",
]
