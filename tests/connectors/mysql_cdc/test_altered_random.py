"""Random ALTER TABLEs of tables with edge values: the target is equal to the source afterwards, or the stream stops.

Without Spark: `Target` keeps what `DeltaUpsert` would keep. tests/integration/test_altered_job.py tries it with Delta.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pymysql
import pytest

from backlog_spark.errors import BacklogError
from servers.mysql import MySQLServer

from .altered import Target, snapshot_of
from .replay import is_mariadb, options
from .schema.ddl.altering import FORMS, Attempt, Form, Maker, session_of

PHASES = ("live", "stopped", "behind", "snapshot", "swap")
_CREATING = "ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO"


class Round:
    """One table, altered in one phase of a stream.

    Parameters
    ----------
    server : MySQLServer
    seed : int
    database : str
        It is made anew, with the table ``t``.
    """

    def __init__(self, server: MySQLServer, seed: int, database: str = "altered") -> None:
        self.database = database
        self.chance = chance = random.Random(seed)
        self.of_mariadb = is_mariadb(server)
        self.phase = PHASES[seed % len(PHASES)]
        self.form = "debezium" if chance.random() < 0.25 else "row"
        self.told: list[str] = []
        self._connection = server.connect(charset="utf8mb4")
        self._server = server

    def run(self, form: Form) -> str:
        """What came of it: ``equal``, ``refused``, ``unread`` or the error that stopped the stream.

        Raises
        ------
        AssertionError
            The target has other rows than the source.
        """
        with contextlib.closing(self):
            attempt = self.made(form)
            if attempt is None:
                return "refused"
            given = options(
                self._server, "altered.t", chunkSize=self.chance.randint(1, 4), format=self.form,
                fillsColumns="sink" if self.form == "row" and self.chance.random() < 0.7 else "again",
            )  # fmt: skip
            target = Target(given, lambda: self.chance.random() < 0.2)
            try:
                problem = target.follow(batches=1, rows=1) if self.phase == "snapshot" else target.follow()
            except BacklogError:
                return "unread"
            if self.phase == "stopped":
                target.restart()
            if self.phase == "behind" or self.chance.random() < 0.3:
                self.change_rows(attempt)
            if not self.alter(attempt, target.follow):
                return "refused"
            self.change_rows(attempt)
            problem = problem or target.follow()
            if problem:
                return problem
            try:
                fresh = snapshot_of(given)
            except BacklogError:
                return "unread"
            assert not target.differences(fresh), "\n".join([*target.differences(fresh)[:5], *self.told])
            return "equal"

    def made(self, form: Form) -> Attempt | None:
        """Make the table, with rows; None if the server refuses it."""
        for statement in ("DROP DATABASE IF EXISTS {}", "CREATE DATABASE {}", "USE {}"):
            self._run(statement.format(self.database))
        attempt = form.make(Maker(self.chance, 0, self.of_mariadb))
        return attempt if self._create(attempt) else None

    def close(self) -> None:
        self._connection.close()

    def _run(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)

    def _create(self, attempt: Attempt) -> bool:
        made = attempt.made
        columns = ["rid BIGINT NOT NULL", *(m.definition for m in made), *attempt.keys]
        able = [m.name for m in made if m.null == "NOT NULL" and "AUTO" not in m.more]
        keys = [f"UNIQUE KEY (rid), PRIMARY KEY (`{self.chance.choice(able)}`)"] if able else []
        keys += ["PRIMARY KEY (rid)"] if self.chance.random() < 0.95 else []
        self._run(f"SET SESSION sql_mode = '{_CREATING}', time_zone = '+00:00', explicit_defaults_for_timestamp = 1")
        for key in [*(keys if self.chance.random() < 0.5 else keys[::-1]), "PRIMARY KEY (rid)"]:
            with contextlib.suppress(pymysql.Error):
                self._tell(f"CREATE TABLE t ({', '.join([*columns, key])})")
                self._insert(attempt, range(1, 8))
                return True
        return False

    def _insert(self, attempt: Attempt, rids: Sequence[int]) -> None:
        plain = [m for m in attempt.made if m.null]
        for rid in rids:
            values = [self.chance.choice(m.values) for m in plain]
            names = ", ".join(["rid", *(f"`{m.name}`" for m in plain)])
            with contextlib.suppress(pymysql.Error):
                self._run(f"INSERT IGNORE INTO t ({names}) VALUES ({', '.join([str(rid), *values])})")

    def change_rows(self, attempt: Attempt) -> None:
        """Some changes of rows, of which each may be impossible by now."""
        first = self.chance.randint(10, 10**6)
        self._run(f"SET SESSION sql_mode = '{_CREATING}', time_zone = '+00:00'")
        self._insert(attempt, range(first, first + 2))
        plain = [m for m in attempt.made if m.null]
        for statement in (
            f"DELETE FROM t WHERE rid = {self.chance.randint(1, 7)}",
            f"UPDATE t SET rid = rid + 1000 WHERE rid = {self.chance.randint(1, 7)}",
            *(f"UPDATE IGNORE t SET `{m.name}` = {self.chance.choice(m.values)} ORDER BY rid LIMIT 1" for m in plain),
        ):
            if self.chance.random() < 0.6:
                with contextlib.suppress(pymysql.Error):
                    self._run(statement)

    def alter(self, attempt: Attempt, follow: Callable[[], object]) -> bool:
        """Run the statements. Whether the server took any."""
        taken = False
        for clauses in attempt.statements:
            # Named zones are tried in schema/ddl/test_altering_servers.py.
            self._tell(session_of(self.chance).statement(self.of_mariadb).replace("Test/Summer", "+02:00"))
            with contextlib.suppress(pymysql.Error):
                if self.phase == "swap" and attempt.verb == "ALTER TABLE":
                    self._swap(", ".join(clauses))
                else:
                    self._tell(f"{attempt.verb} t {', '.join(clauses)}")
                taken = True
            if self.phase == "live" and self.chance.random() < 0.5:
                follow()
        return taken

    def _swap(self, clauses: str) -> None:
        """As gh-ost does it: a shadow is altered, gets the rows of the columns that both have, and takes the name."""
        self._run("DROP TABLE IF EXISTS _t_gho, _t_del")
        self._tell("CREATE TABLE _t_gho LIKE t")
        self._tell(f"ALTER TABLE _t_gho {clauses}")
        there = {name.lower() for name in self._writable("_t_gho")}
        both = ", ".join(f"`{name}`" for name in self._writable("t") if name.lower() in there)
        self._tell(f"INSERT IGNORE INTO _t_gho ({both}) SELECT {both} FROM t")
        count = "SELECT COUNT(*) FROM {}"
        if self._ask(count.format("t")) != self._ask(count.format("_t_gho")):
            raise pymysql.Error("the tool would lose rows")
        self._tell("RENAME TABLE t TO _t_del, _t_gho TO t")

    def _writable(self, table: str) -> list[str]:
        found = self._ask(
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS "
            f"WHERE TABLE_SCHEMA = '{self.database}' AND TABLE_NAME = '{table}' "
            "AND COALESCE(GENERATION_EXPRESSION, '') = '' ORDER BY ORDINAL_POSITION"
        )
        return [row[0] for row in found]

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def _tell(self, statement: str) -> None:
        self.told.append(statement)
        self._run(statement)


def rounds(server: MySQLServer, seeds: Sequence[int]) -> Counter[str]:
    """Many rounds; returns how often each came of one."""
    forms = [f for f in FORMS if not f.only or (f.only == "mariadb") == is_mariadb(server)]
    found: Counter[str] = Counter()
    for seed in seeds:
        each = Round(server, seed)
        form = forms[seed * 7 % len(forms)]
        try:
            came = each.run(form)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {form.name}, {each.phase}, {each.form}:\n{error}") from error
        if came not in ("equal", "refused", "unread"):
            # It says what stops it: the table, and the statement or the column.
            assert "altered.t" in came, f"seed {seed}: {came}"
            assert re.search(r"ALTER|RENAME|TRUNCATE|'\w0'|'rid'", came), f"seed {seed}: {came}"
            came = f"stopped ({each.phase})"
        found[came] += 1
    print(dict(found))
    return found


@pytest.mark.slow
def test_a_target_equals_its_source_after_any_alter(pool: Callable[..., MySQLServer]) -> None:
    found = rounds(pool(MySQLServer), range(40))
    assert found["equal"] > 15


@pytest.mark.grid
@pytest.mark.parametrize("part", range(4))
def test_a_target_equals_its_source_after_any_of_many_alters(nameless: MySQLServer, part: int) -> None:
    found = rounds(nameless, range(1_000 + 100 * part, 1_100 + 100 * part))
    assert found["equal"] > 40
