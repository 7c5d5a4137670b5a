"""Delta tables that a catalog of the session knows by name. Uses public API only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from backlog_spark.common.failure_causes import first_line
from backlog_spark.errors import SettingError
from backlog_spark.spark.jvm import delta_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["create_named", "location_of"]

_CATALOG: Final = "spark.sql.catalog.spark_catalog"
_DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_NAME: Final = "Correct the name: table, schema.table or catalog.schema.table."


def location_of(spark: SparkSession, table: str) -> str | None:
    """The qualified location of a table; None if the catalog has no table of this name.

    Raises
    ------
    SettingError
        It is no Delta table, or the session cannot find Delta tables by name.
    """
    from delta.tables import DeltaTable

    if spark.conf.get(_CATALOG, "") != _DELTA_CATALOG:
        raise SettingError(
            "table", table, f"the session finds no Delta table by its name: {_CATALOG} is not {_DELTA_CATALOG}.",
            "Set it, and spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension, before the session is created.",
        )  # fmt: skip
    try:
        if not spark.catalog.tableExists(table):
            return None
        found = DeltaTable.forName(spark, table).detail().select("location").first()
    except Exception as error:
        raise SettingError("table", table, f"cannot be read: {first_line(error)}", _NAME) from None
    assert found is not None
    return delta_log.qualified_text(spark, str(found[0]))


def create_named(
    spark: SparkSession,
    table: str,
    path: str,
    columns: StructType,
    layout: delta_log.Layout,
    properties: Mapping[str, str],
) -> None:
    """Create a table in the catalog, unless another query creates it first.

    Parameters
    ----------
    path : str
        Location of an external table; a Delta table that is there is entered into the catalog as it is. "": the catalog
        manages the table and chooses the location.

    Raises
    ------
    SettingError
        There is no such catalog or schema, or no table may be created there.
    """
    from delta.tables import DeltaTable

    try:
        if path and DeltaTable.isDeltaTable(spark, path):
            spark.catalog.createTable(table, path, "delta")
            return
        delta_log.create(spark, path, columns, layout, properties, table)
    except Exception as error:
        if location_of(spark, table) is None:
            hint = "Create the schema first (CREATE SCHEMA …), or give the driver's user the right to create tables."
            raise SettingError("table", table, f"cannot be created: {first_line(error)}", hint) from None
