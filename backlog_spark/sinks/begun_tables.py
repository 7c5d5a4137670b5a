"""Notes which tables a query of many tables has begun, so that none is begun twice or missed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from backlog_spark.common.table_names import TableName

if TYPE_CHECKING:
    from backlog_spark.spark.checkpoint.store import CheckpointStore

__all__ = ["TableMark", "TableMarks", "file_name"]

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
        Its target: the path or the name of a table.
    batch : int
        The query's first batch with rows of it.
    key : tuple of str
        Primary key of the rows in the target; empty if unknown.
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
    files : CheckpointStore
        Where they are.
    """

    def __init__(self, files: CheckpointStore) -> None:
        self.files = files

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
