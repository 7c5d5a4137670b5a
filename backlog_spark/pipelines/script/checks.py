"""Finds what does not fit between the statements of a script: names, connectors, targets (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sqlglot import exp

from backlog_spark.common.familiar_names import choice
from backlog_spark.pipelines.document import Document, Path
from backlog_spark.pipelines.script.connectors import CONNECTORS, TARGETS, connector_of, translated
from backlog_spark.pipelines.script.places import Places
from backlog_spark.pipelines.script.statements import Insert, Script, Slice, Table, View
from backlog_spark.pipelines.script.tokens import Refused, Token
from backlog_spark.pipelines.sql_names import Columns, unknown_names
from backlog_spark.streamsql.parsing import parsed
from backlog_spark.streamsql.refusals import SqlError, Statement

__all__ = ["METADATA", "check"]

METADATA: Final[Mapping[str, Mapping[str, str]]] = {
    "kafka": {"topic": "_topic", "partition": "_partition", "offset": "_offset", "timestamp": "_timestamp"},
    "mysql-cdc": {"table_name": "_table", "database_name": "_database", "op_ts": "_commit_timestamp"},
    "filesystem": {"file.path": "_file"},
}
"""Flink's metadata of each connector, and the columns here."""


def check(script: Script, places: Places, document: Document) -> None:
    """Translate options of tables, and note what each query reads. Mistakes become faults of the document."""
    targets = {insert.target.lower() for insert in script.inserts}
    for table in script.tables:
        for error in _of_table(table, is_target=table.name.lower() in targets):
            places.fault(document, error)
    columns: dict[str, Columns] = {}
    for name, stream in script.streams.items():
        if isinstance(stream, View):
            stream.reads, found, count = _of_query(script, stream.sql, columns, places, document)
            if stream.columns and count not in (None, len(stream.columns)):
                places.fault(document, _other_count(stream.sql, count, stream.name, len(stream.columns)))
            columns[stream.name] = {token.value.lower() for token in stream.columns} or found
        elif stream is None:
            columns[name] = None
        else:
            columns[stream.name] = {column.name.lower() for column in stream.columns}
    for insert in script.inserts:
        insert.reads, _, count = _of_query(script, insert.sql, columns, places, document)
        for error in _of_target(script, insert, count):
            places.fault(document, error)


def _of_table(table: Table, *, is_target: bool) -> Iterator[Refused]:
    names = [column.name for column in table.columns]
    marked = [Token("word", table.watermark[0], table.watermark[2], 0)] if table.watermark else []
    for token in (*table.keys, *table.partitions, *marked):
        if token.value not in names:
            yield Refused(token.start, f"There is no column {token.value}.", choice(token.value, names, "There are"))
    try:
        table.connector = connector = connector_of(table.options, table.name, table.start, is_target=is_target)
    except Refused as error:
        yield error
        return
    if is_target and connector.reads:
        return  # its INSERT is refused
    of, faults = table.connector_name, list[Refused]()
    table.translated = translated(of, connector, table.options, table.start, faults)
    yield from faults
    form = table.translated.get("format")
    if of == "kafka" and table.keys and not connector.reads and form is not None and form.value != "debezium":
        told = f"{table.name}: each row is added to a topic of kafka, so it has no primary key."
        yield Refused(table.keys[0].start, told, "Write 'connector' = 'upsert-kafka' for upserts, or leave it out.")
    if connector.needs_key and not table.keys:
        yield Refused(table.start, f"{table.name}: a table of {of} needs a PRIMARY KEY … NOT ENFORCED.")
    if table.partitions and connector.type in ("kafka", "jdbc_upsert"):
        told = f"{table.name}: PARTITIONED BY is not possible with {of}."
        yield Refused(table.partitions[0].start, told, "Leave it out, or write to a table with 'connector' = 'delta'.")
    for column in table.columns:
        known = METADATA.get(of, {})
        if column.metadata and connector.reads and column.metadata not in known:
            hint = choice(column.metadata, known, "There are") if known else "Leave the column out."
            yield Refused(column.start, f"{column.metadata}: {of} has no such metadata.", hint)
        if column.metadata and not connector.reads and not column.virtual:
            yield Refused(column.start, f"{column.name}: metadata cannot be written.", "Leave the column out.")
    for given in table.options.values() if of == "datagen" else ():
        name = given.name.removeprefix("fields.").rpartition(".")[0]
        if given.name.startswith("fields.") and name not in names:
            yield Refused(
                given.start, f"{given.name}: there is no column {name}.", choice(name, names, "There are")
            )  # fmt: skip


def _other_count(part: Slice, count: int | None, target: str, wanted: int) -> Refused:
    return Refused(part[0], f"The query has {count} columns, and {target} has {wanted}.", "Columns go by position.")


def _of_target(script: Script, insert: Insert, count: int | None) -> Iterator[Refused]:
    target = script.streams.get(insert.target.lower(), insert)
    if not isinstance(target, Table):
        if target is not None:
            names = [table.name for table in script.tables]
            hint = choice(insert.target, names, "There are")
            yield Refused(insert.start, f"There is no table {insert.target}.", hint)
        return
    if target.connector is not None and target.connector.reads:
        yield Refused(
            insert.start, f"{target.name}: tables of {target.connector_name} can only be read here.",
            f"Write to a table of {', '.join(sorted(n for n, c in {**CONNECTORS, **TARGETS}.items() if not c.reads))}.",
        )  # fmt: skip
    names = [column.name for column in target.columns]
    for token in insert.columns:
        if token.value not in names:
            hint = choice(token.value, names, "There are")
            yield Refused(token.start, f"{target.name} has no column {token.value}.", hint)
    wanted = len(insert.columns) or sum(column.is_physical for column in target.columns)
    if count not in (None, wanted):
        what = f"the list of columns of {target.name}" if insert.columns else target.name
        yield _other_count(insert.sql, count, what, wanted)
    if any(other.target == insert.target and other.start < insert.start for other in script.inserts):
        yield Refused(insert.start, f"Two INSERTs write to {insert.target}.", "Write one, with UNION ALL.")


def _look_up(script: Script, tables: list[exp.Table], statement: Statement, errors: list[SqlError]) -> None:
    """Mark files without an event time that are joined FOR SYSTEM_TIME AS OF: they have no changes to follow."""
    for node in tables:
        table = script.streams.get(node.name.lower())
        if not isinstance(table, Table) or table.connector_name != "filesystem" or table.watermark is not None:
            continue
        looks_up = bool(node.args.get("version"))
        if table.is_looked_up not in (None, looks_up):
            errors.append(
                statement.refused(
                    node, f"{table.name} is both a stream and the table of a lookup join.", "Declare it twice."
                )
            )  # fmt: skip
        table.is_looked_up = looks_up
        made = next((column for column in table.columns if not column.is_physical), None)
        if looks_up and made is not None:
            errors.append(
                statement.refused(
                    node, f"{table.name} has the column {made.name}, which is not in the files. It is looked up here.",
                    "Leave the column out, and write its expression where it is used.",
                )
            )  # fmt: skip


def _of_query(
    script: Script, part: Slice, columns: Mapping[str, Columns], places: Places, document: Document
) -> tuple[set[str], Columns, int | None]:
    """The streams that a query reads, in small letters, its columns, and how many these are, if that can be said."""
    path: Path = ("script", part[0])
    text, document.lines[path] = places.written(part)
    tables: list[exp.Table] = []
    found, count = None, None
    try:
        errors, found = unknown_names(text, columns, functions=False, dialect="flink")
        statement, query = parsed(text, "flink")
        tables = [table for table in query.find_all(exp.Table) if isinstance(table.this, exp.Identifier)]
        inner = {each.alias_or_name.lower() for each in query.find_all(exp.CTE)}
        _look_up(script, [table for table in tables if table.name.lower() not in inner], statement, errors)
        count = None if any(item.is_star for item in query.selects) else len(query.selects)
        for node in tables:
            table = script.streams.get(node.name.lower())
            if isinstance(table, Table) and table.connector is not None and not table.connector.reads:
                errors.append(
                    statement.refused(
                        node, f"{table.name}: tables of {table.connector_name} can only be written here.",
                        "Read from what its INSERT reads.",
                    )
                )  # fmt: skip
    except SqlError as error:
        errors = [error]
    document.faults += [document.sql_fault(path, error) for error in errors]
    return {table.name.lower() for table in tables}, found, count
