"""Random ALTER TABLEs on real servers: the answers about old rows' values are compared with the values themselves."""

from __future__ import annotations

import base64
import contextlib
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from backlog_spark.connectors.mysql_cdc.binlog.dump import open_dump
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.output import envelope
from backlog_spark.connectors.mysql_cdc.schema.columns import Column
from backlog_spark.connectors.mysql_cdc.schema.ddl import rewriting
from backlog_spark.connectors.mysql_cdc.schema.ddl.alters import COMPUTED, NOTHING_SAID, Add, after, column_steps
from backlog_spark.connectors.mysql_cdc.schema.ddl.answers import FILLS, KEEPS, REWRITES, Session, answers
from backlog_spark.connectors.mysql_cdc.schema.ddl.statements import sql_mode_of, time_zone_of
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged, TableSchema
from backlog_spark.connectors.mysql_cdc.schema.types import kind_of
from backlog_spark.connectors.mysql_cdc.server.mysql import load_schema, open_connection, query
from backlog_spark.connectors.mysql_cdc.server.prepared import fetch
from backlog_spark.connectors.mysql_cdc.snapshot.reading import select_statement
from backlog_spark.errors import BacklogError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import is_mariadb, options

from .altering import FORMS, Attempt, Form, Made, Maker, SessionSettings, session_of

ROWS = 9
_WITH_ZEROS = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
_MOMENTS = ("date", "datetime", "timestamp")
_QUERY_EVENT = 2
OTHERS = "(columns that the statement does not name)"


# -- values ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A value: in ``format=row``; as the server prints it, if it is a date, which may be zero; in an envelope.

    Zero, partial and impossible dates are NULL to the source, so another one of them is the same value.
    """

    value: object
    text: str | None
    envelope: str | None

    def is_same(self, other: Cell, form: str) -> bool:
        if form == "debezium" and self.envelope != other.envelope:
            return False
        return _plain(self.value) == _plain(other.value)


def _plain(value: object) -> tuple[object, ...]:
    """Numbers are equal whatever their type, but floating point numbers only bit by bit."""
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    return ("number" if isinstance(value, int) or hasattr(value, "as_tuple") else type(value).__name__), value


def _moment(text: str | None) -> str | None:
    """More digits of a second are the same moment."""
    return text.rstrip("0").rstrip(".") if text and "." in text else text


Rows = dict[int, dict[str, Cell]]
"""By ``rid`` and a column's name in lower case."""


def read_rows(connection: Any, schema: TableSchema) -> Rows:
    """All rows as the snapshot reads them."""
    moments = [c for c in schema.columns if c.data_type in _MOMENTS]
    texts = {
        row[0]: dict(zip((c.name for c in moments), row[1:], strict=True))
        for row in query(
            connection,
            f"SELECT rid{''.join(f', CAST({c.quoted} AS CHAR)' for c in moments)} FROM {schema.qualified}",
        )
    }
    found: Rows = {}
    for sent in fetch(connection, select_statement(schema, None, None), lambda _: None):
        arrays = [kind_of(c).parse(c, array) for c, array in zip(schema.columns, sent, strict=True)]
        envelopes = [envelope._values(c)(c, array) for c, array in zip(schema.columns, arrays, strict=True)]
        values, jsons = ([a.to_pylist() for a in of] for of in (arrays, envelopes))
        rid = [c.name for c in schema.columns].index("rid")
        for row in range(len(arrays[0])):
            key = values[rid][row]
            found[key] = {
                c.name.lower(): Cell(values[i][row], texts[key].get(c.name), jsons[i][row])
                for i, c in enumerate(schema.columns)
            }
    return found


# -- one table and its statements --------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a statement did to one column, and what was answered."""

    form: str
    happened: str  # kept, kept as NULL, filled, new, changed
    answer: str
    why: str = ""


@dataclass
class Report:
    """Counts over many tables, and the wrong answers."""

    outcomes: Counter[tuple[str, bool, str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, bool]] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    examples: dict[tuple[str, bool, str, str], str] = field(default_factory=dict)
    statements: int = 0

    def add(self, outcome: Outcome, strict: bool, example: str) -> None:
        key = outcome.form, strict, outcome.happened, outcome.answer
        self.outcomes[key] += 1
        self.examples.setdefault(key, example)

    def told(self) -> str:
        """The counts, for people."""
        total: Counter[tuple[str, str]] = Counter()
        cautious: Counter[str] = Counter()
        for (form, _, happened, answer), count in self.outcomes.items():
            total[happened, answer] += count
            cautious[form] += count if happened.startswith("kept") and answer == REWRITES else 0
        lines = [f"{self.statements} statements, {sum(self.refused.values())} refused by the server"]
        lines += [f"{happened} / {answer}: {count}" for (happened, answer), count in total.most_common()]
        lines += [f"not understood or read: {why}: {count}" for why, count in self.unread.most_common(12)]
        lines += ["rewrites, though these rows kept all values:"]
        lines += [f"  {form}: {count}" for form, count in cautious.most_common(25) if count]
        return "\n".join(lines)


@dataclass(frozen=True)
class Altered:
    """A statement that ran, with the table's definition and rows before and after it."""

    form: str
    statement: str
    session: SessionSettings
    touched: set[str]
    whole: bool
    before: tuple[TableSchema, Rows]
    now: tuple[TableSchema, Rows]
    defaults: Mapping[str, Cell | str]  # of new columns, as a sink would fill them; or why they cannot be asked for
    told: str


class Oracle:
    """Makes tables on a server, alters them, and compares."""

    def __init__(self, server: MySQLServer, report: Report) -> None:
        self.report = report
        self.of_mariadb = is_mariadb(server)
        self.name = f"{server.product} {server.version}"
        self._options = MySqlOptions.parse(options(server, "altering.t"))
        self._forms = [f for f in FORMS if not f.only or (f.only == "mariadb") == self.of_mariadb]
        self._ddl = server.connect(charset="utf8mb4")
        self._reader = open_connection(self._options)
        self._start = BinlogPosition(*server.binlog_end())
        self._server = server
        self._waiting: list[Altered | None] = []
        self._run("SET sql_log_bin = 0")
        self._run("CREATE DATABASE IF NOT EXISTS altering CHARACTER SET utf8mb4")
        self._run("USE altering")
        self._add_zone()

    def close(self) -> None:
        """Remove all that was made."""
        for table in ("time_zone_name", "time_zone", "time_zone_transition", "time_zone_transition_type"):
            self._run(f"DELETE FROM mysql.{table} WHERE Time_zone_id = {self._zone}")
        self._run("DROP DATABASE altering")
        self._ddl.close()
        self._reader.close()

    def _add_zone(self) -> None:
        """A time zone with summer time in 2020, as servers have no named ones at first."""
        self._run("SET sql_mode = ''")
        self._run("INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')")
        self._zone = zone = self._ask("SELECT LAST_INSERT_ID()")[0][0]
        self._run(f"REPLACE INTO mysql.time_zone_name VALUES ('Test/Summer', {zone})")
        self._run(f"INSERT INTO mysql.time_zone_transition_type VALUES ({zone}, 0, 3600, 0, 'A'), "
                  f"({zone}, 1, 7200, 1, 'B')")  # fmt: skip
        self._run(f"INSERT INTO mysql.time_zone_transition VALUES ({zone}, -2000000000, 0), "
                  f"({zone}, 1585443600, 1), ({zone}, 1603587600, 0)")  # fmt: skip

    def _run(self, statement: str) -> None:
        with self._ddl.cursor() as cursor:
            cursor.execute(statement)

    def _ask(self, statement: str) -> Sequence[tuple[Any, ...]]:
        with self._ddl.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    # -- a table -------------------------------------------------------------------------------------------

    def round(self, seed: int) -> None:
        """Make one table by chance and alter it several times."""
        chance = random.Random(seed)
        forms = [self._forms[(seed * 3 + n) % len(self._forms)] for n in range(3)]
        forms.append(chance.choice(self._forms))
        attempts = [f.make(Maker(chance, n, self.of_mariadb)) for n, f in enumerate(forms)]
        if not self._create(chance, attempts):
            # One form's generated column or key may be impossible.
            able = [(f, a) for f, a in zip(forms, attempts, strict=True) if self._create(chance, [a])]
            forms, attempts = [f for f, _ in able], [a for _, a in able]
            if not able or not self._create(chance, attempts):
                self.report.unread["no such table"] += 1
                return
        try:
            before = self._state()
        except BacklogError as error:
            self.report.unread[error.problem[:60]] += 1
            return
        definition = self._ask("SHOW CREATE TABLE t")[0][1]
        for names, verb, clauses, touched, whole in _statements(chance, forms, attempts):
            session = session_of(chance)
            self._run(session.statement(self.of_mariadb))
            statement = f"{verb} t {', '.join(clauses)}".rstrip()
            if chance.random() < 0.15:
                statement += f", ALGORITHM={chance.choice(['COPY', 'INPLACE', 'INSTANT', 'DEFAULT'])}"
            self.report.statements += 1
            try:
                self._run(statement)
            except pymysql.Error:
                for name in names:
                    self.report.refused[name, session.is_strict] += 1
                continue
            try:
                now = self._state()
            except (BacklogError, pa.ArrowInvalid) as error:
                self.report.unread[str(error)[:60]] += 1
                self._waiting.append(None)  # the log has it
                return
            defaults = self._defaults(now[0], statement)
            told = f"{self.name}, seed {seed}, {session}\n{definition}\n{statement}"
            self._waiting.append(
                Altered(" + ".join(names), statement, session, touched, whole, before, now, defaults, told)
            )
            before = now
            definition = self._ask("SHOW CREATE TABLE t")[0][1]

    def _create(self, chance: random.Random, attempts: Sequence[Attempt]) -> bool:
        made = [m for a in attempts for m in a.made]
        columns = ["rid BIGINT NOT NULL", *(m.definition for m in made), *(k for a in attempts for k in a.keys)]
        able = [m.name for m in made if m.null == "NOT NULL" and "AUTO" not in m.more]
        if chance.random() < 0.6 or not able:
            columns.append("PRIMARY KEY (rid)")
        else:
            columns += ["UNIQUE KEY (rid)", f"PRIMARY KEY (`{chance.choice(able)}`)"]
        zone = "time_zone = '+00:00', explicit_defaults_for_timestamp = 1"
        self._run(f"SET SESSION sql_log_bin = 0, sql_mode = '{_WITH_ZEROS}', {zone}")
        self._run("DROP TABLE IF EXISTS t")
        for last in (columns[-1], "PRIMARY KEY (rid)"):
            with contextlib.suppress(pymysql.Error):
                self._run(f"CREATE TABLE t ({', '.join([*columns[:-1], last])})")
                self._insert(chance, made)
                return True
        return False

    def _insert(self, chance: random.Random, made: Sequence[Made]) -> None:
        plain = [m for m in made if m.null]
        cycles = {m.name: chance.sample(m.values, len(m.values)) for m in plain}
        for row in range(ROWS):
            values = [cycles[m.name][row % len(m.values)] for m in plain]
            names = ", ".join(["rid", *(f"`{m.name}`" for m in plain)])
            # A generated column may not hold what comes of a value.
            with contextlib.suppress(pymysql.Error):
                self._run(f"INSERT IGNORE INTO t ({names}) VALUES ({', '.join([str(row + 1), *values])})")

    def _state(self) -> tuple[TableSchema, Rows]:
        schema = load_schema(self._reader, self._options, "altering", "t")
        return schema, read_rows(self._reader, schema)

    # -- a statement ---------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare all statements so far with what is answered to the log's events of them."""
        for altered, (statement, session) in zip(self._waiting, self._logged(), strict=True):
            if altered is not None:
                assert altered.statement == statement, f"logged as {statement}"
                self._compare(altered, session)
        self._waiting = []

    def _logged(self) -> Iterator[tuple[str, Session]]:
        """The statements in the log, and what it says of their sessions."""
        dump = open_dump(MySqlOptions.parse(options(self._server, "altering.t")), self._start)
        connection = dump.open()
        while not (packet := connection._read_packet()).is_eof_packet():
            data = packet.get_all_data()
            body = data[20:-4]
            if data[5] == _QUERY_EVENT:
                size = int.from_bytes(body[11:13], "little")
                status, text = body[13 : 13 + size], body[13 + size + body[8] + 1 :].decode()
                if text.startswith("ALTER"):
                    mode, zone = sql_mode_of(status), time_zone_of(status)
                    yield text, Session.of(mode, zone, of_mariadb=self.of_mariadb)
        dump.close()

    def _compare(self, altered: Altered, logged: Session) -> None:
        (old, old_rows), (new, new_rows) = altered.before, altered.now
        statement, session, told = altered.statement, altered.session, f"{altered.told}\n{logged}"
        try:
            steps = column_steps(statement)
            made = after([c.name for c in old.columns], steps)
        except SchemaChanged as error:
            self.report.unread[error.problem.rsplit(",", 1)[-1][:60]] += 1
            return
        if [m.name.lower() for m in made] != [
            c.name.lower() for c in new.columns
        ] or old_rows.keys() != new_rows.keys():
            self.report.wrong.append(f"other columns or rows than derived: {made}\n{told}")
            return
        for output in ("row", "debezium"):
            given = answers(old.columns, new.columns, made, steps, logged, output)
            for column in new.columns:
                name = column.name.lower()
                pairs = [(old_rows[rid].get(name), new_rows[rid][name]) for rid in new_rows]
                happened = _happened(pairs, output)
                answer = given[column.name]
                problem = ""
                if answer.kind == KEEPS and not happened.startswith("kept"):
                    problem = f"answered keeps, but {happened}"
                elif answer.kind == FILLS:
                    problem = _misfilled(altered, column, [cell for _, cell in pairs], output)
                values = "\n".join(f"  {a} -> {b}" for a, b in pairs)
                example = f"{told}\ncolumn {column.name}, format={output}, {happened}, {answer}\n{values}"
                if problem:
                    self.report.wrong.append(f"{problem}\n{example}")
                if output == "row":
                    own = altered.whole or name in altered.touched
                    outcome = Outcome(altered.form if own else OTHERS, happened, answer.kind, answer.why)
                    self.report.add(outcome, session.is_strict, example)

    def _defaults(self, schema: TableSchema, statement: str) -> dict[str, Cell | str]:
        """What `rewriting` gives as the values of columns that the last statement added."""
        found: dict[str, Cell | str] = {}
        with contextlib.suppress(SchemaChanged):
            adds = {step.name.lower(): step.default for step in column_steps(statement) if isinstance(step, Add)}
            for column in schema.columns:
                default = adds.get(column.name.lower(), COMPUTED)
                if default == COMPUTED or (default == NOTHING_SAID and column.nullable):
                    continue
                unsaid = frozenset({column.name} if default == NOTHING_SAID else ())
                try:
                    given = rewriting._values(self._reader, self._options, schema, (column,), unsaid)
                except (pymysql.Error, BacklogError, pa.ArrowInvalid) as error:
                    found[column.name] = str(error)
                    continue
                if given is not None:
                    value = pa.ipc.open_stream(base64.b64decode(given)).read_all().column(0).combine_chunks()
                    shown = envelope._values(column)(column, value)
                    found[column.name] = Cell(value[0].as_py(), None, shown[0].as_py())
        return found


def _misfilled(altered: Altered, column: Column, cells: Sequence[Cell], form: str) -> str:
    """What is wrong with the answer that old rows have one known value; "" if nothing is."""
    if not all(cell.is_same(cells[0], form) for cell in cells):
        return "answered fills, but there are several values"
    default = altered.defaults.get(column.name)
    if isinstance(default, str):
        return f"answered fills, but its value is not known: {default}"
    if not cells:
        return ""
    null = Cell(None, None, None)
    return "" if (default or null).is_same(cells[0], "debezium") else f"answered fills, with {default}"


def _happened(pairs: Sequence[tuple[Cell | None, Cell]], form: str) -> str:
    if all(a is not None and a.is_same(b, form) for a, b in pairs):
        same = all(a is not None and _moment(a.text) == _moment(b.text) for a, b in pairs)
        return "kept" if same else "kept as NULL"
    if all(a is None for a, _ in pairs):
        return "filled" if all(b.is_same(pairs[0][1], form) for _, b in pairs) else "new"
    return "changed"


def _statements(
    chance: random.Random, forms: Sequence[Form], attempts: Sequence[Attempt]
) -> Iterator[tuple[list[str], str, list[str], set[str], bool]]:
    """The statements of several forms, some put together, with the columns that they are about."""
    waiting: list[tuple[list[str], str, list[str], set[str], bool]] = []
    for form, attempt in zip(forms, attempts, strict=True):
        names = {name.lower() for name in attempt.touched}
        clauses = attempt.statements[0]
        together = not attempt.alone and waiting and chance.random() < 0.2
        if together and waiting[-1][1] == "ALTER TABLE" and not waiting[-1][4]:
            waiting[-1][0].append(form.name)
            waiting[-1][2].extend(clauses)
            waiting[-1][3].update(names)
        else:
            waiting.append(([form.name], attempt.verb, [*clauses], set(names), attempt.whole))
    yield from waiting
    for form, attempt in zip(forms, attempts, strict=True):
        for number, clauses in enumerate(attempt.statements[1:], 2):
            names = {name.lower() for name in attempt.touched}
            yield [f"{form.name}, statement {number}"], attempt.verb, [*clauses], names, attempt.whole


def examined(server: MySQLServer, seeds: Sequence[int]) -> Report:
    """The report of many tables."""
    oracle = Oracle(server, Report())
    try:
        for seed in seeds:
            oracle.round(seed)
        oracle.compare()
    finally:
        oracle.close()
    return oracle.report


def _check(report: Report) -> None:
    print(report.told())
    assert not report.wrong, f"{len(report.wrong)} wrong answers\n\n" + "\n\n".join(report.wrong[:5])
    found: Counter[tuple[str, str]] = Counter()
    for (_, _, happened, answer), count in report.outcomes.items():
        found[happened, answer] += count
    assert found["kept", KEEPS] > len(FORMS), "the answers say too little"
    assert found["changed", REWRITES], "the statements change too little"
    assert found["filled", FILLS], "no new column was filled"


@pytest.mark.slow
def test_answers_about_old_values(pool: Callable[..., MySQLServer]) -> None:
    _check(examined(pool(MySQLServer, fast=True), range(60)))


@pytest.mark.grid
@pytest.mark.parametrize("part", range(4))
def test_answers_about_old_values_of_many_tables(nameless: MySQLServer, part: int) -> None:
    _check(examined(nameless, range(1_000 + part * 500, 1_500 + part * 500)))
