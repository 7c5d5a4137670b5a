"""Notes which tables a query has begun below a directory of Delta tables, so that none is begun twice or missed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from backlog_spark.common.table_names import TableName
from backlog_spark.spark.checkpoint.store import CheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TableMark", "TableMarks", "file_name"]

_MARKS: Final = "_backlog_tables"
# Most disks take 255 bytes. Hadoop adds 50 to the name of a file that is being written.
_LONGEST: Final = 200
_OTHERS: Final = re.compile(r"[^a-z0-9_-]")


@dataclass(frozen=True)
class TableMark:
    """What is noted of a table, before anything of it is written.

    Parameters
    ----------
    database, table : str
        The source's names.
    path : str
        Its Delta table.
    batch : int
        The query's first batch with rows of it.
    key : tuple of str
        Primary key of the rows in the Delta table; empty if unknown.
    """

    database: str
    table: str
    path: str
    batch: int
    key: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(TableName(self.database, self.table))


class TableMarks:
    """The marks of one query.

    Parameters
    ----------
    path : str
        The directory of the Delta tables.
    txn_app_id : str
        The query's id.
    """

    def __init__(self, spark: SparkSession, path: str, txn_app_id: str) -> None:
        self.files = CheckpointStore(spark, f"{path.rstrip('/')}/{_MARKS}/{txn_app_id}")

    def __iter__(self) -> Iterator[TableMark]:
        for name in self.files.names_in("tables"):
            if not name.startswith(".") and name.endswith(".json"):
                found = self.files.read_object(f"tables/{name}")
                if found is not None:
                    yield TableMark(**{**found, "key": tuple(found.get("key", ()))})

    def note(self, mark: TableMark) -> TableMark:
        """Write a mark, over an older one of its table."""
        self.files.make_directory("tables")
        self.files.write_file(f"tables/{file_name(mark)}.json", json.dumps(asdict(mark)))
        return mark


def file_name(mark: TableMark) -> str:
    """A file name for a table, different for each, also on a disk that ignores case."""
    name = ".".join(_OTHERS.sub(_escaped, each) for each in (mark.database, mark.table))
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - len(digest)]}{digest}"


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02x}" for byte in found[0].encode())
