"""Derives a table's columns between two ALTER TABLEs of the log, and converts old rows to today's columns (pure).

The log's own description of a table has no names unless ``binlog_row_metadata=FULL``, and never whole definitions. So
the columns of a stretch of the log are derived from the columns before and after it and the statements between them. A
definition that cannot be derived stays unknown; if rows need it, they are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..columns import EXCLUDED, Column
from ..table import SchemaChanged, TableSchema
from ..widening import Convert, as_is, conversion, same_definition
from .alters import Add, Change, ConvertAll, Rename, Step, after, before, column_steps

__all__ = ["Bridge", "Layout", "Taken", "bridge", "is_same_key", "layouts", "layouts_until_drop"]

_HINT = "Start the query again with a new checkpoint."
# CONVERT TO CHARACTER SET binary turns text into these types.
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")


@dataclass(frozen=True)
class Layout:
    """A table's columns over a stretch of the log.

    Parameters
    ----------
    columns : tuple of Column
        The columns then. If only a column's name is known, its ``data_type`` is "".
    now : tuple of str or None
        Each column's name today; None if it was dropped since.
    lost : frozenset of str
        Columns, in lower case, that a stream may still have but whose values here nobody can read: the column was
        redefined and then dropped, and no column has its name today.
    is_read_again : bool
        A statement ahead in the log makes the stream read the table again. So a value that cannot be converted is NULL
        until then.
    is_passed_over : bool
        A statement ahead in the log makes the table leave the stream with all rows. So these rows are left out.
    """

    columns: tuple[Column, ...]
    now: tuple[str | None, ...]
    lost: frozenset[str] = frozenset()
    is_read_again: bool = False
    is_passed_over: bool = False


@dataclass(frozen=True)
class Taken:
    """A RENAME after which another table has the name, or none.

    Columns of the two tables with the same name count as one column, with a new definition. A column that a tool
    renamed in the new table therefore counts as dropped and added.

    Parameters
    ----------
    names : tuple of str or None
        The new table's columns, if the log has them.
    steps : tuple or None
        The steps of each ALTER TABLE of the new table since it was made as a copy of the old one; None if not known.
    is_gone : bool
        Whether no table has the name.
    """

    names: tuple[str, ...] | None = None
    steps: tuple[tuple[Step, ...], ...] | None = None
    is_gone: bool = False

    def after(self, names: Sequence[str]) -> list[str] | None:
        """The new table's columns, given the old one's. None if they are not known."""
        try:
            for steps in self.steps or ():
                names = [each.name for each in after(names, steps)]
        except SchemaChanged:
            return None  # the table was not a copy
        return None if self.steps is None else list(names)

    def before(self, names: Sequence[str]) -> list[str] | None:
        """The old table's columns, given the new one's. None if they are not known."""
        found: list[str] | None = None if self.steps is None else list(names)
        for steps in reversed(self.steps or ()):
            found = None if found is None else before(found, steps)
        return found

    def redefines(self, name: str) -> bool:
        """Whether a column of the new table may have another definition than the old table's column of this name."""
        if self.steps is None:
            return True
        given = {
            (step.name if isinstance(step, Add) else step.new).lower()
            for steps in self.steps
            for step in steps
            if isinstance(step, Add | Rename | Change)
        }
        return name.lower() in given or any(ConvertAll() in steps for steps in self.steps)


@dataclass
class _Life:
    """One column over all statements, under all its names."""

    before: Column | None = None
    now: Column | None = None
    # Numbers of the statements that gave it a new definition, and of those that did so only if it was text.
    redefined: list[int] = field(default_factory=list)
    converted: list[int] = field(default_factory=list)

    def since_before(self) -> list[int]:
        """Statements that made `before` out of date."""
        return [*self.redefined, *(self.converted if self.before and self.before.charset else [])]

    def until_now(self) -> list[int]:
        """Statements before which `now` was not yet valid."""
        was_text = self.now and (self.now.charset or self.now.data_type in _BYTES)
        return [*self.redefined, *(self.converted if was_text else [])]

    def at(self, stage: int, name: str) -> Column:
        """The column's definition after ``stage`` statements."""
        if self.before and all(number > stage for number in self.since_before()):
            return replace(self.before, name=name)
        if self.now and all(number <= stage for number in self.until_now()):
            return replace(self.now, name=name)
        return Column(name, "", "")

    def is_explained(self) -> bool:
        """Whether statements explain a definition that is different today."""
        if not self.before or not self.now or self.since_before() or self.until_now():
            return True
        return same_definition(self.before, self.now)


def layouts(
    known: Sequence[Column], statements: Sequence[str | Taken], now: Sequence[Column], key: Sequence[str] = ()
) -> list[Layout]:
    """The layouts before the first statement and after each one: one more than there are statements.

    Parameters
    ----------
    known : sequence of Column
        The columns before the first statement.
    statements : sequence of str or Taken
        Every ALTER TABLE of the table up to now, in the order of the log, and where its name was taken.
    now : sequence of Column
        The columns after the last statement.
    key : sequence of str
        Columns of ``known`` that are in the primary key. If one is dropped, the key is another one: refused.

    Raises
    ------
    SchemaChanged
        `column_steps` refuses a statement, or the statements do not lead from ``known`` to ``now``.
    """
    lives = [_Life(before=column if column.data_type else None) for column in known]
    stages = [[(life, column.name) for life, column in zip(lives, known, strict=True)]]
    for number, statement in enumerate(statements, 1):
        last = stages[-1]
        if not isinstance(statement, Taken):
            stages.append(_altered(last, statement, number))
        else:
            stages.append(last if statement.is_gone else _taken(last, statement, number, statements[number:], now))
    if [name.lower() for _, name in stages[-1]] != [column.name.lower() for column in now]:
        raise _elsewhere(", ".join(name for _, name in stages[-1]), ", ".join(column.name for column in now))
    for (life, _), column in zip(stages[-1], now, strict=True):
        life.now = column
        if not life.is_explained():
            assert life.before is not None, "else there is nothing to explain"
            raise _elsewhere(_told(life.before), _told(column))
    gone = [c.name for life, c in zip(lives, known, strict=True) if c.name in key and life.now is None]
    if gone:
        raise SchemaChanged(f"The column {gone[0]!r} of the primary key was dropped.", _HINT)
    own = {id(life): column.name.lower() for life, column in zip(lives, known, strict=True)}
    today = {column.name.lower() for column in now}
    found = []
    for number, stage in enumerate(stages):
        columns = tuple(life.at(number, name) for life, name in stage)
        lost = {
            each
            for (life, name), column in zip(stage, columns, strict=True)
            if id(life) in own and not life.now and not column.data_type
            for each in (own[id(life)], name.lower())
        }
        names = tuple(life.now.name if life.now else None for life, _ in stage)
        found.append(Layout(columns, names, frozenset(lost - today)))
    return found


def layouts_until_drop(
    known: Sequence[Column], statements: Sequence[str], declared: Sequence[Column], key: Sequence[str]
) -> list[Layout]:
    """Like `layouts`, for a table that was dropped after the last statement. Its columns then are not known.

    Columns that are not in ``declared`` count as dropped.

    Parameters
    ----------
    declared : sequence of Column
        The columns of the stream.
    key : sequence of str
        Columns of ``known`` that are in the primary key.

    Raises
    ------
    SchemaChanged
        A column of the stream got another name, or another definition, which is not known; or one of the key was
        dropped.
    """
    wanted = {column.name.lower() for column in declared}
    lives = [_Life(before=column if column.data_type else None) for column in known]
    own = {id(life): column.name for life, column in zip(lives, known, strict=True)}
    stages = [[(life, column.name) for life, column in zip(lives, known, strict=True)]]
    for number, statement in enumerate(statements, 1):
        stages.append(_altered(stages[-1], statement, number))
    found = []
    for number, stage in enumerate(stages):
        columns = tuple(life.at(number, name) for life, name in stage)
        now = tuple(name if name.lower() in wanted else None for _, name in stage)
        for (life, name), column in zip(stage, columns, strict=True):
            before = own.get(id(life), name)
            if wanted & {name.lower(), before.lower()} and not (column.data_type and before.lower() == name.lower()):
                raise SchemaChanged(f"What the column {name!r} holds is not known.")
        if not set(key) <= set(now):
            raise SchemaChanged("A column of the primary key was dropped.")
        found.append(Layout(columns, now))
    return found


def _altered(last: Sequence[tuple[_Life, str]], statement: str, number: int) -> list[tuple[_Life, str]]:
    """The columns after an ALTER TABLE, the statement ``number``."""
    steps = column_steps(statement)
    stage = []
    for each in after([name for _, name in last], steps):
        life = _Life() if each.source is None else last[each.source][0]
        if each.redefined:
            life.redefined.append(number)
        if ConvertAll() in steps:
            life.converted.append(number)
        stage.append((life, each.name))
    return stage


def _taken(
    last: Sequence[tuple[_Life, str]],
    taken: Taken,
    number: int,
    later: Sequence[str | Taken],
    now: Sequence[Column],
) -> list[tuple[_Life, str]]:
    """The columns after statement ``number``, before the ``later`` ones that lead to ``now``."""
    names = taken.names or taken.after([name for _, name in last])
    had = {name.lower(): life for life, name in last}
    stage = []
    for name in names or _names_before(later, [column.name for column in now]):
        life = had.get(name.lower()) or _Life()
        if name.lower() not in had or taken.redefines(name):
            life.redefined.append(number)
        stage.append((life, name))
    return stage


def _names_before(statements: Sequence[str | Taken], names: Sequence[str]) -> Sequence[str]:
    """The columns before some statements, the names after them given."""
    for statement in reversed(statements):
        if isinstance(statement, Taken) and statement.is_gone:
            continue
        found = statement.before(names) if isinstance(statement, Taken) else before(names, column_steps(statement))
        if found is None:
            raise SchemaChanged(
                "Another table took the name, and its columns changed again before the stream read the statement. The "
                "binary log does not have its columns in between.",
                "Start the query again with a new checkpoint. With binlog_row_metadata=FULL the log has the columns.",
            )
        names = found
    return names


def _told(column: Column) -> str:
    charset = f" in {column.charset}" if column.charset else ""
    return f"{column.name} {column.column_type}{charset}"


def _elsewhere(derived: str, found: str) -> SchemaChanged:
    return SchemaChanged(
        f"The statements in the log do not lead to the table's present columns: to {derived} instead of {found}.", _HINT
    )


@dataclass(frozen=True)
class Bridge:
    """Converts rows of a layout to rows of the stream.

    Parameters
    ----------
    sources : tuple of int or None
        For each column of the stream the index of its column in the layout; None if it is NULL.
    converts : tuple of callable or None
        For each column of the stream the conversion of storage values; None for no conversion.
    is_identity : bool
        Whether rows need no change.
    unread : frozenset of int
        The stream's columns that are NULL only because their values cannot be converted: `Layout.is_read_again`.
    """

    sources: tuple[int | None, ...]
    converts: tuple[Convert | None, ...]
    is_identity: bool = False
    unread: frozenset[int] = frozenset()

    def index_of(self, source: int) -> int | None:
        """Index of the stream's column that comes from a column of the layout; None if there is none."""
        return self.sources.index(source) if source in self.sources else None


def bridge(layout: Layout, schema: TableSchema) -> Bridge:
    """How to convert rows of a layout to a stream with this schema.

    A column gets the values of the layout's column that has its name today. If there is none, it gets those of a
    column that had its name and was dropped since. A column without values is NULL. So is a column that was added and
    dropped since: only its name is known.

    Raises
    ------
    SchemaChanged
        Values cannot be converted to the declared type without loss, or their type is not known, also that of a column
        that was dropped since; or a key column is missing or would identify or order rows differently.
    """
    own = [column.name.lower() for column in layout.columns]
    now = [name.lower() if name else None for name in layout.now]
    declared = [column.name.lower() for column in schema.columns]
    if _is_declared(layout, schema, own, now, declared):
        sources: list[int | None] = [*range(len(own))]
    else:
        gone = {name: i for i, name in enumerate(own) if now[i] is None and layout.columns[i].data_type}
        sources = [now.index(name) if name in now else gone.get(name) for name in declared]
    converts: list[Convert | None] = []
    unread: set[int] = set()
    for number, (column, source) in enumerate(zip(schema.columns, sources, strict=True)):
        if layout.is_passed_over:
            converts.append(None)
            continue
        if column.name in schema.key or column.name in schema.chunk_key:
            _check_key(schema, column, layout.columns[source] if source is not None else None)
        elif layout.is_read_again and column.use != EXCLUDED and _is_unread(column, source, layout):
            sources[number] = None
            unread.add(number)
            converts.append(None)
            continue
        if source is None and column.use != EXCLUDED and column.name.lower() in layout.lost:
            raise SchemaChanged(
                f"The column {column.name!r} of {schema.database}.{schema.table} was redefined and then dropped. The "
                "binary log does not have its definition in between.",
                _HINT,
            )
        converts.append(
            None if source is None or column.use == EXCLUDED else _convert(schema, column, layout.columns[source])
        )
    same = sources == [*range(len(own))] and not any(converts)
    return Bridge(tuple(sources), tuple(converts), same and _definitions_same(layout, schema), frozenset(unread))


def _is_unread(declared: Column, source: int | None, layout: Layout) -> bool:
    """Whether the values of a column that is read again later cannot be converted to the declared type."""
    if source is None:
        return declared.name.lower() in layout.lost
    found = layout.columns[source]
    return not found.data_type or conversion(found, declared) is None


def _definitions_same(layout: Layout, schema: TableSchema) -> bool:
    """Whether the declared columns read these rows correctly."""
    return all(same_definition(one, other) for one, other in zip(layout.columns, schema.columns, strict=True))


def _is_declared(
    layout: Layout, schema: TableSchema, own: list[str], now: list[str | None], declared: list[str]
) -> bool:
    """Whether the stream was declared with this layout. Columns may have been renamed since, but not swapped."""
    if own != declared or not _definitions_same(layout, schema):
        return False
    return all(name is None or name == own[i] or name not in declared for i, name in enumerate(now))


def _convert(schema: TableSchema, declared: Column, found: Column) -> Convert | None:
    if not found.data_type:
        raise SchemaChanged(
            f"The column {declared.name!r} of {schema.database}.{schema.table} was redefined more than once. The "
            "binary log does not have its definition in between.",
            _HINT,
        )
    convert = conversion(found, declared)
    if convert is None:
        raise SchemaChanged(
            f"The column {declared.name!r} of {schema.database}.{schema.table} is {_told(found)} in a part of the "
            f"binary log and {_told(declared)} in the stream: its values cannot be converted without loss.",
            _HINT,
        )
    return None if convert is as_is else convert


_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")


def _check_key(schema: TableSchema, declared: Column, found: Column | None) -> None:
    """Refuse a key column whose storage values are different now: they identify and order rows."""
    if found is None:
        what = "missing"
    elif found.data_type and not is_same_key(declared, found):
        null = "" if found.nullable == declared.nullable else " NULL" if found.nullable else " NOT NULL"
        collation = "" if found.collation == declared.collation else f" COLLATE {found.collation}"
        what = f"{_told(found)}{collation}{null}"
    else:
        return
    told = f"{_told(declared)}{f' COLLATE {declared.collation}' if declared.collation else ''}"
    raise SchemaChanged(
        f"The key column {declared.name!r} of {schema.database}.{schema.table}, {told}, is {what} in a part of the "
        "binary log: it would identify or order rows differently.",
        _HINT,
    )


def is_same_key(declared: Column, found: Column) -> bool:
    """Whether values of both identify and order rows in the same way."""
    if found.data_type in _INTEGERS and declared.data_type in _INTEGERS:
        same = True
    elif found.data_type == "binary":  # zeros at the end count in order bytes
        same = same_definition(found, declared)
    else:
        same = found.data_type == declared.data_type and found.scale == declared.scale
    # Text must have the same character set and, because equality depends on it, the same collation.
    text = (found.charset, found.collation) == (declared.charset, declared.collation)
    return same and text and found.nullable == declared.nullable
