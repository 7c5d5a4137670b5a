"""Names in Spark SQL."""

from __future__ import annotations

__all__ = ["quoted"]


def quoted(name: str) -> str:
    """A name as Spark SQL takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"
