"""Checks the version of PySpark (pure)."""

from __future__ import annotations

from backlog_spark.errors import BacklogError

__all__ = ["check_pyspark", "refuse_other_than"]

_VERSION = "4.2"
_INSTALL = f"pip install 'pyspark=={_VERSION}.*'"


def check_pyspark() -> None:
    """Refuse a PySpark of another version.

    Raises
    ------
    BacklogError
        With the version found and what to install.
    """
    try:
        from pyspark.version import __version__
    except ImportError:
        raise BacklogError(
            f"backlog_spark needs PySpark {_VERSION}, but PySpark is not installed.", f"Run {_INSTALL}."
        ) from None
    refuse_other_than(__version__, "PySpark", f"Run {_INSTALL}.")


def refuse_other_than(found: str, what: str, hint: str) -> None:
    """Refuse a found version that is not the supported one."""
    if not f"{found}.".startswith(f"{_VERSION}."):
        raise BacklogError(
            f"backlog_spark needs {what} {_VERSION}, found {found}: earlier versions cannot limit the batches "
            "of a source in Python, and later ones have not been tested.",
            hint,
        )
