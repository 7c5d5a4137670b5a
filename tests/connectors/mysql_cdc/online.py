"""Changes a table like pt-online-schema-change, while others write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .replay import Writers

if TYPE_CHECKING:
    import random

    from servers.mysql import MySQLServer


def online(server: MySQLServer, table: str, alter: str) -> None:
    """Change a table with the columns id, n and v by the statements of the tool, in its order."""
    database, name = table.split(".")
    shadow, old = f"`{database}`.`_{name}_new`", f"`{database}`.`_{name}_old`"
    columns, values = "`id`, `n`, `v`", "NEW.`id`, NEW.`n`, NEW.`v`"
    gone = f"DELETE IGNORE FROM {shadow} WHERE {shadow}.`id` <=> OLD.`id`"
    replace = f"REPLACE INTO {shadow} ({columns}) VALUES ({values})"
    moved = f"DELETE IGNORE FROM {shadow} WHERE !(OLD.`id` <=> NEW.`id`) AND {shadow}.`id` <=> OLD.`id`"
    for statement in (
        f"CREATE TABLE {shadow} LIKE {table}",
        f"ALTER TABLE {shadow} {alter}",
        f"CREATE TRIGGER `{database}`.`pt_{name}_del` AFTER DELETE ON {table} FOR EACH ROW {gone}",
        f"CREATE TRIGGER `{database}`.`pt_{name}_upd` AFTER UPDATE ON {table} FOR EACH ROW "
        f"BEGIN {moved}; {replace}; END",
        f"CREATE TRIGGER `{database}`.`pt_{name}_ins` AFTER INSERT ON {table} FOR EACH ROW {replace}",
        f"INSERT LOW_PRIORITY IGNORE INTO {shadow} ({columns}) SELECT {columns} FROM {table} LOCK IN SHARE MODE",
        f"RENAME TABLE {table} TO {old}, {shadow} TO {table}",
        f"DROP TABLE IF EXISTS {old}",
    ):
        server.execute(statement)


class PlainWriters(Writers):
    """Writers without UPDATE IGNORE.

    For a row that it leaves as it is, MariaDB fires the tool's triggers all the same, so that the copy is another one.
    """

    def _statement(self, cursor: Any, chance: random.Random) -> None:
        super()._statement(_Plain(cursor), chance)


class _Plain:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, statement: str, values: tuple[object, ...] | None = None) -> None:
        self._cursor.execute(statement.replace("UPDATE IGNORE", "UPDATE"), values)
