"""MySQL change data capture: snapshot, then binary log, exactly once and without locks."""

from .source import MySqlCdcDataSource, check, inspect
from .tables_at import tables_at

__all__ = ["MySqlCdcDataSource", "check", "inspect", "tables_at"]
