"""The server's weights order texts like the server's comparison, in every collation that keys may have."""

from __future__ import annotations

import itertools
import random

import pytest

from backlog_spark.connectors.mysql_cdc.schema.key_order import OrderBytes
from backlog_spark.connectors.mysql_cdc.schema.keys import text_literal
from backlog_spark.connectors.mysql_cdc.schema.table_key import KEY_CHARSETS, weights_order
from backlog_spark.connectors.mysql_cdc.schema.types import Column
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import is_mariadb

# Cases, accents, expansions, contractions, ignorables, blanks, controls, scripts, and what lies beyond 16 bits
ALPHABET = [
    *"aAbzZáÄäßæeE019~-_\t\x01\x00'\"\\",
    *"     ",
    *"éœđłİıſﬁ中文あアｱっАаяיﷺ힣😀😁𝔄𐐀",
    *("\u0301", "\u0308", "\u00ad", "\u200d", "\ufeff", "\U0010ffff"),
    *("ch", "ll", "dž", "Dz", "ij", "a ", "á\u0301"),
]


def words(chance: random.Random, charset: str, count: int) -> list[str]:
    """Texts that the character set can hold, by MySQL's own conversion where Python has no such codec."""
    codec = {"utf8mb3": "utf-16", "utf8": "utf-16", "ucs2": "utf-16", "koi8r": "koi8_r"}.get(charset, charset)
    codec = {"utf8mb4": "utf-8", "utf16le": "utf-16", "latin2": "iso8859_2"}.get(codec, codec)
    narrow = charset in ("utf8mb3", "utf8", "ucs2")

    def fits(text: str) -> bool:
        try:
            return bool(text.encode(codec)) and not (narrow and max(map(ord, text)) > 0xFFFF)
        except UnicodeEncodeError:
            return False

    letters = [letter for letter in ALPHABET if fits(letter)]
    return [
        "",
        *("".join(chance.choices(letters, k=chance.choice([1, 1, 2, 2, 3, 4, 9, 20]))) for _ in range(count - 1)),
    ]


# MariaDB has each of its newest in 25 languages for each of five character sets.
_NAMES = """
SELECT FULL_COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY
"""


def check_collations(mysql: MySQLServer, seed: int, count: int, most: int = 10_000) -> None:
    chance = random.Random(seed)
    wrong = []
    with mysql.connect() as connection, connection.cursor() as cursor:

        def ask(statement: str) -> list[tuple[object, ...]]:
            cursor.execute(statement)
            return list(cursor.fetchall())

        of_mariadb = is_mariadb(mysql)
        collations = ask(_NAMES if of_mariadb else _NAMES.replace("FULL_", ""))
        accepted = sorted(
            (str(n), str(c)) for n, c in collations if c in KEY_CHARSETS and weights_order(str(n), of_mariadb)
        )
        assert len(accepted) > 150
        if len(accepted) > most:
            accepted = chance.sample(accepted, most)
        for name, charset in accepted:
            column = Column("k", "varchar", "varchar(99)", nullable=False, charset=charset, collation=name)
            texts = words(chance, charset, count)
            orders = OrderBytes([column]).of(ask, [(text,) for text in texts])
            pairs = list(itertools.combinations(range(len(texts)), 2))
            literals = [text_literal(column, text) for text in texts]
            ((*compared,),) = ask(
                "SELECT "
                + ", ".join(f"({literals[i]} < {literals[j]}) - ({literals[i]} > {literals[j]})" for i, j in pairs)
            )
            for (i, j), said in zip(pairs, compared, strict=True):
                if (orders[i] < orders[j]) - (orders[i] > orders[j]) != said:
                    wrong.append((name, texts[i], texts[j], said))
    assert wrong == []


def test_order_bytes_compare_as_the_server_does_in_every_collation(mysql: MySQLServer) -> None:
    check_collations(mysql, 1, 20, 250)


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(2, 8))
def test_the_same_with_many_texts(mysql: MySQLServer, seed: int) -> None:
    check_collations(mysql, seed, 60)


def test_many_and_long_texts_are_asked_for_in_several_statements(mysql: MySQLServer) -> None:
    column = Column("k", "varchar", "varchar(768)", nullable=True, charset="utf8mb4", collation="utf8mb4_unicode_ci")
    number = Column("n", "int", "int(11)", nullable=False)
    statements = []
    with mysql.connect() as connection, connection.cursor() as cursor:

        def ask(statement: str) -> list[tuple[object, ...]]:
            statements.append(len(statement))
            cursor.execute(statement)
            return list(cursor.fetchall())

        keys = [(f"{n:05d}" + "é" * (n % 700), n) for n in range(3_000)] + [(None, 1), (None, 2)]
        orders = OrderBytes([column, number]).of(ask, keys)
    assert orders[:3_000] == sorted(orders[:3_000])
    assert orders[3_000] < orders[3_001] < orders[0]  # NULL comes first
    assert len(statements) > 4
    assert max(statements) < 4_000_000
