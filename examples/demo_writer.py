"""The demo's application: changes the orders table until it is stopped (SIGTERM)."""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from typing import Any

import pymysql


def change(cursor: Any, chance: random.Random, keys: int) -> None:
    """One random statement: insert, update, delete or change of keys."""
    what, key = chance.random(), chance.randrange(1, keys + 1)
    if what < 0.25:
        cursor.execute(
            "INSERT IGNORE INTO orders VALUES (%s, %s, 'new', %s, NULL, 1, %s, CURDATE(), NOW(3), NOW(6))",
            (
                chance.randrange(1, keys * 2),
                chance.randrange(200_000),
                chance.randrange(10**6) / 100,
                'with "quotes", é',
            ),
        )
    elif what < 0.7:
        cursor.execute(
            "UPDATE orders SET status = 1 + quantity %% 4, amount = amount + 1, updated_at = NOW(6) "
            "WHERE id BETWEEN %s AND %s",
            (key, key + chance.randrange(5)),
        )
    elif what < 0.85:
        cursor.execute("DELETE FROM orders WHERE id = %s", (key,))
    else:
        cursor.execute("UPDATE IGNORE orders SET id = %s WHERE id = %s", (chance.randrange(1, keys * 2), key))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--password-env", default="", help="the environment variable that has root's password")
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-second", type=float, default=100, help="transactions per second")
    arguments = parser.parse_args()
    running = [True]
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    chance = random.Random(arguments.seed)
    login = {"user": "root", "password": os.environ.get(arguments.password_env, "")}
    connection = pymysql.connect(host=arguments.host, port=arguments.port, database="shop", **login)
    cursor = connection.cursor()
    while running:
        for _ in range(chance.randint(1, 4)):
            change(cursor, chance, arguments.keys)
        if chance.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()
        time.sleep(chance.expovariate(arguments.per_second))
    connection.close()


if __name__ == "__main__":
    main()
