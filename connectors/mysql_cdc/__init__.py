"""MySQL change data capture: snapshot, then binary log, exactly once and without locks."""

from .source import MySqlCdcDataSource, check, check_resume, check_signal, check_start, inspect
from .tables_at import tables_at

__all__ = [
    "MySqlCdcDataSource",
    "check",
    "check_resume",
    "check_signal",
    "check_start",
    "inspect",
    "tables_at",
]
