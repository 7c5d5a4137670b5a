"""Every character of every character set: snapshot and binary log give the same text as the server."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.schema.charsets import CHARSETS, text_decoder
from backlog_spark.errors import BacklogError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS, is_mariadb, is_mysql_8, options, read, reader, take

BYTES = [bytes([byte]) for byte in range(256)]
LOW = BYTES[:128]


def span(*ends: int) -> list[int]:
    """Bytes from the first to the second, from the third to the fourth …"""
    return [byte for first, last in zip(ends[::2], ends[1::2], strict=True) for byte in range(first, last + 1)]


def codes(*bytes_of_each: Iterable[int]) -> list[bytes]:
    """All codes with one of these bytes at each position."""
    return [bytes(code) for code in itertools.product(*bytes_of_each)]


def unicode(codec: str, *planes: int) -> list[bytes]:
    """All characters of some planes."""
    points = [p * 0x10000 + n for p in planes for n in range(0x10000)]
    return [chr(p).encode(codec) for p in points if not 0xD800 <= p <= 0xDFFF]


EUC = [*LOW, *codes([0x8E], span(0xA1, 0xDF)), *codes(span(0xA1, 0xFE), span(0xA1, 0xFE))]
EUC += codes([0x8F], span(0xA1, 0xFE), span(0xA1, 0xFE))
SHIFTED = [*LOW, *codes(span(0xA1, 0xDF)), *codes(span(0x81, 0x9F, 0xE0, 0xFC), span(0x40, 0x7E, 0x80, 0xFC))]
GBK = [*LOW, *codes(span(0x81, 0xFE), span(0x40, 0x7E, 0x80, 0xFE))]
# All that a column may hold; 256 bytes in the other sets.
STORABLE = {
    "big5": [*LOW, *codes(span(0xA1, 0xF9), span(0x40, 0x7E, 0xA1, 0xFE))],
    "cp932": SHIFTED,
    "eucjpms": EUC,
    "euckr": [*LOW, *codes(span(0x81, 0xFE), span(0x41, 0x5A, 0x61, 0x7A, 0x81, 0xFE))],
    # Of the four-byte codes those of the BMP and some beyond
    "gb18030": [
        *GBK,
        *codes([0x81, 0x82, 0x83, 0x84, 0x90, 0xE3, 0xFE], span(0x30, 0x39), span(0x81, 0xFE), [0x30, 0x37]),
    ],
    "gb2312": [*LOW, *codes(span(0xA1, 0xF7), span(0xA1, 0xFE))],
    "gbk": GBK,
    "sjis": SHIFTED,
    "ucs2": unicode("utf-16-be", 0),
    "ujis": EUC,
    "utf16": unicode("utf-16-be", 0, 1, 16),
    "utf16le": unicode("utf-16-le", 0, 1, 16),
    "utf32": unicode("utf-32-be", 0, 1, 16),
    "utf8": unicode("utf-8", 0),
    "utf8mb3": unicode("utf-8", 0),
    "utf8mb4": unicode("utf-8", 0, 1, 16),
}
MOST = 700  # texts of a set: the short ones hold a part of Unicode's planes only
GB18030_FOUR_BYTES = codes(span(0x81, 0xFE), span(0x30, 0x39), span(0x81, 0xFE), span(0x30, 0x39))


def charsets(mysql: MySQLServer) -> list[str]:
    """Those of the server that text may have."""
    return [str(row[0]) for row in mysql.execute("SHOW CHARACTER SET") if row[0] != "binary"]


def takes_any_bytes(mysql: MySQLServer) -> bool:
    """Whether it stores bytes that are no characters of the set. Newer MySQLs refuse them."""
    return is_mariadb(mysql) or is_mysql_8(mysql)


def blocks(storable: Sequence[bytes], size: int) -> list[bytes]:
    """The codes in any order, so that each has many neighbours, ``size`` to a text."""
    mixed = random.Random(3).sample(storable, len(storable))
    return [b"".join(mixed[at : at + size]) for at in range(0, len(mixed), size)]


def both_roads(
    mysql: MySQLServer, columns: dict[str, str], rows: Sequence[dict[str, bytes]]
) -> list[tuple[object, ...]]:
    """Rows of a new table, the same by either way; columns by name and type, bytes as they are stored."""
    mysql.execute("CREATE DATABASE IF NOT EXISTS sets")
    mysql.execute("DROP TABLE IF EXISTS sets.t")
    declared = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    mysql.execute(f"CREATE TABLE sets.t (id INT PRIMARY KEY, {declared}) CHARACTER SET utf8mb4")
    stream = reader(options(mysql, "sets.t"))
    before = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10**6))
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'STRICT_ALL_TABLES'")
        cursor.execute("BEGIN")
        for n, row in enumerate(rows):
            values = ", ".join(f"_binary x'{row[c].hex()}'" if c in row else "NULL" for c in columns)
            cursor.execute(f"INSERT INTO sets.t VALUES ({n}, {values})")
        cursor.execute("COMMIT")
    _, logged = take(stream, before)
    other = reader(options(mysql, "sets.t"))
    _, selected = take(other, other.initialOffset())
    by_log, by_select = (sorted(row[:-3] for row in found) for found in (logged, selected))
    for one, two in zip(by_log, by_select, strict=True):
        for name, a, b in zip(("id", *columns), one, two, strict=True):
            assert a == b, (
                name,
                one[0],
                [pair for pair in zip(str(a), str(b), strict=False) if len(set(pair)) > 1][:9],
            )
    return by_log


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param("LONGTEXT", 4_000, id="row by row"),
        pytest.param("TINYTEXT", 63, id="chunk as one value"),
    ],
)
def test_every_character_of_every_set_by_both_roads(mysql: MySQLServer, kind: str, size: int) -> None:
    names = charsets(mysql)
    assert set(names) <= set(CHARSETS)
    storable = {**STORABLE, **({} if takes_any_bytes(mysql) else {"ascii": BYTES[:0x80]})}
    texts = {name: blocks(storable.get(name, BYTES), size)[:MOST] for name in names}
    columns = {name: f"{kind} CHARACTER SET {name}" for name in names}
    rows = [{n: t[i] for n, t in texts.items() if i < len(t)} for i in range(max(map(len, texts.values())))]
    both_roads(
        mysql, {f"c_{n}": kind for n, kind in columns.items()}, [{f"c_{n}": v for n, v in r.items()} for r in rows]
    )


@pytest.mark.grid
@pytest.mark.parametrize("mysql", SERVERS[:1], indirect=True)  # MariaDB has no gb18030
def test_every_four_byte_code_of_gb18030(mysql: MySQLServer) -> None:
    texts = blocks(GB18030_FOUR_BYTES, 4_000)
    both_roads(mysql, {"c": "LONGTEXT CHARACTER SET gb18030"}, [{"c": text} for text in texts])


@pytest.mark.grid
def test_a_column_holds_no_other_codes(mysql: MySQLServer) -> None:
    high = range(0x80, 0x100)
    mysql.execute("CREATE DATABASE IF NOT EXISTS sets")
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        for name in set(charsets(mysql)) & set(STORABLE):
            if name.startswith("u") and name != "ujis":
                continue
            tried = {*BYTES, *codes(high, range(0x100))}
            tried |= {*codes([0x8E, 0x8F], high, high)} if name in ("ujis", "eucjpms") else set()
            cursor.execute("DROP TABLE IF EXISTS sets.codes")
            cursor.execute(f"CREATE TABLE sets.codes (x VARBINARY(4), c VARCHAR(4) CHARACTER SET {name})")
            values = [f"(x'{code.hex()}', _binary x'{code.hex()}')" for code in tried]
            for at in range(0, len(values), 20_000):
                cursor.execute(f"INSERT IGNORE INTO sets.codes VALUES {','.join(values[at : at + 20_000])}")
            cursor.execute("SELECT x FROM sets.codes WHERE HEX(x) = HEX(c) AND CHAR_LENGTH(c) = 1")
            assert {row[0] for row in cursor.fetchall()} == {c for c in STORABLE[name] if len(c) < 4}, name


@pytest.mark.parametrize(
    ("charset", "code", "text"),
    [
        ("armscii8", b"a\xa2", "a§"),
        ("ascii", b"a\xff", "a?"),
        ("big5", b"a\xf9\xd6\xa1\xfe\xa2\xcc", "a碁\ufffd\ufffd"),
        ("cp1250", b"\x81\x8a", "?Š"),
        ("cp1256", b"\x8a\xc7", "?ا"),
        ("cp866", b"\xfc\xfd", "ⁿ²"),
        ("cp932", b"\x81\x5f\xb1\x85\x40a", "＼ｱ?a"),
        ("dec8", b"\xa8\xd7\xff", "¤Œ?"),
        ("eucjpms", b"\xa1\xc1\xad\xa1\x8f\xf4\xfe\xf5\xa1", "～①黑\ue000"),
        ("euckr", b"\xa4\xd4\xa4\xa1\xa4\xbf\xa4\xd4\xc6\x61", "\u3164\u3131\u314f\u3164?"),
        ("gb18030", b"\xa8\xbc\x81\x35\xf4\x37\xfe\x39\xfe\x39", "ḿ\ue7c7?"),
        ("geostd8", b"\xc0\xfd\xfe", "ა№?"),
        ("greek", b"\xa1\xa4\xe1", "ʽ?α"),
        ("hebrew", b"\xaf\xe0\xbf", "‾א?"),
        ("keybcs2", b"\x80\x83", "Čď"),
        ("latin1", b"\x80\x81\xff", "€\x81ÿ"),
        ("macroman", b"\x80\xca", "Ä\xa0"),
        ("sjis", b"\x81\x5f\xb1\xf0\x40", "\\ｱ?"),
        ("swe7", b"[\\]@~\x7f\xff", "ÄÖÅÉü??"),
        ("tis620", b"\xa1\xa0\xff", "ก\ufffd\ufffd"),
        ("ucs2", b"\0a\xd8\x3d\xde\0\0b", "a??b"),
        ("ujis", b"\xa1\xc0\x8f\xf5\xa1\x8e\xb1", "\\\ue3acｱ"),
        ("utf16", b"\xd8\x3d\xde\0\0b", "😀b"),
        ("utf32", b"\0\0\xd8\x3d\0\1\xd8\0", "?\U0001d800"),
    ],
)
def test_what_codes_mean(charset: str, code: bytes, text: str) -> None:
    assert text_decoder(charset)(code) == text


def test_halves_of_surrogate_pairs(mysql: MySQLServer) -> None:
    columns = {"a": "TEXT CHARACTER SET ucs2", "b": "VARCHAR(9) CHARACTER SET utf32", "c": "CHAR(9) CHARACTER SET ucs2"}
    pair = b"\0a\xd8\x3d\xde\0\0b"
    half = b"\0\0\xdc\0" if takes_any_bytes(mysql) else b"\0\0\0?"
    (row,) = both_roads(mysql, columns, [{"a": pair, "b": b"\0\0\0a" + half, "c": pair[:4]}])
    assert row == (0, "a??b", "a?", "a?")


@pytest.mark.parametrize("mysql", SERVERS[1:], indirect=True)  # MySQL stores no such bytes
@pytest.mark.parametrize("kind", ["TEXT", "VARCHAR(9)"])
def test_what_is_no_utf8_is_refused_by_both_roads(mysql: MySQLServer, kind: str) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS sets")
    mysql.execute("DROP TABLE IF EXISTS sets.half")
    mysql.execute(f"CREATE TABLE sets.half (id INT PRIMARY KEY, s {kind} CHARACTER SET utf8mb4)")
    check_refused(
        mysql, "sets.half", "INSERT INTO sets.half VALUES (1, _binary x'61eda080')", "'s' .* no text in utf8mb4"
    )


def check_refused(mysql: MySQLServer, table: str, statement: str, said: str) -> None:
    """A row must be refused by the log and by the snapshot."""
    stream = reader(options(mysql, table))
    before = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10**6))
    mysql.execute(statement)
    with pytest.raises(BacklogError, match=said):
        take(stream, before)
    other = reader(options(mysql, table))
    start = other.initialOffset()
    end = other.latestOffset(start, ReadMaxRows(10**6))
    with pytest.raises(BacklogError, match=said):
        [read(other, p) for p in other.partitions(start, end)]


@pytest.mark.parametrize(
    ("charset", "exact", "other", "kind", "rest"),
    [
        ("ascii", b"?", b"\xff", "VARCHAR(9)", "(k)"),
        ("cp1250", b"?", b"\x81", "TEXT", "(k(9))"),
        ("ucs2", b"\0?", b"\xd8\0", "VARCHAR(9)", "(k)"),
    ],
)
def test_a_key_whose_text_does_not_tell_it_is_refused(
    mysql: MySQLServer, charset: str, exact: bytes, other: bytes, kind: str, rest: str
) -> None:
    if charset == "ascii" and not takes_any_bytes(mysql):
        return
    mysql.execute("CREATE DATABASE IF NOT EXISTS sets")
    mysql.execute("DROP TABLE IF EXISTS sets.keyed")
    mysql.execute(f"CREATE TABLE sets.keyed (k {kind} CHARACTER SET {charset}, n INT, PRIMARY KEY {rest})")
    mysql.execute(f"INSERT INTO sets.keyed VALUES (_binary x'{exact.hex()}', 1)")
    stream = reader(options(mysql, "sets.keyed"))
    assert [row[:2] for row in take(stream, stream.initialOffset())[1]] == [("?", 1)]
    check_refused(
        mysql, "sets.keyed", f"INSERT INTO sets.keyed VALUES (_binary x'{other.hex()}', 2)", f"'k' .* {charset}"
    )
