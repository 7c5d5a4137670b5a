"""Finds out what an ALTER TABLE in the binary log does to a table's columns: names, order and definitions (pure).

The statement is read clause by clause. A clause that is unknown, or whose effect cannot be followed in the log, is
refused: a wrong guess would put values into the wrong columns.

Sources: MySQL Reference Manual and MariaDB Knowledge Base, "ALTER TABLE"; how the clauses of one statement act together
was measured on MySQL 8.0 and MariaDB 11.4 and 10.11 (tests/connectors/mysql_cdc/schema/ddl/test_history.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from backlog_spark.common.lazy_patterns import lazy_pattern

from ..table import SchemaChanged
from .statements import TABLE, able_readings, split_clauses

__all__ = [
    "COMPUTED",
    "FIRST",
    "LITERAL",
    "NOTHING_SAID",
    "Add",
    "Change",
    "ColumnAfter",
    "ConvertAll",
    "Drop",
    "Rename",
    "Step",
    "after",
    "before",
    "column_steps",
]

FIRST: Final = ""
"""The position before all columns. No column has an empty name."""
NOTHING_SAID, LITERAL, COMPUTED = "", "literal", "computed"


@dataclass(frozen=True)
class Add:
    """A new column.

    Parameters
    ----------
    position : str or None
        The column before it, `FIRST`, or None for the end.
    idle : bool
        The statement says IF NOT EXISTS, so nothing happens if the column exists.
    default : str
        What rows that are there get: `NOTHING_SAID`, so NULL or the type's implicit default; `LITERAL`, a value in the
        statement; `COMPUTED`, anything else.
    """

    name: str
    position: str | None = None
    idle: bool = False
    default: str = NOTHING_SAID


@dataclass(frozen=True)
class Drop:
    """A column is dropped. ``idle``, here and below: IF EXISTS, so nothing happens if there is no such column."""

    name: str
    idle: bool = False


@dataclass(frozen=True)
class Rename:
    """A column gets another name and keeps its definition."""

    old: str
    new: str
    idle: bool = False


@dataclass(frozen=True)
class Change:
    """A column gets a new definition and perhaps another position. With MODIFY both names are the same."""

    old: str
    new: str
    position: str | None = None
    idle: bool = False


@dataclass(frozen=True)
class ConvertAll:
    """Every text column gets a new definition, with another character set."""


Step = Add | Drop | Rename | Change | ConvertAll


# -- clauses -----------------------------------------------------------------------------------------------

_HEAD = lazy_pattern(
    rf"\s*ALTER\s+((?:(?:ONLINE|IGNORE)\s+)*)TABLE\b\s*(?:IF\s+EXISTS\b\s*)?{TABLE}\s*"
    r"(?:(?:NOWAIT|WAIT\s+\d+)\b)?",
    re.I,
)
_TOKEN = lazy_pattern(r"(`(?:[^`]|``)*`)|''|[\w$]+|\S")

# The patterns below match a clause in this form: tokens with single blanks between them, a number instead of a quoted
# name, nothing inside brackets.
_N = r"(?:`\d+`|[\w$]+)"
_Q = rf"(?:{_N} \. ){{0,2}}({_N})"  # MariaDB lets a column be qualified
_VALUE = rf"(?:= )?(?:{_N}|'')"
_OPTION = "|".join(
    [
        rf"(?:DEFAULT )?(?:CHARACTER SET|CHARSET|COLLATE) {_VALUE}",
        r"ENGINE (?:= )?INNODB",
        rf"(?:DATA|INDEX) DIRECTORY {_VALUE}",
        rf"TABLESPACE {_VALUE}",
        rf"(?:AUTO_INCREMENT|AUTOEXTEND_SIZE|AVG_ROW_LENGTH|CHECKSUM|TABLE_CHECKSUM|COMMENT|COMPRESSION|DELAY_KEY_WRITE|"
        rf"ENCRYPTED|ENCRYPTION|ENCRYPTION_KEY_ID|KEY_BLOCK_SIZE|MAX_ROWS|MIN_ROWS|PACK_KEYS|PAGE_CHECKSUM|"
        rf"PAGE_COMPRESSED|PAGE_COMPRESSION_LEVEL|ROW_FORMAT|STATS_AUTO_RECALC|STATS_PERSISTENT|STATS_SAMPLE_PAGES|"
        rf"TRANSACTIONAL) {_VALUE}",
    ]
)
# A log does not have the rows that a cascading foreign key changes.
_CASCADES = lazy_pattern(r".* ON (?:DELETE|UPDATE) (?:CASCADE|SET)(?: .*)?", re.I)
_HARMLESS = lazy_pattern(
    "|".join(
        [
            r"ADD (?:UNIQUE|FULLTEXT|SPATIAL|INDEX|KEY)(?: .*)?",
            rf"ADD (?:CONSTRAINT (?:IF NOT EXISTS )?(?:{_N} )??)?(?:UNIQUE|CHECK|FOREIGN KEY) .*",
            rf"DROP (?:INDEX|KEY|FOREIGN KEY|CONSTRAINT|CHECK) (?:IF EXISTS )?{_N}",
            rf"RENAME (?:INDEX|KEY) {_N} TO {_N}",
            rf"ALTER (?:INDEX|KEY) (?:IF EXISTS )?{_N} (?:VISIBLE|INVISIBLE|(?:NOT )?IGNORED)",
            rf"ALTER (?:CHECK|CONSTRAINT) {_N} (?:NOT )?ENFORCED",
            rf"ALTER (?:COLUMN )?(?:IF EXISTS )?{_Q} (?:SET DEFAULT .+|DROP DEFAULT|SET (?:IN)?VISIBLE)",
            r"(?:ENABLE|DISABLE) KEYS|FORCE|(?:WITH|WITHOUT) VALIDATION",
            rf"(?:ALGORITHM|LOCK) (?:= )?{_N}",
            r"(?:ADD|REORGANIZE|COALESCE|ANALYZE|CHECK|OPTIMIZE|REBUILD) PARTITION .*",
            r"REMOVE PARTITIONING|PARTITION BY .*",
            rf"(?:{_OPTION})(?: (?:{_OPTION}))*",
        ]
    ),
    re.I,
)
_PARTITIONS = lazy_pattern(
    r" (?:PARTITION BY .*|REMOVE PARTITIONING)", re.I
)  # may follow the last clause without a comma
_ORDER = lazy_pattern(rf"(?:ORDER BY )?(?:{_N} \. ){{0,2}}{_N}(?: ASC| DESC)?", re.I)
_CONVERT = lazy_pattern(rf"CONVERT TO (?:CHARACTER SET|CHARSET) {_N}(?: COLLATE {_N})?", re.I)
_ADD = lazy_pattern(rf"ADD (?:COLUMN )?(IF NOT EXISTS )?{_Q} (.+)", re.I)
_ADD_SEVERAL = lazy_pattern(r"ADD (?:COLUMN )?(IF NOT EXISTS )?\( \)", re.I)
_DROP = lazy_pattern(rf"DROP (?:COLUMN )?(IF EXISTS )?{_Q}(?: RESTRICT| CASCADE)?", re.I)
_RENAME = lazy_pattern(rf"RENAME COLUMN (IF EXISTS )?{_Q} TO {_Q}", re.I)
_CHANGE = lazy_pattern(rf"CHANGE (?:COLUMN )?(IF EXISTS )?{_Q} {_Q} (.+)", re.I)
_MODIFY = lazy_pattern(rf"MODIFY (?:COLUMN )?(IF EXISTS )?{_Q} (.+)", re.I)

# The words that begin a column's definition. With any other word the clause is not about a column.
_DEFINITION = lazy_pattern(
    r"(?:BIGINT|BINARY|BIT|BLOB|BOOL|BOOLEAN|BYTE|CHAR|CHARACTER|DATE|DATETIME|DEC|DECIMAL|DOUBLE|ENUM|FIXED|FLOAT|"
    r"FLOAT4|FLOAT8|GEOMCOLLECTION|GEOMETRY|GEOMETRYCOLLECTION|INET4|INET6|INT|INT1|INT2|INT3|INT4|INT8|INTEGER|JSON|"
    r"LINESTRING|LONG|LONGBLOB|LONGTEXT|MEDIUMBLOB|MEDIUMINT|MEDIUMTEXT|MIDDLEINT|MULTILINESTRING|MULTIPOINT|"
    r"MULTIPOLYGON|NATIONAL|NCHAR|NUMERIC|NVARCHAR|POINT|POLYGON|REAL|SERIAL|SET|SMALLINT|TEXT|TIME|TIMESTAMP|TINYBLOB|"
    r"TINYINT|TINYTEXT|UUID|VARBINARY|VARCHAR|VARCHARACTER|VECTOR|YEAR)(?: .*)?",
    re.I,
)
_POSITION = lazy_pattern(rf"(.*?)(?: (FIRST)| AFTER ({_N}))", re.I)
# A name may follow these words (a column's default, a table), and FIRST or AFTER may be that name.
_NAME_FOLLOWS = lazy_pattern(r".*(?: DEFAULT| REFERENCES|[^\w$`')])", re.I)
_POSITION_WORD = lazy_pattern(r".* (?:FIRST|AFTER)(?: .*)?", re.I)
# A default that is the same for every row, whenever the statement runs. A string is '' here.
_DEFAULT = lazy_pattern(
    r"(?<![`.\w])DEFAULT (?:((?:[-+] )?(?:\d[\w]*(?: \. \d+)?|\. \d+)(?: [-+] \d+)?"
    r"|(?:_\w+ |[BXN] ?)?''|NULL|TRUE|FALSE)(?= |\Z))?",
    re.I,
)
_COMPUTES = lazy_pattern(r"(?<![`.\w])(?:AS|GENERATED|AUTO_INCREMENT|SERIAL|INVISIBLE_ROW|ON UPDATE)(?![`\w])", re.I)
_PRIMARY = lazy_pattern(r".*(?: PRIMARY|(?<! UNIQUE) KEY)(?: .*)?", re.I)


def column_steps(statement: str) -> tuple[Step, ...]:
    """The steps of an ALTER TABLE, clause by clause.

    Parameters
    ----------
    statement : str
        As in the log; known to alter the captured table.

    Raises
    ------
    SchemaChanged
        A clause removes rows or the primary key, renames the table, or is not understood; or the steps depend on the
        session's ``sql_mode`` or the server's version.
    """
    found = {_steps(plain) for plain in able_readings(statement)}
    if len(found) != 1:
        raise _refused(statement, "whose meaning depends on sql_mode or the server's version" if found else "empty")
    return found.pop()


def _refused(clause: str, what: str) -> SchemaChanged:
    return SchemaChanged(
        f'The table was altered by "{" ".join(clause.split())[:200]}", {what}.',
        "Start the query again with a new checkpoint.",
    )


# These clauses are known and refused, not unknown.
_KNOWN = lazy_pattern(
    r"RENAME |(?:DROP|TRUNCATE|EXCHANGE|DISCARD|IMPORT|CONVERT|REPAIR) |ADD (?:CONSTRAINT .*)?PRIMARY |ENGINE ", re.I
)
_NOT_CARRIED = "after which the stream cannot continue"
_NOT_UNDERSTOOD = "which mysql_cdc does not understand"


def _steps(plain: str) -> tuple[Step, ...]:
    head = _HEAD.match(plain)
    if not head:
        raise _refused(plain, _NOT_UNDERSTOOD)
    if "IGNORE" in head.group(1).upper().split():
        raise _refused(plain, "which removes rows or truncates values")
    clauses = split_clauses(plain[head.end() :].strip().removesuffix(";"))
    steps: list[Step] = []
    ordering = False
    for number, clause in enumerate(clauses, 1):
        tokens, names = _tokens(clause)
        if number == len(clauses):
            tokens = _PARTITIONS.sub("", tokens, count=1)
        elif _PARTITIONS.search(f" {tokens}"):
            raise _refused(plain, _NOT_UNDERSTOOD)
        ordering = ordering or tokens.upper().startswith("ORDER BY ")
        if ordering and not _ORDER.fullmatch(tokens):
            raise _refused(clause, _NOT_UNDERSTOOD)
        if not ordering and (tokens or len(clauses) > 1):
            steps += _clause(clause if tokens else plain, tokens, names)
    return tuple(steps)


def _tokens(clause: str) -> tuple[str, list[str]]:
    """A clause in the form that the patterns above match, and its quoted names."""
    names: list[str] = []
    tokens: list[str] = []
    depth = 0
    for found in _TOKEN.finditer(clause):
        token = found.group()
        depth -= token == ")"
        if not depth:
            if found.group(1):
                names.append(token[1:-1].replace("``", "`"))
                token = f"`{len(names) - 1}`"
            tokens.append(token)
        depth += token == "("
    return " ".join(tokens), names


def _clause(clause: str, tokens: str, names: list[str]) -> list[Step]:
    """The steps of one clause."""

    def name(token: str) -> str:
        return names[int(token[1:-1])] if token.startswith("`") else token

    def position(definition: str) -> str | None:
        found = _position(clause, definition)
        return name(found) if found else found

    if _HARMLESS.fullmatch(tokens):
        drops_key = tokens[:5].upper() == "DROP " and name(tokens.split()[-1]).upper() == "PRIMARY"
        if drops_key or _CASCADES.fullmatch(tokens):
            raise _refused(clause, _NOT_CARRIED)
        return []
    if _CONVERT.fullmatch(tokens):
        return [ConvertAll()]
    if found := _ADD_SEVERAL.fullmatch(tokens):
        inner = split_clauses(clause[clause.index("(") + 1 : clause.rindex(")")])
        steps = [step for item in inner for step in _clause(f"ADD {item.strip()}", *_tokens(f"ADD {item}"))]
        return [replace(step, idle=True) if found.group(1) and isinstance(step, Add) else step for step in steps]
    if found := _DROP.fullmatch(tokens):
        return [Drop(name(found.group(2)), idle=bool(found.group(1)))]
    if found := _RENAME.fullmatch(tokens):
        return [Rename(name(found.group(2)), name(found.group(3)), idle=bool(found.group(1)))]
    if (found := _CHANGE.fullmatch(tokens)) and _DEFINITION.fullmatch(found.group(4)):
        idle, old, new, definition = found.groups()
        return [Change(name(old), name(new), position(definition), idle=bool(idle))]
    if (found := _MODIFY.fullmatch(tokens)) and _DEFINITION.fullmatch(found.group(3)):
        idle, old, definition = found.groups()
        return [Change(name(old), name(old), position(definition), idle=bool(idle))]
    if (found := _ADD.fullmatch(tokens)) and _DEFINITION.fullmatch(found.group(3)):
        idle, new, definition = found.groups()
        return [Add(name(new), position(definition), bool(idle), _default_of(definition))]
    raise _refused(clause, _NOT_CARRIED if _KNOWN.match(tokens) else _NOT_UNDERSTOOD)


def _default_of(definition: str) -> str:
    """`Add.default` of a column's definition, in the form that the patterns match."""
    if _COMPUTES.search(definition):
        return COMPUTED
    said = _DEFAULT.search(definition)
    return NOTHING_SAID if said is None else LITERAL if said.group(1) else COMPUTED


def _position(clause: str, definition: str) -> str | None:
    """The position that FIRST or AFTER gives at a definition's end."""
    found = _POSITION.fullmatch(definition)
    body, position = (found.group(1), found.group(3) or FIRST) if found else (definition, None)
    if (found and _NAME_FOLLOWS.fullmatch(body)) or _POSITION_WORD.fullmatch(body):
        raise _refused(clause, _NOT_UNDERSTOOD)
    if _PRIMARY.fullmatch(body) or _CASCADES.fullmatch(body):
        raise _refused(clause, _NOT_CARRIED)
    return position


# -- what the steps do together ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnAfter:
    """A column after a statement: name, index before it (None: a new column), and whether its definition changed."""

    name: str
    source: int | None
    redefined: bool = False


def after(names: Sequence[str], steps: Sequence[Step]) -> list[ColumnAfter]:
    """The columns after a statement, given their names before it.

    Column names in a statement refer to the table before it. Positions refer to the table after the earlier clauses:
    first all columns are dropped and renamed; then columns are moved and added, in the order of the clauses. This
    function ignores `ConvertAll`.

    Raises
    ------
    SchemaChanged
        The server could not have run such a statement on such a table.
    """
    at = {name.lower(): i for i, name in enumerate(names)}
    steps = _that_act(steps, at)
    done: dict[int, Drop | Rename | Change] = {}
    for step in steps:
        if isinstance(step, Drop | Rename | Change):
            column = at.get((step.name if isinstance(step, Drop) else step.old).lower())
            if column is None or column in done:
                raise _misfit(names, step)
            done[column] = step
    out: list[ColumnAfter] = []
    for i, name in enumerate(names):
        did = done.get(i)
        if not isinstance(did, Drop):
            out.append(ColumnAfter(did.new if did else name, i, isinstance(did, Change)))
    for step in steps:
        if isinstance(step, Add):
            moved = ColumnAfter(step.name, None, True)
        elif isinstance(step, Change) and step.position is not None:
            moved = next(p for p in out if p.source == at[step.old.lower()])
            out.remove(moved)
        else:
            continue
        now = [p.name.lower() for p in out]
        if step.position and step.position.lower() not in now:
            raise _misfit(names, step)
        index = len(out) if step.position is None else now.index(step.position.lower()) + 1 if step.position else 0
        out.insert(index, moved)
    if not out or len({p.name.lower() for p in out}) < len(out):
        raise _misfit(names, steps[-1])
    return out


def before(names: Sequence[str], steps: Sequence[Step]) -> list[str] | None:
    """The columns before a statement, given their names after it. None if they do not follow from it."""
    old_name: dict[str, str | None] = {}
    for step in steps:
        if isinstance(step, Drop) or (isinstance(step, Change) and step.position is not None):
            return None  # the column's old position is not known
        if isinstance(step, ConvertAll):
            continue
        if step.idle:
            return None
        if isinstance(step, Add):
            old_name[step.name.lower()] = None
        else:
            old_name[step.new.lower()] = step.old
    found = [old for name in names if (old := old_name.get(name.lower(), name)) is not None]
    try:
        same = [each.name.lower() for each in after(found, steps)] == [name.lower() for name in names]
    except SchemaChanged:
        return None
    return found if same else None


def _that_act(steps: Sequence[Step], at: dict[str, int]) -> list[Step]:
    """The steps that have an effect. IF EXISTS and IF NOT EXISTS look at the table before the statement."""
    acting: list[Step] = []
    added: set[str] = set()
    dropped: set[str] = set()
    for step in steps:
        if isinstance(step, Add):
            if step.idle and step.name.lower() in at.keys() | added:
                continue
            added.add(step.name.lower())
        elif isinstance(step, Drop):
            if step.idle and (step.name.lower() not in at or step.name.lower() in dropped):
                continue
            dropped.add(step.name.lower())
        elif isinstance(step, Rename | Change):
            if step.idle and step.old.lower() not in at:
                continue
            if isinstance(step, Change):
                added.add(step.new.lower())
        acting.append(step)
    return acting


def _misfit(names: Sequence[str], step: Step) -> SchemaChanged:
    return SchemaChanged(
        f"A statement in the log does not fit the table's columns {', '.join(names)}: {step}.",
        "Start the query again with a new checkpoint.",
    )
