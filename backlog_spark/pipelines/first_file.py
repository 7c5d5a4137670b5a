"""Writes a pipeline's file from what a server has, or for files and Kafka (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

import yaml  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.common.durations import format_duration
from backlog_spark.common.printable import printable
from backlog_spark.common.sql_names import quoted
from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError
from backlog_spark.spi.examination import Examination, FoundTable

__all__ = ["first_file", "stream_file"]

_SCHEMA: Final = "https://raw.githubusercontent.com/backlog-spark/backlog-spark/main/docs/pipeline.schema.json"
_SHOWN: Final = 50  # tables
# What YAML never takes for more than a text's letters, also within [ ].
_PLAIN: Final = re.compile(r"[\w./][\w./:-]*")


def first_file(
    found: Examination, connection: Mapping[str, str], password_env: str, tables: Sequence[str], *, name: str, root: str
) -> str:
    """A file with comments. One table: ``delta_upsert``, or ``delta_append`` without a key; several: ``delta_tables``.

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

    Raises
    ------
    BacklogError
        The server has no such table, or several of which none has a primary key.
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
    lines = [f"# yaml-language-server: $schema={_SCHEMA}", "#", "# Tables, with the server's estimates:"]
    lines += [f"#   {printable(_told(table))}" for table in found.tables[:_SHOWN]]
    if len(found.tables) > _SHOWN:
        lines.append(f"#   and {len(found.tables) - _SHOWN} more")
    lines += _told_findings(found)
    if found.kept_ms is not None:
        lines.append(f"# The server keeps its binary log for {format_duration(found.kept_ms)}.")
    lines += ["", "source:", "  type: mysql_cdc", *([f"  name: {_scalar(_stream(only))}"] if one else [])]
    lines += [f"  {key}: {value if value.isdecimal() else _scalar(value)}" for key, value in connection.items()]
    if password_env:
        lines.append(f"  password: ${{{password_env}}}")
    if one:
        lines.append(f"  table: {_scalar(only.name)}")
        if only.columns:
            columns = ", ".join(f"{column} {kind}" for column, kind in only.columns)
            lines.append(f"  # columns: {printable(columns)}")
            lines.append(f"  # columns.exclude: {_scalar(_escaped(only, only.columns[-1][0]))}")
    else:
        lines.append(f"  tables: [{', '.join(map(_scalar, tables))}]")
        if keyless:
            lines.append("  # Left out, as they have no primary key. A unique key in messageKeyColumns is enough.")
            lines.append(f"  tables.exclude: {_scalar(','.join(map(_escaped, keyless)))}")
        else:
            lines.append(r"  # tables.exclude: shop\.tmp_.*")
    lines += ["  # chunkSize: 100000           # rows of one SELECT of the snapshot", ""]
    target = f"{root}/{quote(TableName.parse(only.name).table, safe='')}"
    if one and not only.key:
        lines += [
            "# The table has no primary key, so nothing tells its rows apart: the target gets all changes.",
            "sink:",
        ]
        lines += ["  type: delta_append", f"  path: {_scalar(target)}"]
    elif one:
        lines += ["# transform:                    # SQL over the source (docs/sql.md)", "#   - name: totals"]
        key = only.key[0] if only.key[0].isidentifier() else printable(quoted(only.key[0]))
        lines += [f"#     sql: SELECT {key}, count(*) AS n FROM {_stream(only)} GROUP BY {key}", ""]
        lines += ["sink:", "  type: delta_upsert", f"  path: {_scalar(target)}"]
        lines += [f"  keys: [{', '.join(map(_scalar, only.key))}]"]
    else:
        lines += ["# route:                        # other directories than <path>/<database>/<table>"]
        lines += [f"#   - source-table: {printable(only.name)}", "#     sink-table: ods/<>", ""]
        lines += ["sink:", "  type: delta_tables", f"  path: {_scalar(root)}"]
    return "\n".join([*lines, *_pipeline(name, root)])


def stream_file(found: Examination, options: Mapping[str, str], *, name: str, root: str) -> str:
    """A file with comments for the source ``hybrid``, whose rows are appended.

    Parameters
    ----------
    found : Examination
        Of the files and the topic.
    options : mapping
        The source's options.
    name, root : str
        As for `first_file`.
    """
    lines = [f"# yaml-language-server: $schema={_SCHEMA}", *_told_findings(found), "", "source:", "  type: hybrid"]
    lines += [f"  name: {_scalar(_word(name))}", *(f"  {key}: {_scalar(value)}" for key, value in options.items())]
    lines += ["  # metadataColumns: _offset    # where a row comes from (docs/hybrid_options.md)", ""]
    lines += ["# transform:                    # SQL over the source (docs/sql.md)", "#   - name: rows"]
    lines += [f"#     sql: SELECT * FROM {_word(name)}", "", "sink:", "  type: delta_append"]
    return "\n".join([*lines, f"  path: {_scalar(f'{root}/{quote(name, safe=str())}')}", *_pipeline(name, root)])


def _pipeline(name: str, root: str) -> list[str]:
    """The section with the intervals, and the end of the file."""
    return [
        "", "pipeline:", f"  name: {_scalar(name)}", f"  checkpoint: {_scalar(f'{root}/_checkpoints/{name}')}",
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
    rows = "" if table.rows is None else f", about {table.rows:,} rows"
    size = "" if table.size is None else f", {table.size >> 20:,} MiB"
    return f"{table.name}: {key}{rows}{size}"


def _stream(table: FoundTable) -> str:
    """A name for SQL."""
    return _word(TableName.parse(table.name).table)


def _word(name: str) -> str:
    made = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
    return made if made[:1].isalpha() or made[:1] == "_" else f"t_{made}"


def _escaped(table: FoundTable, *column: str) -> str:
    """A regular expression for a table, or a column of it. A comma would separate two of them."""
    return re.escape(".".join([*TableName.parse(table.name), *column])).replace(",", r"\x2c")


def _scalar(value: str) -> str:
    """A text in YAML, on one line: quoted only where it must be."""
    text = value.replace("${", "$${")
    if _PLAIN.fullmatch(text) and yaml.safe_load(f"[{text}]") == [text]:
        return text
    return printable(json.dumps(text, ensure_ascii=False))
