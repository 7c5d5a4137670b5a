"""What happens to the server while it is read: ALTER TABLE, rotations, lost connections, restarts, SIGKILL."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pymysql

from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import is_mariadb

from .repeating import LATER, Repeating
from .swaps import swap_for_copy
from .tables import (
    COMES_BACK,
    DATABASE,
    DEFAULTS,
    FATES,
    HAS_DEFAULT,
    KINDS,
    READER,
    RENAMED,
    SIGNALS,
    TABLES,
    Shape,
    columns_of,
    family,
    fate,
)
from .writers import is_lost, patiently

_MOST_COLUMNS = 14
_UNSUPPORTED = {1845, 1846, 1221, 4023}
_AWAY = {1146, 1412}  # a table is away for a moment, or another one


class Alters(Repeating):
    """ALTER TABLE of both tables, the same.

    Parameters
    ----------
    server, shape, seed, pause
    passed : callable
        Up to where every stream is done with the log, or None. The log does not tell a column's definition between
        two statements that change it, so of those there is at most one ahead of a stream.
    pool : mapping, optional
        The only columns that are added and dropped; none is then renamed or becomes wider.
    most : int, optional
        How often it does something at most.
    """

    def __init__(
        self,
        server: MySQLServer,
        shape: Shape,
        seed: int,
        pause: float,
        passed: Callable[[], BinlogPosition | None],
        pool: Mapping[str, int] | None = None,
        most: int | None = None,
    ) -> None:
        super().__init__(seed, pause)
        self._server, self._shape, self._passed = server, shape, passed
        self._pool, self._most = pool, most
        self._changes = [self._drop, self._back, self._move, self._index, self._online]
        if pool is None:
            self._changes += [self._add, self._add, self._rename, self._widen, self._widen]
        self._number = 0
        self._columns = 5
        self._dropped: dict[str, int] = dict(pool or {})
        self._indexes: list[str] = []
        self._redefined: dict[str, BinlogPosition] = {}
        self._was_online = False

    def act(self) -> None:
        if self._most is not None and sum(self.done.values()) >= self._most:
            return
        if self._was_online and not self._is_passed(self._shape.altered):
            return
        change = self.chance.choice(self._changes)
        with self._shape.lock:  # else a table might be swapped in between
            made = change()
            if made is None:
                return
            self.alter(*made, online=change == self._online)
        self.done[change.__name__[1:]] += 1

    def alter(
        self, clauses: str, steps: Mapping[str, int], redefined: Sequence[str] = (), *, online: bool = False
    ) -> None:
        """Alter both tables.

        Parameters
        ----------
        clauses : str
            What comes after ``ALTER TABLE`` and the name.
        steps : mapping
            Columns whose type changes; -1 for one that goes.
        redefined : sequence of str
            Columns that get a new definition.
        online : bool
            Alter copies that take the tables' names.
        """
        before = self._shape.stages[self._number]
        with self._shape.lock:
            self._number += 1
            if online:
                with self._shape.quiet():
                    for table in TABLES:
                        swap_for_copy(self._server, table, self._number, clauses)
            else:
                self._run_on_both(clauses)
            self._shape.stages[self._number] = patiently(lambda: columns_of(self._server))
            now = {name: at for name, at in {**self._shape.steps, **steps}.items() if at >= 0}
            self._shape.gone |= {family(name) for name in before} - {family(name) for name in now if fate(name)}
            self._shape.steps = now
            self._shape.altered = BinlogPosition(*patiently(self._server.binlog_end))
            self._was_online = online
            self._redefined.update(dict.fromkeys(map(family, redefined), self._shape.altered))

    def _run_on_both(self, clauses: str) -> None:
        algorithms = ["", ", ALGORITHM=INPLACE", ", ALGORITHM=COPY", ", ALGORITHM=INSTANT"]
        algorithms += [", ALGORITHM=NOCOPY"] * is_mariadb(self._server)
        suffix = self.chance.choice(algorithms)
        for table in TABLES:
            mark = self._comment(table)
            while True:
                try:
                    self._server.execute(f"ALTER TABLE {DATABASE}.{table} /* {self._number} */ {clauses}{suffix}")
                    break
                except (OSError, pymysql.err.Error) as error:
                    code = error.args[0] if error.args else 0
                    if code in _UNSUPPORTED:
                        suffix = ""
                    elif code not in LATER and not is_lost(error):
                        raise
                    elif is_lost(error) and self._comment(table) != mark:
                        self.done["killed and done"] += 1
                        break
                    elif is_lost(error):
                        self.done["killed"] += 1

    def _comment(self, table: str) -> Any:
        """What tells whether a table was altered."""
        return patiently(lambda: self._server.execute(f"SHOW CREATE TABLE {DATABASE}.{table}"))[0][1]

    def _some(self, wanted: Callable[[str], bool]) -> str | None:
        names = [name for name in self._shape.steps if wanted(name)]
        return self.chance.choice(names) if names else None

    def _place(self, name: str = "") -> str:
        others = [other for other in self._shape.stages[self._number] if other != name]
        return self.chance.choice(["", "", " FIRST", f" AFTER {self.chance.choice(others)}"])

    def _add(self) -> Any:
        if len(self._shape.steps) >= _MOST_COLUMNS:
            return None
        self._columns += 1
        kind, step = self.chance.choice([*KINDS]), self.chance.randrange(2)
        name = f"{kind}{self.chance.choice(FATES)}{self._columns}"
        # A NOT NULL date would get zero dates by INSERT IGNORE, which a later ALTER TABLE refuses.
        not_null = "" if kind == "m" else " NOT NULL"
        default = f"{not_null} DEFAULT '{DEFAULTS[kind]}'" if fate(name) == HAS_DEFAULT else ""
        if default and step == 0 and kind == "b":
            default = " NOT NULL DEFAULT 'seven'"
        clause = f"ADD COLUMN {name} {KINDS[kind][step]}{default}{self._place()}"
        return clause, {name: step}, [name]

    def _drop(self) -> Any:
        name = self._some(lambda name: self._pool is None or name in self._pool)
        if name is None or len(self._shape.steps) < 4:
            return None
        if fate(name) == COMES_BACK:
            self._dropped[name] = self._shape.steps[name]
        return f"DROP COLUMN {name}", {name: -1}, []

    def _back(self) -> Any:
        names = [name for name in self._dropped if name not in self._shape.steps]
        if not names:
            return None
        name = self.chance.choice(names)
        step = self._dropped[name]
        return f"ADD COLUMN {name} {KINDS[name[0]][step]}{self._place()}", {name: step}, [name]

    def _move(self) -> Any:
        name = self._some(lambda name: fate(name) != HAS_DEFAULT and self._is_settled(name))
        if name is None:
            return None
        return f"MODIFY {name} {KINDS[name[0]][self._shape.steps[name]]}{self._place(name) or ' FIRST'}", {}, [name]

    def _widen(self) -> Any:
        name = self._some(
            lambda name: (
                fate(name) != HAS_DEFAULT
                and self._shape.steps[name] + 1 < len(KINDS[name[0]])
                and self._is_settled(name)
            )
        )
        if name is None:
            return None
        step = self._shape.steps[name] + 1
        return f"MODIFY COLUMN {name} {KINDS[name[0]][step]}{self._place(name)}", {name: step}, [name]

    def _rename(self) -> Any:
        # Of a table that is gone, a stream that is declared after this has no column of the old name.
        if not self._is_passed(self._shape.swapped):
            return None
        name = self._some(lambda name: fate(name) == RENAMED)
        if name is None:
            return None
        self._columns += 1
        new, step = f"{family(name)}_r{self._columns}", self._shape.steps[name]
        if self.chance.random() < 0.3 and self._is_settled(name):
            return f"CHANGE {name} {new} {KINDS[name[0]][step]}{self._place(name)}", {name: -1, new: step}, [name]
        return f"RENAME COLUMN {name} TO {new}", {name: -1, new: step}, []

    def _index(self) -> Any:
        if self._indexes and self.chance.random() < 0.5:
            return f"DROP INDEX {self._indexes.pop()}", {}, []
        self._indexes.append(f"ix{self._number}")
        return f"ADD INDEX {self._indexes[-1]} (n)", {}, []

    def _online(self) -> Any:
        """An online change. The columns between two of them, or after another change, are not always in the log."""
        if not self._is_passed(self._shape.altered):
            return None
        clauses, steps, redefined = self.chance.choice([self._index, self._move])() or ("ENGINE=InnoDB", {}, [])
        return clauses, steps, [*self._shape.steps, *redefined]

    def _is_settled(self, name: str) -> bool:
        """Whether every stream is past the last statement that changed the column's definition."""
        return self._is_passed(self._redefined.get(family(name)))

    def _is_passed(self, at: BinlogPosition | None) -> bool:
        passed = self._passed()
        return at is None or (passed is not None and passed.sort_key() >= at.sort_key())


class Storm(Repeating):
    """All else. Only this thread starts and ends the server.

    Parameters
    ----------
    server, shape, seed, pause
    kills : float
        Share of restarts and kills in what it does.
    """

    def __init__(self, server: MySQLServer, shape: Shape, seed: int, pause: float, kills: float = 0.15) -> None:
        super().__init__(seed, pause)
        self._server = server
        self._gate = shape.gate()
        self._kills = kills
        self._asked: list[Callable[[], None]] = []
        self._others = [self._flush, self._cut, self._cut, self._cut, self._names, self._idle, self._statement]
        self._others += [self._signal] * 3
        self._signals = 0
        # Held while it acts: whoever needs the server to be up holds it too.
        self.lock = threading.Lock()

    def act(self) -> None:
        if self._asked:
            self.strike(self._asked.pop())
        elif self.chance.random() < self._kills:
            self.strike(self.chance.choice([self.kill, self.kill_in_commit, self.restart]))
        else:
            self.strike(self.chance.choice(self._others))

    def ask(self, what: Callable[[], None]) -> None:
        """Have one thing done next, by this thread."""
        self._asked.append(what)

    def strike(self, what: Callable[[], None]) -> None:
        """Do one thing and count it."""
        with self.lock:
            what()
        self.done[what.__name__.strip("_")] += 1

    def restart(self) -> None:
        self._server.restart()

    def kill(self) -> None:
        self._server.kill()
        self._server.start()

    def kill_in_commit(self) -> None:
        """SIGKILL while a large transaction is written to the log."""
        with self._gate, self._server.connect(autocommit=False) as connection, connection.cursor() as cursor:
            for statement in ("SET v = REPEAT('y', 60)", *["SET n = n + 1"] * 3):
                with contextlib.suppress(pymysql.err.MySQLError):
                    cursor.execute(f"UPDATE {DATABASE}.t_1 {statement}")
                with contextlib.suppress(pymysql.err.MySQLError):
                    cursor.execute(f"UPDATE {DATABASE}.t_2 {statement}")
            file = self._server.binlog_end()[0]
            path = self._server.datadir / file
            size = path.stat().st_size
            pid = self._server.pid

            def strike() -> None:
                limit = time.monotonic() + 5
                while path.stat().st_size < size + 8_192 and time.monotonic() < limit:
                    pass
                assert pid is not None
                os.kill(pid, signal.SIGKILL)

            thread = threading.Thread(target=strike)
            thread.start()
            try:
                connection.commit()
            except (OSError, pymysql.err.Error) as error:
                if not is_lost(error):
                    raise
            finally:
                thread.join()
                connection._force_close()
        self._server.kill()
        self._server.start()

    def _flush(self) -> None:
        self._server.execute("FLUSH BINARY LOGS")

    def _cut(self) -> None:
        """KILL a connection of the stream."""
        found = self._server.execute(f"SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{READER}'")
        if found:
            try:
                self._server.execute(f"KILL {self.chance.choice(found)[0]}")
            except pymysql.err.MySQLError as error:
                if error.args[0] != 1094:  # it has ended
                    raise

    def _names(self) -> None:
        names = ["NO_LOG", "MINIMAL", "FULL"] if is_mariadb(self._server) else ["MINIMAL", "FULL"]
        self._server.execute(f"SET GLOBAL binlog_row_metadata = '{self.chance.choice(names)}'")

    def _idle(self) -> None:
        """Statements that are in the log and change none of the tables' rows or columns."""
        statement = self.chance.choice(
            [
                f"ANALYZE TABLE {DATABASE}.t_1",
                f"OPTIMIZE TABLE {DATABASE}.t_2",
                f"TRUNCATE {DATABASE}.feed",
                f"CREATE TABLE IF NOT EXISTS {DATABASE}.copied LIKE {DATABASE}.t_1",
                f"DROP TABLE IF EXISTS {DATABASE}.copied",
                f"GRANT SELECT ON {DATABASE}.t_1 TO {READER}@'127.0.0.1'",
            ]
        )
        self._try(statement)

    def _statement(self) -> None:
        """A change that is logged as a statement, reads a captured table, and writes another as pt-table-checksum."""
        self._try(
            "SET SESSION binlog_format = 'STATEMENT'",
            f"REPLACE percona.checksums SELECT 1, COUNT(*) FROM {DATABASE}.t_1",
        )

    def _signal(self) -> None:
        """Ask the streams to read a table again: all of it, or some rows."""
        self._signals += 1
        kinds = ["execute-snapshot"] * 4 + ["pause-snapshot", "resume-snapshot", "resume-snapshot", "stop-snapshot"]
        kind, table = self.chance.choice(kinds), self.chance.choice(["t_1", "t_2", r"t_\d"])
        asked: dict[str, Any] = {"data-collections": [rf"{DATABASE}\.{table}"]}
        if kind in ("pause-snapshot", "resume-snapshot"):
            asked = {}
        if kind == "execute-snapshot" and self.chance.random() < 0.3:
            condition = {"data-collection": f"{DATABASE}.t_1", "filter": "MOD(n, 3) = 0"}
            asked = {"data-collections": [rf"{DATABASE}\.t_1"], "additional-conditions": [condition]}
        told = f"{self._signals}", kind, json.dumps(asked)
        self._try(f"INSERT INTO {SIGNALS} VALUES (%s, %s, %s)", values=told)

    def _try(self, *statements: str, values: Sequence[str] = ()) -> None:
        try:
            with self._server.connect() as connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement, values or None)
        except pymysql.err.MySQLError as error:
            if error.args[0] not in LATER | _AWAY:
                raise
