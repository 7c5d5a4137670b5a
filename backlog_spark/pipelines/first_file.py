"""Writes a pipeline's file from what a server has, or for files and Kafka (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from backlog_spark.common.durations import format_duration
from backlog_spark.common.printable import printable
from backlog_spark.common.sql_names import quoted
from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.first_sinks import COPIES, FirstTable, scalar, sink_section, word
from backlog_spark.spi.examination import Examination, FoundTable, shown_rows

__all__ = ["first_file", "stream_file"]

_SCHEMA: Final = "https://raw.githubusercontent.com/backlog-spark/backlog-spark/main/docs/pipeline.schema.json"
_SHOWN: Final = 50  # tables


def first_file(
    found: Examination,
    connection: Mapping[str, str],
    password_env: str,
    tables: Sequence[str],
    *,
    name: str,
    root: str,
    sink: str = "",
) -> str:
    """A file with comments.

    Parameters
    ----------
    found : Examination
        Of the tables.
    connection : mapping
        ``host``, ``port`` and ``user``.
    password_env : str
        Variable with the password; "" for none.
    tables : sequence of str
        As the user named them.
    name : str
        Name of the pipeline.
    root : str
        Directory of targets and checkpoint.
    sink : str
        Type of the sink. Default for one table: ``delta_upsert``, or ``delta_append`` without a key; for several:
        ``delta_tables``.

    Raises
    ------
    BacklogError
        The server has no such table, or several of which none has a primary key; or the sink does not fit.
    """
    if not found.tables:
        raise BacklogError(
            f"There is no table to copy: none that the user may see matches {', '.join(tables)}.",
            "Check the names, and the user's rights: GRANT SELECT on the tables.",
        )
    one, only = len(found.tables) == 1, found.tables[0]
    keyless = [table for table in found.tables if not table.key]
    if not one and len(keyless) == len(found.tables):
        raise BacklogError(
            f"None of these tables has a primary key: {', '.join(table.name for table in keyless)}.",
            "Give them keys, or name one table: its file appends all changes.",
        )
    kind = sink or ("delta_tables" if not one else "delta_upsert" if only.key else "delta_append")
    section = sink_section(kind, FirstTable(*TableName.parse(only.name), only.key) if one else None, root)
    whole = not one or kind in COPIES
    lines = [f"# yaml-language-server: $schema={_SCHEMA}", "#", "# Tables, with the server's estimates:"]
    lines += [f"#   {printable(_told(table))}" for table in found.tables[:_SHOWN]]
    if len(found.tables) > _SHOWN:
        lines.append(f"#   and {len(found.tables) - _SHOWN} more")
    lines += _told_findings(found)
    if found.kept_ms is not None:
        lines.append(f"# The server keeps its binary log for {format_duration(found.kept_ms)}.")
    lines += ["", "source:", "  type: mysql_cdc", *([f"  name: {scalar(_stream(only))}"] if one else [])]
    lines += [f"  {key}: {value if value.isdecimal() else scalar(value)}" for key, value in connection.items()]
    if password_env:
        lines.append(f"  password: ${{{password_env}}}")
    if not whole:
        lines.append(f"  table: {scalar(only.name)}")
        if only.columns:
            columns = ", ".join(f"{column} {declared}" for column, declared in only.columns)
            lines.append(f"  # columns: {printable(columns)}")
            lines.append(f"  # columns.exclude: {scalar(_escaped(only, only.columns[-1][0]))}")
    else:
        lines.append(f"  tables: [{', '.join(map(scalar, tables))}]")
        if keyless:
            lines.append("  # Left out, as they have no primary key. A unique key in messageKeyColumns is enough.")
            lines.append(f"  tables.exclude: {scalar(','.join(map(_escaped, keyless)))}")
        else:
            lines.append(r"  # tables.exclude: shop\.tmp_.*")
    lines += ["  # chunkSize: 100000           # rows of one SELECT of the snapshot", ""]
    if whole:
        is_delta = kind == "delta_tables"
        places = "directories than <path>/<database>/<table>" if is_delta else "tables" if kind in COPIES else "topics"
        lines += [f"# route:                        # other {places}"]
        lines += [f"#   - source-table: {printable(only.name)}"]
        lines += [f"#     sink-table: {'ods/' if is_delta else 'ods.'}<>", ""]
    elif not only.key:
        lines.append("# The table has no primary key, so nothing tells its rows apart: the target gets all changes.")
    else:
        lines += ["# transform:                    # SQL over the source (docs/sql.md)", "#   - name: totals"]
        key = only.key[0] if only.key[0].isidentifier() else printable(quoted(only.key[0]))
        lines += [f"#     sql: SELECT {key}, count(*) AS n FROM {_stream(only)} GROUP BY {key}", ""]
    return "\n".join([*lines, *section, *_pipeline(name, root)])


def stream_file(
    found: Examination, options: Mapping[str, str], *, name: str, root: str, sink: str = "delta_append"
) -> str:
    """A file with comments for the source ``hybrid``.

    Parameters
    ----------
    found : Examination
        Of the files and the topic.
    options : mapping
        The source's options.
    name, root, sink : str
        As for `first_file`.
    """
    lines = [f"# yaml-language-server: $schema={_SCHEMA}", *_told_findings(found), "", "source:", "  type: hybrid"]
    lines += [f"  name: {scalar(word(name))}", *(f"  {key}: {scalar(value)}" for key, value in options.items())]
    lines += ["  # metadataColumns: _offset    # where a row comes from (docs/hybrid_options.md)", ""]
    lines += ["# transform:                    # SQL over the source (docs/sql.md)", "#   - name: rows"]
    lines += [f"#     sql: SELECT * FROM {word(name)}", ""]
    return "\n".join([*lines, *sink_section(sink, FirstTable("", name), root), *_pipeline(name, root)])


def _pipeline(name: str, root: str) -> list[str]:
    """The section with the intervals, and the end of the file."""
    return [
        "", "pipeline:", f"  name: {scalar(name)}", f"  checkpoint: {scalar(f'{root}/_checkpoints/{name}')}",
        "  interval: 10 seconds          # between commits", "  intervalDuringBacklog: 10 minutes",
        "  # settings:", "  #   spark.master: local[*]", "",
    ]  # fmt: skip


def _told_findings(found: Examination) -> list[str]:
    """Comments with what is wrong."""
    return [
        printable(f"# {finding.severity}: {finding.problem} {finding.hint}".rstrip())
        for finding in (*found.findings, *found.first)
        if finding.severity in ("error", "warning")
    ]


def _told(table: FoundTable) -> str:
    key = f"key {', '.join(table.key)}" if table.key else "no key"
    rows = "" if table.rows is None else f", {shown_rows(table.rows)}"
    size = "" if table.size is None else f", {table.size >> 20:,} MiB"
    return f"{table.name}: {key}{rows}{size}"


def _stream(table: FoundTable) -> str:
    """A name for SQL."""
    return word(TableName.parse(table.name).table)


def _escaped(table: FoundTable, *column: str) -> str:
    """A regular expression for a table, or a column of it. A comma would separate two of them."""
    return re.escape(".".join([*TableName.parse(table.name), *column])).replace(",", r"\x2c")
