"""Iceberg tables of tests: a catalog in SQLite, and what is in a table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from backlog_spark.sinks.iceberg.catalogs import CatalogAccess, checked_catalog

TABLE = "shop.orders"


def catalog_at(path: Path | str) -> dict[str, str]:
    """The argument of a sink."""
    return {"warehouse": str(path)}


def access_to(path: Path | str, table: str = TABLE) -> CatalogAccess:
    return CatalogAccess(checked_catalog(catalog_at(path)), table)


def table_at(path: Path | str, table: str = TABLE) -> Table:
    """The newest version."""
    found = access_to(path, table).load()
    assert found is not None
    return found


def created(path: Path | str, schema: pa.Schema, properties: dict[str, str] | None = None) -> Table:
    """A new table, made by pyiceberg alone."""
    access = access_to(path)
    access.catalog.create_namespace_if_not_exists("shop")
    return access.catalog.create_table(TABLE, schema, properties=properties or {})


def rows_of(table: Table, columns: list[str] | None = None) -> Counter[tuple[Any, ...]]:
    """The table as a multiset."""
    found = table.refresh().scan().to_arrow()
    return Counter(zip(*(column.to_pylist() for column in found.select(columns or found.column_names)), strict=True))
