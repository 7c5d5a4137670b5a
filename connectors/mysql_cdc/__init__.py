"""MySQL change data capture: snapshot, then binary log, exactly once and without locks."""

from .source import MySqlCdcDataSource, check, inspect

__all__ = ["MySqlCdcDataSource", "check", "inspect"]
