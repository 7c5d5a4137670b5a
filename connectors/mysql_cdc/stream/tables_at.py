"""Reads the tables as they were at an offset of the stream, for ``bs.verify``.

The rows are read now. Then later changes are undone with their before-images from the binary log (`snapshot.rewind`). A
transaction is in the log before a SELECT sees it. So no row is read before a SELECT sees all transactions up to the
offset.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
from pymysql.connections import Connection
from pyspark.sql.types import StructField, StructType

from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.tables_at import TablesAt

from ..binlog.batches import read_batch
from ..binlog.positions import BinlogPosition
from ..binlog.reading import read_changes
from ..offsets import Offset, SnapshotRange
from ..options import MySqlOptions
from ..output.metadata import METADATA
from ..output.rows import output_of
from ..schema.ddl.lookahead import stages
from ..schema.ddl.statements import DROP, TRUNCATE
from ..schema.ddl.timeline import Statements, Timeline
from ..schema.declared import DeclaredTables
from ..schema.keys import Key
from ..schema.table import RowsRemoved, SchemaChanged, TableSchema
from ..server.continuity import check_history
from ..server.failover import moved
from ..server.mysql import connect, end_position, low_watermark, server_identity
from ..server.watermark import as_of, resume_after, shows, watermark
from ..snapshot.chunks import Splitter
from ..snapshot.reading import read_chunk
from ..source import check, inspect

__all__ = ["MySqlTablesAt", "as_of", "table_names", "table_progress", "tables_at"]

_NAMES = ("_database", "_table")
# Options that choose tables, or have a meaning for envelopes only.
_OF_ENVELOPES = {"table", "tablepattern", "tables.exclude", "scannewlyaddedtables", "format", "metadatacolumns"}
_T = TypeVar("_T")
_VISIBLE_S, _LOOK_S = 60.0, 0.05


@dataclass(frozen=True)
class _Chunk:
    """The keys of a table after ``first`` up to ``last``.

    Parameters
    ----------
    schema, known : TableSchema
        The table's declared definition, and that at the offset.
    names : mapping of str to str
        The columns' present names and their names at the offset. Columns that were added later are left out.
    of : SnapshotRange
        The range of keys, with the transactions that its rows contain as the low watermark.
    """

    schema: TableSchema
    known: TableSchema
    names: Mapping[str, str]
    of: SnapshotRange
    first: Key | None
    last: Key | None


class MySqlTablesAt(TablesAt):
    """Captured tables as of an offset. Made by `tables_at`."""

    def __init__(
        self,
        options: MySqlOptions,
        position: str,
        key: tuple[str, ...],
        parts: Sequence[_Chunk],
        columns: StructType,
        tables: Sequence[TableSchema],
        offset: Offset,
    ) -> None:
        self.position = position
        self.tables = tuple(map(_name, tables))
        self.key = key
        self.columns = columns
        self.added = tuple(METADATA)
        self.chunks = len(parts)
        self._options = options
        self._parts = tuple(parts)
        self._schemas = tuple(tables)
        self._offset = offset

    def read(self, chunk: int) -> Iterator[pa.RecordBatch]:
        part = self._parts[chunk]
        # The range covers all keys, so that all chunks of a worker share one log of changes.
        whole = replace(part.of, end=None)
        for batch in _without_removals(
            read_chunk(self._options, part.schema, part.known, whole, None, part.first, part.last)
        ):
            # A column that was added later may have the former name of another one.
            kept = [name for name in batch.schema.names if name in part.names or name in _NAMES]
            then = batch.select(kept).rename_columns([part.names.get(name, name) for name in kept])
            yield then.select(self.columns.names)

    def keys_changed(self, since: Mapping[str, Any], until: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        ends = [Offset.from_json(dict(offset)) for offset in (since, until)]
        if not all(self._goes_on(offset) for offset in ends):
            raise _changed_meanwhile(self.tables)
        begin, end = ends
        if begin.position == end.position:
            return
        assert end.position is not None
        options = replace(self._options, table_events="emit", metadata=("_change_type", *self._options.metadata))
        # There is a row for each statement that emptied a table.
        begin = replace(begin, table_events=frozenset({TRUNCATE, DROP}))
        for batch in read_batch(options, self._schemas, begin, end.position):
            if not {TRUNCATE, DROP}.isdisjoint(batch.column("_change_type").unique().to_pylist()):
                raise _changed_meanwhile(self.tables)
            yield batch.select(self.key)

    def _goes_on(self, later: Offset) -> bool:
        """Whether the log leads from here to a later offset, on the same server and with the same tables.

        It does not if the tables were read again meanwhile (`snapshot.resnapshot`): the server's log may be another
        one.
        """
        then = {t.name: t for t in later.tables}
        same = all(
            then.get(t.name) is not None and then[t.name].fingerprint() == t.fingerprint() for t in self._schemas
        )
        same_log = later.complete and later.shift == self._offset.shift
        return same and same_log and later.server == self._offset.server == self._options.server


def _changed_meanwhile(tables: Sequence[str]) -> BacklogError:
    return BacklogError(
        f"Since the compared position, {', '.join(tables)} were altered, emptied or read again, or the query has moved "
        "to another server.",
        "Nothing was repaired. Verify again.",
    )


def tables_at(
    options: Mapping[str, str], offset: Mapping[str, Any], *, table: str = "", rows_per_chunk: int | None = None
) -> MySqlTablesAt:
    """Plan the read of the tables as of an offset. See `backlog_spark.spi.tables_at.TablesAt`.

    Raises
    ------
    BacklogError
        The snapshot is not complete; a table has no primary key; the server no longer has the binary log since the
        offset; or it is another server.
    """
    parsed = MySqlOptions.parse(options)
    if parsed.format != "row":
        if not table:
            raise SettingError(
                "format", parsed.format, "has no columns to compare.",
                "verify compares streams with format=row, and tables of DeltaTables.",
            )  # fmt: skip
        options = _of_one(options, table)
        parsed = MySqlOptions.parse(options)
    declared = DeclaredTables(parsed, check(options))
    at = Offset.from_json(dict(offset))
    if not at.complete or at.is_undecided:
        raise BacklogError(
            "The target does not have the whole snapshot yet.", "Verify again when the snapshot is complete."
        )
    chosen = _chosen(at, table)
    key = inspect(options).key
    if not key:
        raise BacklogError(
            f"{', '.join(at.tables[i].name for i in chosen)} cannot be compared without a key.",
            "verify needs a primary key, and with several tables also the columns _database and _table.",
        )
    with connect(parsed) as connection:
        server = server_identity(connection)
        if at.server != server:
            at = moved(connection, parsed, at, server)
        checked = replace(
            parsed,
            server=server,
            # The log does not have the rows that a TRUNCATE after the offset removed.
            table_events="fail",
            skipped=parsed.skipped - {TRUNCATE, DROP},
            metadata=_NAMES if parsed.several else (),
            chunk_size=min(parsed.chunk_size, rows_per_chunk or parsed.chunk_size),
        )
        check_history(connection, checked, at)
        ranges = [(i, after, r) for i in chosen for after, r in _ranges(at, i)]
        _await_visible(connection, {r.low for _, _, r in ranges})
        end = end_position(connection, checked)
        parts: list[_Chunk] = []
        names: dict[tuple[int, str], Mapping[str, str]] = {}
        for i, after, r in ranges:
            schema = declared.of(at.tables[i])
            # If the range's low watermark is after the log position, the rows have the columns of the low watermark.
            known = at.tables[i] if r.low == as_of(at) else at.form_of(r)
            if (i, r.low) not in names:
                names[i, r.low] = _names(checked, schema, known, r.low, end)
            splitter = Splitter(connection, schema, checked)
            ends = (splitter.next(after, None) if r.end is None else splitter.between(after, r.end)).ends
            chunks = zip([after, *ends[:-1]], ends, strict=True)
            parts += [_Chunk(schema, known, names[i, r.low], r, *keys) for keys in chunks]
    tables = [declared.of(at.tables[i]) for i in chosen]
    columns = _columns(output_of(checked.format, checked.metadata).spark_schema(tables), parts, checked.metadata)
    key = tuple(parts[0].names.get(name, name) for name in key)
    position = str(at.position or at.start)
    return MySqlTablesAt(checked, position, key, parts, columns, tables, Offset.from_json(dict(offset)))


def table_names(offset: Mapping[str, Any]) -> tuple[str, ...]:
    """The tables that a stream reads at an offset."""
    return tuple(map(_name, Offset.from_json(dict(offset)).tables))


def table_progress(offset: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """How far the snapshots of the tables are at an offset: name, "waits", "being read" or "complete", and rows."""
    at = Offset.from_json(dict(offset))
    found = []
    for number, table in enumerate(at.tables):
        ranges = [each for each in at.ranges if each.table == number]
        is_read = any(each.end is None for each in ranges) or (at.complete and number not in at.joining)
        phase = "complete" if is_read else "being read" if ranges else "waits"
        found.append((_name(table), phase, sum(each.rows for each in ranges)))
    return found


def _name(table: TableSchema) -> str:
    return str(TableName(table.database, table.table))


def _of_one(options: Mapping[str, str], table: str) -> dict[str, str]:
    """The options with which the columns of one table of a stream of envelopes are read."""
    kept = {name: value for name, value in options.items() if name.lower() not in _OF_ENVELOPES}
    return {**kept, "table": table}


def _names(
    options: MySqlOptions, schema: TableSchema, known: TableSchema, low: str, end: BinlogPosition
) -> Mapping[str, str]:
    """The present names of a table's columns, each with its name at a low watermark.

    Raises
    ------
    BacklogError
        The names do not follow from the statements since then.
    """
    later = Statements()
    for _ in _without_removals(read_changes(options, (schema,), resume_after(low), end, timeline=later)):
        pass
    try:
        if later.found and not options.evolves:
            Timeline().altered(later.found[0])
        then = stages(known.columns, (), later, schema.columns, known.key)[0][0]
    except SchemaChanged as error:
        raise BacklogError(
            f"The table {schema.name} was altered: {error.problem}",
            "Verify again after the query has read the statement.",
        ) from None
    return {today: column.name for column, today in zip(then.columns, then.now, strict=True) if today is not None}


def _without_removals(found: Iterator[_T]) -> Iterator[_T]:
    """The same, with an error for `verify` if the rows of the compared position no longer exist."""
    try:
        yield from found
    except RowsRemoved as error:
        raise BacklogError(
            f"{error.problem} That was after the compared position, and its rows no longer exist.",
            "Verify again after the query has read the statement.",
        ) from None


def _columns(today: StructType, parts: Sequence[_Chunk], added: Collection[str]) -> StructType:
    """The columns that the rows of all parts have, with their names at the offset and their present types."""
    found = []
    for field in today:
        names = {field.name if field.name in added else part.names.get(field.name) for part in parts}
        if len(names) == 1 and (name := names.pop()) is not None:
            found.append(StructField(name, field.dataType))
    return StructType(found)


def _chosen(at: Offset, table: str) -> list[int]:
    """Indexes of the tables to compare."""
    names = [_name(t) for t in at.tables]
    if table and table not in names:
        raise SettingError("table", table, "is not in the checkpoint.", f"It has {', '.join(names)}.")
    found = [i for i, name in enumerate(names) if not table or name == table]
    if joining := [names[i] for i in found if i in at.joining]:
        raise BacklogError(
            f"The target does not have the whole snapshot of {', '.join(joining)} yet.",
            "Verify again when the query has read it, or verify another table.",
        )
    return found


def _ranges(at: Offset, table: int) -> Iterator[tuple[Key | None, SnapshotRange]]:
    """The ranges of a table's keys, each with the key before it and the transactions that its rows contain."""
    found = at.ranges_of(table)
    if not found:
        yield None, SnapshotRange(None, as_of(at), 0, table)
    after: Key | None = None
    for r in found:
        yield after, replace(r, low=as_of(at, r.low))
        after = r.end


def _await_visible(connection: Connection[Any], lows: set[str]) -> None:
    """Wait until a SELECT is sure to see these transactions.

    Raises
    ------
    BacklogError
        They are not visible after a minute.
    """
    limit = time.monotonic() + _VISIBLE_S
    while True:
        shown = watermark(low_watermark(connection)[0])
        if all(shows(shown, watermark(low)) for low in lows):
            return
        if time.monotonic() > limit:
            raise BacklogError(
                f"The query has read transactions that a SELECT on the server did not see for {_VISIBLE_S:.0f} s.",
                "With semi-synchronous replication the server may be waiting for a replica. Verify again later.",
            )
        time.sleep(_LOOK_S)
