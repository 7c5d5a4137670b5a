"""Reads the statements of a Flink SQL script: tables, views, functions, settings and INSERTs (pure).

Source: Flink's "SQL": "CREATE Statements", "INSERT Statement", "SET Statements".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from backlog_spark.common.durations import parse_duration
from backlog_spark.errors import SettingError
from backlog_spark.pipelines.script.connectors import LEGACY, Connector, Given
from backlog_spark.pipelines.script.tokens import Cursor, Refused, Token, statements
from backlog_spark.pipelines.script.types import spark_type

__all__ = ["Column", "Insert", "Script", "Slice", "Table", "View"]

Slice = tuple[int, int]
"""Start and end of a part of the script."""

_KINDS: Final = "CREATE TABLE, CREATE VIEW, CREATE FUNCTION, INSERT INTO, EXECUTE STATEMENT SET and SET"
_INSTEAD: Final = {
    "SELECT": "Write INSERT INTO a table with 'connector' = 'print'.",
    "WITH": "Write INSERT INTO t WITH …; a table with 'connector' = 'print' shows the rows.",
    "USE": "There are no catalogs and databases: leave it out.",
    "ADD": "Write SET 'spark.jars' = '…'.",
    "RESET": "Leave out the SET instead.",
    "EXPLAIN": "Leave it out: backlog-spark sql --explain shows the operators of all INSERTs.",
    "SHOW": "Leave it out.",
    "DESCRIBE": "Leave it out.",
    "DROP": "Leave it out: a script begins without tables.",
    "ALTER": "Change the CREATE TABLE.",
}


@dataclass
class Column:
    """A column of a table: physical with its type, computed by an expression, or metadata of the connector."""

    name: str
    start: int
    type: str = ""
    expression: Slice | None = None
    metadata: str = ""
    virtual: bool = False

    @property
    def is_physical(self) -> bool:
        """Whether it is in the records themselves."""
        return self.expression is None and not self.metadata


@dataclass
class Table:
    """A declared table. ``watermark`` has the column, the delay, and where it stands.

    ``is_looked_up``: whether a query joins it as a whole, as of the present. None: no query reads it.
    """

    name: str
    start: int
    columns: list[Column] = field(default_factory=list)
    watermark: tuple[str, str, int] | None = None
    keys: list[Token] = field(default_factory=list)
    partitions: list[Token] = field(default_factory=list)
    options: dict[str, Given] = field(default_factory=dict)
    connector: Connector | None = None
    translated: dict[str, Given] = field(default_factory=dict)
    is_looked_up: bool | None = None

    @property
    def connector_name(self) -> str:
        """Flink's name of the connector."""
        return self.options["connector"].value if "connector" in self.options else ""

    def is_event_time(self, column: Column) -> bool:
        """Whether it is the column of the watermark, and no TIMESTAMP_LTZ."""
        return self.watermark is not None and column.name == self.watermark[0] and column.type != "TIMESTAMP"


@dataclass
class View:
    """A named query. ``reads``: names of the streams in it, in small letters."""

    name: str
    start: int
    sql: Slice
    columns: list[Token]
    reads: set[str] = field(default_factory=set)


@dataclass
class Insert:
    """A query and its target."""

    target: str
    start: int
    sql: Slice
    columns: list[Token]
    reads: set[str] = field(default_factory=set)


class Script:
    """The statements of a script.

    Parameters
    ----------
    text : str
    value_of : callable
        The value of a text in quotes: with its variables replaced.

    Attributes
    ----------
    streams : dict
        Tables and views by name in small letters, in their order. None: its statement has a mistake.
    faults : list of Refused
    """

    def __init__(self, text: str, value_of: Callable[[Token], str]) -> None:
        self.text = text
        self.streams: dict[str, Table | View | None] = {}
        self.inserts: list[Insert] = []
        self.settings: dict[str, Given] = {}
        self.functions: dict[str, Given] = {}
        self.faults: list[Refused] = []
        self._value_of = value_of
        try:
            for tokens in statements(text):
                try:
                    self._statement(Cursor(tokens))
                except Refused as error:
                    self.faults.append(error)
        except Refused as error:
            self.faults.append(error)
        if not self.inserts and not self.faults:
            self.faults.append(Refused(0, "The script has no INSERT INTO.", "Only INSERT INTO runs a query."))

    @property
    def tables(self) -> list[Table]:
        """The tables without a mistake in their statements."""
        return [each for each in self.streams.values() if isinstance(each, Table)]

    def _statement(self, at: Cursor) -> None:
        first = at.next
        if at.has("BEGIN", "STATEMENT", "SET") or at.has("END"):
            at.finish()
            return
        if at.has("EXECUTE", "STATEMENT", "SET"):
            at.need("BEGIN")
        at.has("EXECUTE")
        if at.has("INSERT"):
            self._insert(at)
        elif at.has("SET"):
            self._set(at)
        elif at.has("CREATE"):
            at.has("TEMPORARY")
            self._create(at)
        elif not (at.has("DROP") and self._drops_nothing(at)):
            word = first.text.upper() if first.kind == "word" else "This"
            hint = _INSTEAD.get(word, f"There are {_KINDS}.")
            raise Refused(first.start, f"{word} is no statement of a script.", hint)

    def _drops_nothing(self, at: Cursor) -> bool:
        """Whether this is DROP … IF EXISTS of something that the script has not created."""
        at.has("TEMPORARY")
        is_known = at.has("TABLE") or at.has("VIEW") or at.has("FUNCTION")
        return is_known and at.has("IF", "EXISTS") and not self._has(at.table_name().value)

    def _has(self, name: str) -> bool:
        return name.lower() in self.streams or name.lower() in map(str.lower, self.functions)

    def _set(self, at: Cursor) -> None:
        name, value = at.until("="), at.until(";") if at.has("=") else []
        if not name or not value:
            raise at.refused("SET has another form.", "Write SET 'name' = 'value'.")
        key = name[0].value if len(name) == 1 else "".join(token.text for token in name)
        text = value[0]
        if len(value) > 1:
            text = Token("words", self.text[text.start : value[-1].end], text.start, value[-1].end)
        self.settings[key] = Given(key, self._value_of(text), name[0].start)

    def _create(self, at: Cursor) -> None:
        if at.has("TABLE"):
            at.has("IF", "NOT", "EXISTS")
            table = Table(at.next.value, at.table_name().start)
            self._add(table.name, table.start)
            self._table(at, table)
            self.streams[table.name.lower()] = table
        elif at.has("VIEW"):
            at.has("IF", "NOT", "EXISTS")
            name = at.table_name()
            self._add(name.value, name.start)
            columns = at.names() if at.next.text == "(" else []
            if at.has("COMMENT"):
                at.string()
            at.need("AS")
            self.streams[name.value.lower()] = View(name.value, name.start, self._query(at), columns)
        elif at.has("FUNCTION") or at.has("SYSTEM", "FUNCTION"):
            self._function(at)
        else:
            raise at.refused(f"CREATE {at.next.text.upper()} is no statement of a script.", f"There are {_KINDS}.")

    def _add(self, name: str, start: int) -> None:
        """Note a name, so that no query with it has a mistake only because its own statement has one."""
        if self._has(name):
            raise Refused(start, f"{name} is there already.", "Give it another name.")
        self.streams[name.lower()] = None

    def _function(self, at: Cursor) -> None:
        at.has("IF", "NOT", "EXISTS")
        name = at.table_name()
        at.need("AS")
        where = at.string()
        language = at.take() if at.has("LANGUAGE") else None
        if language is None or not language.is_word("PYTHON"):
            raise Refused(
                (language or where).start, f"The function {name.value} is a class of Java.",
                "Write it in Python: CREATE FUNCTION f AS 'module:function' LANGUAGE PYTHON. Spark's own functions and "
                "those of docs/sql.md need no CREATE FUNCTION.",
            )  # fmt: skip
        at.finish()
        text = where.value if ":" in where.value else ":".join(where.value.rpartition(".")[::2])
        self.functions[name.value] = Given(name.value, text, where.start)

    def _insert(self, at: Cursor) -> None:
        if at.next.is_word("OVERWRITE"):
            raise at.refused("INSERT OVERWRITE: a stream has no end.", "Write INSERT INTO.")
        at.need("INTO")
        name = at.table_name()
        if at.next.is_word("PARTITION"):
            raise at.refused("INSERT with PARTITION is not possible.", "Select the value as a column.")
        columns = at.names() if at.next.text == "(" and not at.after(1).is_word("SELECT") else []
        if at.next.is_word("VALUES"):
            raise at.refused(
                "INSERT with VALUES: a query reads streams.",
                "Read the rows from a file, with 'connector' = 'filesystem'; write to the table itself with Spark.",
            )
        self.inserts.append(Insert(name.value, name.start, self._query(at), columns))

    def _query(self, at: Cursor) -> Slice:
        if not (at.next.is_word("SELECT") or at.next.is_word("WITH") or at.next.text == "("):
            raise at.refused("A SELECT is missing here.")
        return at.rest()

    # -- CREATE TABLE -----------------------------------------------------------------------------------------

    def _table(self, at: Cursor, table: Table) -> None:
        if at.next.text != "(":
            raise at.refused("The columns are missing here.", "CREATE TABLE … AS is not possible: name them.")
        faults = len(self.faults)
        at.take()
        self._item(at, table)
        while at.has(","):
            self._item(at, table)
        at.need(")")
        if at.has("COMMENT"):
            at.string()
        if at.has("PARTITIONED", "BY"):
            table.partitions = at.names()
        if at.has("WITH"):
            at.need("(")
            self._option(at, table)
            while at.has(","):
                self._option(at, table)
            at.need(")")
        for word in ("LIKE", "AS", "DISTRIBUTED"):
            if at.next.is_word(word):
                raise at.refused(f"CREATE TABLE … {word} is not possible.", "Write all columns and options.")
        at.finish()
        if len(self.faults) > faults:
            raise self.faults.pop()

    def _option(self, at: Cursor, table: Table) -> None:
        name = at.string()
        at.need("=")
        value = at.string()
        key = LEGACY.get(name.value, name.value)
        if key in table.options:
            self.faults.append(Refused(name.start, f"{name.value} is written twice.", "Write it once."))
        table.options[key] = Given(key, self._value_of(value), name.start)

    def _item(self, at: Cursor, table: Table) -> None:
        """A column, the watermark or the primary key. After a mistake the next item is read."""
        begin = at.position
        try:
            if at.has("WATERMARK", "FOR"):
                self._watermark(at, table)
            elif at.next.is_word("PRIMARY") or at.has("CONSTRAINT"):
                if not at.next.is_word("PRIMARY"):
                    at.name()
                at.need("PRIMARY", "KEY")
                self._set_keys(at, table, at.names())
            elif at.next.is_word("UNIQUE"):
                raise at.refused("UNIQUE is not possible.", "Write PRIMARY KEY (…) NOT ENFORCED.")
            else:
                self._column(at, table)
            if at.next.text not in (",", ")"):
                raise at.unexpected("A comma may be missing before it.")
        except Refused as error:
            self.faults.append(error)
            at.skip_item(begin)

    def _set_keys(self, at: Cursor, table: Table, keys: list[Token]) -> None:
        if table.keys:
            raise Refused(keys[0].start, "A table has one primary key.", "Write PRIMARY KEY (a, b) NOT ENFORCED.")
        at.need("NOT", "ENFORCED")
        table.keys = keys

    def _watermark(self, at: Cursor, table: Table) -> None:
        column = at.name()
        at.need("AS")
        start, base = at.next.start, at.take()
        hint = f"Write WATERMARK FOR {column.value} AS {column.value} - INTERVAL '5' SECOND."
        if table.watermark is not None:
            raise Refused(column.start, "A table has one watermark.", hint)
        delay = "0"
        if at.has("-", "INTERVAL") and at.next.kind == "string":
            delay = f"{at.take().value} {at.name('A unit of time').text.lower()}"
        if base.value != column.value or at.next.text not in (",", ")"):
            raise Refused(start, "This watermark is not possible.", hint)
        try:
            parse_duration(delay, "INTERVAL")
        except SettingError as error:
            raise Refused(start, error.problem, hint) from None
        table.watermark = (column.value, delay, column.start)

    def _column(self, at: Cursor, table: Table) -> None:
        name = at.name("A column's name")
        column = Column(name.value, name.start)
        if at.has("AS"):
            column.expression = at.expression()
        else:
            column.type = spark_type(at)
            if at.has("METADATA"):
                column.metadata = at.string().value if at.has("FROM") else column.name
                column.virtual = at.has("VIRTUAL")
            if at.has("CONSTRAINT"):
                at.name()
            if at.has("PRIMARY", "KEY"):
                self._set_keys(at, table, [name])
        if at.has("COMMENT"):
            at.string()
        if any(each.name.lower() == column.name.lower() for each in table.columns):
            raise Refused(name.start, f"{column.name} is the name of another column.", "Give it another name.")
        table.columns.append(column)
