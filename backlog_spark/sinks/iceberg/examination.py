"""What ``backlog-spark check`` tells of an Iceberg catalog. Nothing of it stays there."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from backlog_spark.spi.examination import Finding, Severity

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from backlog_spark.sinks.iceberg.catalogs import CatalogAccess

__all__ = ["examine_catalog"]


def examine_catalog(access: CatalogAccess, name: str) -> Iterator[Finding]:
    """Look for a table, and try to write a file beside its data.

    Parameters
    ----------
    access : CatalogAccess
    name : str
        The table; "" for a sink of many tables.

    Raises
    ------
    BacklogError
        The catalog does not answer, or refuses; or the table's store does.
    """
    table = access.load() if name else None
    if table is not None:
        with access.readable():
            _try_to_write(table)
        yield Finding(Severity.OK, "", f"the catalog answers, and files of {access.place} may be written.")
        return
    with access.readable():
        access.catalog.list_namespaces()
    made = f"the table {name}" if name else "the tables"
    yield Finding(Severity.OK, "", f"the catalog of {access.place} answers. The first start creates {made}.")


def _try_to_write(table: Table) -> None:
    made = table.io.new_output(f"{table.location()}/data/check-{uuid.uuid4()}")
    with contextlib.closing(made.create()) as file:
        file.write(b"")
    table.io.delete(made)
