"""The stored schema of a source: versions that never change, and columns that tasks have found since.

A version is Spark's StructType as JSON. The greatest number counts. A task that finds new columns stores them before
it fails, in a file that is named by the digest of its content. The next start adds them to the newest version. So a
crash at any point loses no column and changes no version, and doing it again changes nothing.
"""

from __future__ import annotations

import json
import re

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from backlog_spark.common.stored_values import reading_stored
from backlog_spark.common.stores import Store, store_of
from backlog_spark.errors import BacklogError
from backlog_spark.spi.read_limits import HAS_LIMITS

from ...evolution import Evolution
from ..manifest import digest_of
from .fields import added, ddl
from .types import merged_fields, of_proposals

__all__ = ["StoredSchema"]

_VERSION = re.compile(r"schema-(\d{8})\.json")
_FOUND = re.compile(r"found-[0-9a-f]{40}\.json")


class StoredSchema:
    """The schema of one source.

    Parameters
    ----------
    evolution : Evolution
        It names the place.
    """

    def __init__(self, evolution: Evolution) -> None:
        self._store: Store
        self._store, path = store_of(evolution.location, evolution.storage)
        self._directory = f"{path.rstrip('/')}/_schemas"

    def current(self, *, stores: bool = True) -> pa.Schema | None:
        """The newest version, with the columns that tasks have found since; None if there is no version.

        Parameters
        ----------
        stores : bool
            Whether a schema with new columns becomes a version. Default true.

        Raises
        ------
        BacklogError
            If a file is damaged.
        """
        names = {found.path.rpartition("/")[2]: found.path for found in self._store.children(self._directory)}
        versions = {int(match[1]): path for name, path in names.items() if (match := _VERSION.fullmatch(name))}
        if not versions:
            return None
        newest = max(versions)
        known = self._read(versions[newest])
        found = [names[name] for name in sorted(names) if _FOUND.fullmatch(name)]
        new = merged_fields([field for path in found for field in self._read(path)], of_proposals)
        schema = added(known, new or ())
        if stores:
            if schema != known:
                self._write(newest + 1, schema)
            self._store.each(self._store.delete, found)
        return schema

    def begin(self, schema: pa.Schema) -> None:
        """Store the first version."""
        self._write(0, schema)

    def propose(self, found: pa.Schema) -> None:
        """Store columns for the next start. Called by tasks, also by several at once.

        Raises
        ------
        BacklogError
            If this machine does not see the schema that the driver has stored.
        """
        if self.current(stores=False) is None:
            raise BacklogError(
                f"There are new columns, {ddl(found)}, and the executors do not see the stored schema in "
                f"{self._store.name(self._directory)}.",
                "Set schemaLocation to a directory that driver and executors share, such as one beside the checkpoint, "
                "with a copy of _schemas. Or set schemaEvolutionMode=rescue.",
            )
        data = _json(found)
        self._store.write(f"{self._directory}/found-{digest_of(data)}.json", data)

    def _write(self, version: int, schema: pa.Schema) -> None:
        self._store.write(f"{self._directory}/schema-{version:08d}.json", _json(schema))

    def _read(self, path: str) -> pa.Schema:
        hint = (
            "Restore it from a backup. Or delete it: then the version before it counts, and without any the schema is "
            "inferred again, which may give other columns."
        )
        with reading_stored(f"The stored schema {self._store.name(path)}", hint):
            found = StructType.fromJson(json.loads(self._store.read(path)))
            return to_arrow_schema(found, timezone="UTC") if HAS_LIMITS else to_arrow_schema(found)


def _json(schema: pa.Schema) -> bytes:
    return json.dumps(from_arrow_schema(schema).jsonValue(), ensure_ascii=False, indent=1).encode()
