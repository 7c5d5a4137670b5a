"""Tables and types that only MariaDB has: the same values from snapshot and log, or a refusal."""

from __future__ import annotations

import ipaddress
import json
import random
import re
import uuid
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.errors import BacklogError
from servers.mariadb import MariaDBServer

from .replay import EVERY_MARIADB, options, read, reader, take

Row = tuple[Any, ...]

_ADDRESSES = [
    "::",
    "::1",
    "::1:0",
    "::ffff:1.2.3.4",
    "::1.2.3.4",
    "1:0:2:3:4:5:6:7",
    "1:0:0:3:0:0:6:7",
    "1::",
    "::abcd",
]


@pytest.mark.parametrize("mariadb", EVERY_MARIADB, indirect=True)
def test_types_of_mariadb_are_the_same_by_all_roads(mariadb: MariaDBServer) -> None:
    table = "maria.typed"
    mariadb.execute("CREATE DATABASE IF NOT EXISTS maria")
    mariadb.execute(
        f"CREATE OR REPLACE TABLE {table} (id INT PRIMARY KEY, n INT, v VARCHAR(20), u UUID, i6 INET6, i4 INET4,"
        " j JSON, e ENUM('ä','漢','b') CHARACTER SET utf8mb4, g INT AS (n + 1) VIRTUAL,"
        " s INT AS (n * 2) STORED, h INT INVISIBLE)"
    )
    chance = random.Random(3)
    rows: list[Row] = [(0, *[None] * 8)]
    for n in range(1, 200):
        words = [chance.choice([0, 0, 0xFFFF, chance.randrange(2**16)]) for _ in range(8)]
        i6 = _ADDRESSES[n] if n < len(_ADDRESSES) else ":".join(f"{word:x}" for word in words)
        identity = uuid.UUID(
            int=chance.getrandbits(128) & ~(2 ** chance.randrange(60) - 1), version=chance.randint(1, 5)
        )
        i4 = str(ipaddress.IPv4Address(chance.choice([0, 256, 2**32 - 1, chance.randrange(2**32)])))
        document = json.dumps({"ä": [n, "漢", None], "b": '"\\'})
        rows.append((n, n, str(identity), i6, i4, document, chance.choice(["ä", "漢", "b"]), n, None))
    live, _ = take(reader(options(mariadb, table)), reader(options(mariadb, table)).initialOffset())
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {table} (id, n, u, i6, i4, j, e, h, v) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)", rows
        )
    stream = reader(options(mariadb, table))
    _, logged = take(stream, live)
    start = stream.initialOffset()
    end, selected = take(stream, start)
    as_selected = {row[0]: row[:-3] for row in selected}
    assert {row[0]: row[:-3] for row in logged} == as_selected
    given = {row[0]: (row[1], row[-1], row[2], row[4], row[5], row[6], row[7]) for row in rows}
    seen = {row[0]: (row[1], row[2], row[3], row[5], row[6], row[7], row[10]) for row in selected}
    assert seen == given
    for _, n, _, _, i6, *_, g, s, _ in as_selected.values():
        assert (g, s) == (None if n is None else (n + 1), None if n is None else n * 2)
        assert i6 is None or ipaddress.IPv6Address(i6) == ipaddress.IPv6Address(rows[n][3])
    # and as the rewind log keeps them
    mariadb.execute(f"DELETE FROM {table}")
    assert {row[0]: row[:-3] for p in stream.partitions(start, end) for row in read(stream, p)} == as_selected


@pytest.mark.parametrize("mariadb", EVERY_MARIADB, indirect=True)
@pytest.mark.parametrize("key", ["PRIMARY KEY (u, i6)", "KEY (u)"])
def test_keys_of_types_of_mariadb_are_one_batch_as_of_its_watermark(mariadb: MariaDBServer, key: str) -> None:
    mariadb.execute("CREATE DATABASE IF NOT EXISTS maria")
    mariadb.execute(f"CREATE OR REPLACE TABLE maria.addressed (u UUID, i6 INET6, n INT, {key})")
    keys = [(str(uuid.UUID(int=n << 96 | 7, version=4)), f"{n or ''}::{n % 3 + 1}") for n in range(20)]
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO maria.addressed VALUES (%s, %s, 0)", keys)
        stream = reader(options(mariadb, "maria.addressed", chunkSize=3))
        start = stream.initialOffset()
        live = stream.latestOffset(start, ReadMaxRows(4))
        (partition,) = stream.partitions(start, live)
        cursor.executemany("DELETE FROM maria.addressed WHERE u = %s", [k[:1] for k in keys[:5]])
        cursor.executemany("UPDATE maria.addressed SET n = 1 WHERE u = %s", [k[:1] for k in keys[5:9]])
        cursor.executemany("UPDATE maria.addressed SET i6 = 'ff::' WHERE u = %s", [k[:1] for k in keys[9:12]])
        cursor.execute("INSERT INTO maria.addressed VALUES (UUID(), '::', 2)")
    assert sorted(row[:3] for row in read(stream, partition)) == sorted((*k, 0) for k in keys)
    _, rows = take(stream, live)
    kinds = [row[-3] for row in rows]
    moved = ["delete", "insert"] if "PRIMARY" in key else ["update_preimage", "update_postimage"]
    assert kinds == ["delete"] * 5 + ["update_preimage", "update_postimage"] * 4 + moved * 3 + ["insert"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("id INT PRIMARY KEY, v VARCHAR(99) COMPRESSED", "'v'.*COMPRESSED"),
        ("id INT PRIMARY KEY, y YEAR(2)", r"'y'.*year\(2\)"),
        ("id INT PRIMARY KEY, n INT) WITH SYSTEM VERSIONING (", "system-versioned"),
        ("id INT PRIMARY KEY, n INT) ENGINE=Aria (", "engine Aria"),
    ],
)
def test_tables_that_only_mariadb_has_are_refused(mariadb: MariaDBServer, columns: str, said: str) -> None:
    mariadb.execute("CREATE DATABASE IF NOT EXISTS maria")
    body = columns.removesuffix(" (") + ("" if columns.endswith("(") else ")")
    mariadb.execute(f"CREATE OR REPLACE TABLE maria.odd ({body}")
    with pytest.raises(BacklogError, match=said) as caught:
        check(options(mariadb, "maria.odd"))
    assert caught.value.hint


def test_times_as_older_servers_stored_them_are_refused_until_the_table_is_rebuilt(mariadb: MariaDBServer) -> None:
    mariadb.execute("CREATE DATABASE IF NOT EXISTS maria")
    mariadb.execute("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        mariadb.execute("CREATE OR REPLACE TABLE maria.old (id INT PRIMARY KEY, d DATETIME(3))")
    finally:
        mariadb.execute("SET GLOBAL mysql56_temporal_format = ON")
    with pytest.raises(BacklogError, match=r"'d'.*mariadb-5\.3.*FORCE"):
        check(options(mariadb, "maria.old"))
    mariadb.execute("ALTER TABLE maria.old FORCE")
    check(options(mariadb, "maria.old"))


# Their comparison is by levels, or holds '' and a zero byte equal, which the weights that the server tells do not.
LEVELS = ["utf8mb4_uca1400_as_ci", "utf8mb4_uca1400_swedish_ai_cs", "utf8mb4_thai_520_w2", "utf8mb4_nopad_bin"]


@pytest.mark.parametrize("mariadb", EVERY_MARIADB, indirect=True)
@pytest.mark.parametrize("collation", LEVELS)
def test_a_collation_that_mariadb_gives_no_order_of_does_not_cut_the_table(
    mariadb: MariaDBServer, collation: str
) -> None:
    mariadb.execute("CREATE DATABASE IF NOT EXISTS maria")
    mariadb.execute("DROP TABLE IF EXISTS maria.odd")
    mariadb.execute(
        f"CREATE TABLE maria.odd (a INT, s VARCHAR(9) COLLATE {collation}, u VARCHAR(9) COLLATE "
        "utf8mb4_uca1400_ai_ci, PRIMARY KEY (s, a), KEY (a), KEY (u))"
    )
    schema = check(options(mariadb, "maria.odd"))[0]
    assert (schema.key, schema.chunk_key) == (("s", "a"), ())  # one batch, which needs no order
    with pytest.raises(BacklogError) as caught:
        check(options(mariadb, "maria.odd", chunkKeyColumn="s"))
    text = str(caught.value)
    assert f"cannot be cut by a column of the type varchar(9) COLLATE {collation}" in text
    assert "Columns that can be: a, u." in text


@pytest.mark.process
def test_generated_columns_that_the_server_does_not_log_must_be_left_out() -> None:
    """The real server leaves them out: test_recorded."""
    with MariaDBServer(options={"version": "11.8.9-MariaDB"}) as server:
        server.execute("CREATE DATABASE c")
        server.execute("CREATE TABLE c.g (id INT PRIMARY KEY, `a b` INT AS (id + 1) VIRTUAL, s INT AS (id * 2) STORED)")
        server.execute("INSERT INTO c.g (id) VALUES (1)")
        with pytest.raises(BacklogError, match=r"c\.g has generated columns: a b, s. MariaDB 11\.8\.9") as refused:
            check(options(server, "c.g"))
        (exclude,) = re.findall(r"Set columns\.exclude=(.*)\.$", refused.value.hint)
        given = options(server, "c.g", **{"columns.exclude": exclude})
        check(given)
        end, found = take(reader(given), reader(given).initialOffset())
        server.execute("UPDATE c.g SET id = 2")
        _, later = take(reader(given), end)
        assert [row[0] for row in (*found, *later)] == [1, 1, 2]
