"""Checks the version of PySpark and other packages, and names the extra that brings a missing one (pure)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from backlog_spark.errors import BacklogError

__all__ = ["check_pyspark", "missing", "package_of", "refuse_other_than", "require", "required"]

# The second one without Delta, which has no jar for it.
_VERSIONS = ("4.2", "4.3")
# Here the two sources run alone, see docs/spark_versions.md.
_FOR_SOURCES = ("4.0", "4.1")
_INSTALL = "pip install 'backlog-spark[spark]'"

# What to install for a module, as in `pip install`. The extras are those of setup.cfg.
_PACKAGES: Final = {
    "adlfs": "'backlog-spark[azure]'",
    "authlib": "'backlog-spark[kafka]'",
    "click": "'backlog-spark[cli]'",
    "confluent_kafka": "'backlog-spark[kafka]'",
    "cryptography": "'backlog-spark[mysql]'",
    "datasketches": "'backlog-spark[sql]'",
    "delta": "'backlog-spark[delta]'",
    "deltalake": "'backlog-spark[delta]'",
    "fastavro": "'backlog-spark[avro]'",
    "fsspec": "'backlog-spark[files]'",
    "gcsfs": "'backlog-spark[gcs]'",
    "google": "protobuf",
    "grpc": "grpcio",
    "jinja2": "'backlog-spark[cli]'",
    "psycopg": "'backlog-spark[postgres]'",
    "prometheus_client": "'backlog-spark[metrics]'",
    "pyiceberg": "'backlog-spark[iceberg]'",
    "pymysql": "'backlog-spark[mysql]'",
    "pymysqlreplication": "'backlog-spark[mysql]'",
    "pydantic": "'backlog-spark[cli]'",
    "pyspark": "'backlog-spark[spark]'",
    "rich": "'backlog-spark[cli]'",
    "s3fs": "'backlog-spark[s3]'",
    "sqlglot": "'backlog-spark[sql]'",
    "yaml": "'backlog-spark[cli]'",
    **dict.fromkeys(("backlog_spark", "pyspark_hybrid", "pyspark_mysql_cdc"), "backlog-spark"),
}


def package_of(module: str) -> str:
    """What ``pip install`` needs for a module: an extra of this package, or a package of that name."""
    return _PACKAGES.get(module, module)


def missing(what: str, module: str) -> BacklogError:
    """The error for a feature whose package is not installed.

    Parameters
    ----------
    what : str
        The feature: the subject of the error's sentence.
    module : str
        The missing module's top-level name.
    """
    return BacklogError(
        f"{what} needs the Python package {module}, which {sys.executable} does not have.",
        f"Run {sys.executable} -m pip install {package_of(module)}.",
    )


def require(what: str, module: str) -> None:
    """Refuse a feature whose package is not installed. Parameters as of `missing`."""
    if importlib.util.find_spec(module) is None:
        raise missing(what, module)


@contextmanager
def required(what: str) -> Iterator[None]:
    """Turn a failed import of a package that `package_of` knows into the error of `missing`."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in _PACKAGES or module in ("numpy", "pandas", "pyarrow"):
            raise missing(what, module) from None
        raise


def check_pyspark(*, for_source: bool = False) -> None:
    """Refuse a PySpark of another version.

    Parameters
    ----------
    for_source : bool
        For a source alone, without anything else of backlog_spark.

    Raises
    ------
    BacklogError
        With the version found and what to install.
    """
    with required("backlog_spark"):
        from pyspark.version import __version__
    if for_source and _is_of(__version__, _FOR_SOURCES):
        return
    refuse_other_than(__version__, "PySpark", f"Run {_INSTALL}.")


def refuse_other_than(found: str, what: str, hint: str) -> None:
    """Refuse a found version that is not a supported one."""
    if not _is_of(found, _VERSIONS):
        alone = " Its sources alone, such as spark.readStream.format('mysql_cdc'), also run on 4.0 and 4.1."
        raise BacklogError(
            f"backlog_spark needs {what} {' or '.join(_VERSIONS)}, found {found}: earlier versions cannot limit the "
            f"batches of a source in Python, and later ones have not been tested.{alone}",
            hint,
        )


def _is_of(found: str, versions: Sequence[str]) -> bool:
    return f"{found}.".startswith(tuple(f"{version}." for version in versions))
