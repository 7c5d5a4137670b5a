"""The records that reading the binary log yields (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..schema.ddl.statements import TRUNCATE
from ..schema.ddl.timeline import TableAltered
from ..schema.table import TableSchema
from ..server.gtid import gtid_text
from .positions import BinlogPosition

__all__ = [
    "DELETE",
    "INSERT",
    "UPDATE",
    "Change",
    "RowsChange",
    "Savepoint",
    "TableEmptied",
    "TransactionBroken",
    "TransactionEnd",
    "emptied_by",
]

INSERT, UPDATE, DELETE = "insert", "update", "delete"


# Not frozen, as it is made for each event: a frozen class takes ten times as long.
@dataclass(slots=True)
class RowsChange:
    """The rows of one event.

    Parameters
    ----------
    schema : TableSchema
        The table's.
    kind : str
        ``"insert"``, ``"update"`` or ``"delete"``.
    uuid, number : str, int
        The transaction's GTID: its source, as `gtid` has it, and its number.
    timestamp : int
        Seconds since 1970 (UTC) at which the statement ran.
    file, server_id : str, int
        The binary log's file, and the server that the statement ran on.
    rows : list of (sequence, before, after)
        Storage values; ``before`` is None for an insert, ``after`` for a delete. ``sequence`` grows along the binary
        log and is unique for each image: it is `sequence_at` the image's file and offset. The after-image of an update
        has ``sequence + 1``, which is unique too, since every image has at least one byte. Compressed rows are
        numbered from the offset of their event on. If they have no room there, the transaction has an excess.
    size : int
        Bytes of the event, inflated.
    at : int
        `sequence_at` the event's file and offset, or those of the compressed transaction that it is in.
    is_compressed : bool
        Whether the images have no offsets in the file, as they were compressed.
    """

    schema: TableSchema
    kind: str
    uuid: str
    number: int
    timestamp: int
    rows: list[tuple[int, list[Any] | None, list[Any] | None]]
    file: str = ""
    server_id: int = 0
    size: int = 0
    at: int = 0
    is_compressed: bool = False

    @property
    def gtid(self) -> str:
        """The transaction's GTID as its server writes it; "" without one."""
        return gtid_text(self.uuid, self.number)


@dataclass(frozen=True, slots=True)
class TableEmptied:
    """A statement that removed all rows of a table, without their images.

    Parameters
    ----------
    kind : str
        ``"truncate"``, or ``"drop"``: later changes under this name are those of another table.
    statement : str
    sequence : int
        Orders the statement among the rows of the log; see `RowsChange`.
    schema, uuid, number, timestamp, file, server_id
        As in `RowsChange`.
    """

    schema: TableSchema
    kind: str
    statement: str
    sequence: int
    uuid: str
    number: int
    timestamp: int
    file: str = ""
    server_id: int = 0

    @property
    def gtid(self) -> str:
        """The transaction's GTID as its server writes it; "" without one."""
        return gtid_text(self.uuid, self.number)

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.statement)


def emptied_by(found: TableAltered) -> TableEmptied:
    """A statement that changed all rows of a table, as one that removed them."""
    return TableEmptied(
        found.schema,
        TRUNCATE,
        found.statement,
        found.sequence,
        found.uuid,
        found.number,
        found.timestamp,
        found.file,
        found.server_id,
    )


@dataclass(slots=True)  # not frozen, as above
class TransactionEnd:
    """The end of a transaction, of any table: a position where reading may resume.

    ``timestamp`` is that of the transaction's first event: the server's time, seconds since 1970 (UTC).
    ``is_rolled_back``: MariaDB also logs transactions that were rolled back, if they used tables that are not
    transactional. ``file`` holds the transaction; ``position`` may be the beginning of the next file. ``excess``: by
    how much the sequences of its rows go beyond it. All later sequences have to be raised by that. ``committed_ms``:
    when the server committed it, milliseconds since 1970; MariaDB and MySQL 5.7 only tell when it began, in whole
    seconds.
    """

    position: BinlogPosition
    uuid: str
    number: int
    timestamp: int = 0
    is_rolled_back: bool = False
    file: str = ""
    excess: int = 0
    committed_ms: int = 0


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint of MariaDB. ``is_back``: everything after the last savepoint of that name was rolled back."""

    name: str
    is_back: bool


@dataclass(frozen=True, slots=True)
class TransactionBroken:
    """The transaction has no end in the log: the server died while it wrote the transaction, and rolled it back."""


Change = RowsChange | TableAltered | TableEmptied | TransactionEnd
