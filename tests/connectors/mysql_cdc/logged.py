"""Helpers for tests of ALTER TABLE: a table's present columns, and the raw log of alters.t."""

from __future__ import annotations

from dataclasses import dataclass

from backlog_spark.connectors.mysql_cdc.binlog.dump import open_dump
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.binlog.row_decoder import RowDecoder, TableMap
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.schema.columns import Column
from backlog_spark.connectors.mysql_cdc.schema.ddl.history import Layout
from backlog_spark.connectors.mysql_cdc.schema.packed import read_length
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from servers.mysql import MySQLServer

from .replay import options


def columns_of(server: MySQLServer, table: str = "t") -> tuple[Column, ...]:
    """As `server.load_schema` has them, whatever the types."""
    rows = server.execute(
        "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, NUMERIC_PRECISION, NUMERIC_SCALE, "
        "CHARACTER_OCTET_LENGTH, CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = 'alters' AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
        (table,),
    )
    return tuple(
        Column(
            name=r[0],
            data_type=r[1],
            column_type=r[2] if isinstance(r[2], str) else r[2].decode(),
            nullable=r[3] == "YES",
            precision=int(r[4] or 0) if r[1] == "decimal" else 0,
            scale=int(r[5] or 0) if r[1] == "decimal" else 0,
            octet_length=int(r[6] or 0) if r[1] == "binary" else 0,
            charset=r[7] or "",
            collation=r[8] or "",
        )
        for r in rows
    )


@dataclass(frozen=True)
class Rows:
    """The images of one rows event, undecoded, and after how many ALTERs they were logged."""

    stage: int
    table_map: TableMap
    data: bytes

    def read(self, schema: TableSchema, layout: Layout) -> list[list[object]]:
        decoder = RowDecoder(schema, self.table_map, layout)
        count, at = read_length(self.data, 0)
        decoder = decoder.of_images(self.data[at : at + (count + 7) // 8])
        at += (count + 7) // 8
        out = []
        while at < len(self.data):
            row, at = decoder.read_row(self.data, at)
            out.append(row)
        return out


def end(server: MySQLServer) -> BinlogPosition:
    file, pos = server.binlog_end()
    return BinlogPosition(file, pos)


def log_of(server: MySQLServer, start: BinlogPosition) -> tuple[list[str], list[Rows]]:
    """The ALTERs and the rows of alters.t since a position, as the log has them."""
    statements: list[str] = []
    rows: list[Rows] = []
    table_map: TableMap | None = None
    dump = open_dump(MySqlOptions.parse(options(server, "alters.t")), start)
    connection = dump.open()
    while not (packet := connection._read_packet()).is_eof_packet():
        data = packet.get_all_data()
        kind, body = data[5], data[20:-4]
        if kind == 2:
            text = body[13 + int.from_bytes(body[11:13], "little") + body[8] + 1 :].decode()
            statements += [text] if text.startswith("ALTER") else []
        elif kind == 19:
            table_map = TableMap.parse(body) if TableMap.table_name(body)[2] == "t" else None
        elif kind in (23, 25, 30, 32) and table_map:  # inserts and deletes
            skip = 8 if kind in (23, 25) else 8 + int.from_bytes(body[8:10], "little")
            rows.append(Rows(len(statements), table_map, body[skip:]))
    dump.close()
    return statements, rows
