"""Random partial JSON updates of MySQL give the same documents as the server's own SELECT."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from servers.mysql import MySQLServer

from .replay import SERVERS, options, reader, take

of_mysql = pytest.mark.parametrize("mysql", SERVERS[:1], indirect=True)


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(9 if depth < 3 else 6)
    if kind == 6:
        return [value(chance, depth + 1) for _ in range(chance.randrange(5))]
    if kind > 6:
        return {
            chance.choice(["a", "bb", 'q"', "ü x", ""]): value(chance, depth + 1) for _ in range(chance.randrange(5))
        }
    plain = [None, True, chance.randrange(-(2**63), 2**64), chance.random() * 10 ** chance.randrange(-9, 30), "x" * 300]
    return plain[kind] if kind < len(plain) else 'ä"\\\n'


def paths(found: Any, path: str = "$") -> list[str]:
    """Paths of what is in a document, and of some that is not."""
    out = [path]
    if isinstance(found, dict):
        for name, inner in [*found.items(), ("new", None)]:
            out += paths(inner, f"{path}.{json.dumps(name, ensure_ascii=False)}")
    elif isinstance(found, list):
        for i, inner in enumerate([*found, None]):
            out += paths(inner, f"{path}[{i}]")
    elif path.count("[") < 3:
        out.append(f"{path}[0]")  # the server takes a scalar for an array of one
    return out


@of_mysql
def test_random_partial_updates_give_what_a_select_gives(mysql: MySQLServer) -> None:
    chance = random.Random(11)
    mysql.execute("CREATE DATABASE partial_")
    mysql.execute("CREATE TABLE partial_.t (id INT PRIMARY KEY, gone JSON, j JSON, v VARCHAR(9), k JSON)")
    documents = [{"a": value(chance), "bb": value(chance), "pad": "p" * 400} for _ in range(30)]
    rows = [(i, json.dumps(d), json.dumps(d), json.dumps([d])) for i, d in enumerate(documents)]
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO partial_.t VALUES (%s, %s, %s, 'v', %s)", rows)
        given = options(mysql, "partial_.t", **{"columns.exclude": ".*gone"})
        stream = reader(given)
        offset, snapshot = take(stream, stream.initialOffset())
        state = {row[0]: row[1:4] for row in snapshot}
        cursor.execute("SET SESSION binlog_row_value_options = PARTIAL_JSON")
        done = 0
        for _ in range(600):
            at = chance.randrange(len(documents))
            call, column = chance.choice(["SET", "REPLACE", "REMOVE"]), chance.choice(["j", "k", "gone"])
            cursor.execute(f"SELECT {column} FROM partial_.t WHERE id = {at}")
            ((text,),) = cursor.fetchall()
            some = [p for p in paths(json.loads(text)) if p != "$"] if text else []
            if not some:
                continue
            changes: list[Any] = []
            for path in chance.sample(some, min(len(some), 1 if call == "REMOVE" else chance.randint(1, 3))):
                changes += [path] if call == "REMOVE" else [path, chance.choice([1, "y", 2.5])]
            marks = ", ".join(["%s"] * len(changes))
            done += cursor.execute(
                f"UPDATE partial_.t SET {column} = JSON_{call}({column}, {marks}), v = %s WHERE id = %s",
                (*changes, str(done), at),
            )
        found = mysql.execute("SELECT id, CAST(j AS CHAR), v, CAST(k AS CHAR) FROM partial_.t")
    assert done > 300
    _, changes = take(stream, offset)
    for row in changes:
        if row[-3] == "update_preimage":
            assert state[row[0]] == row[1:4]
        else:
            state[row[0]] = row[1:4]
    again = reader(given)
    _, last = take(again, again.initialOffset())
    assert state == {row[0]: row[1:4] for row in last}, "as a snapshot of the end"
    assert {i: v for i, (_, v, _) in state.items()} == {i: v for i, _, v, _ in found}
    events = {row[2] for row in mysql.execute(f"SHOW BINLOG EVENTS IN '{mysql.binlog_end()[0]}'")}
    assert "Update_rows_partial" in events
