"""The sink's section of a first pipeline file, with values to be changed where nothing is known (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

import yaml  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.common.familiar_names import choice
from backlog_spark.common.printable import printable
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.pipelines.sections import SINKS

__all__ = ["COPIES", "PASSWORD", "WHOLE", "FirstTable", "check_sink", "scalar", "sink_section", "word"]

WHOLE: Final = ("delta_tables", "iceberg_tables", "kafka")
"""Types of sinks that take several tables."""
PASSWORD: Final = "TARGET_PASSWORD"
"""The variable of the environment that a database's section names."""

COPIES: Final = ("delta_tables", "iceberg_tables")
"""Those of them that copy the tables of a database."""
_UPSERTS: Final = ("delta_upsert", "iceberg_upsert", "jdbc_upsert")
# What YAML never takes for more than a text's letters, also within [ ].
_PLAIN: Final = re.compile(r"[\w./][\w./:-]*")
_ROWS: Final = (
    "  changeType: null              # the rows are no changes: each one is an upsert",
    "  sequence: null",
    "  metadataColumns: []",
)


class FirstTable(NamedTuple):
    """A source table, or a stream of rows.

    Parameters
    ----------
    database : str
        "" for a stream.
    table : str
        Its name, or that of the stream.
    key : tuple of str
        The primary key.
    """

    database: str
    table: str
    key: tuple[str, ...] = ()


def check_sink(kind: str) -> None:
    """Refuse a type that no sink has."""
    if kind not in SINKS:
        raise SettingError("--sink", kind, "is no type of a sink.", choice(kind, SINKS, "There are"))


def sink_section(kind: str, of: FirstTable | None, root: str) -> list[str]:
    """The lines of the section.

    Parameters
    ----------
    kind : str
        A type of `SINKS`.
    of : FirstTable or None
        What it gets; None for several tables.
    root : str
        Directory of the targets.

    Raises
    ------
    BacklogError
        It does not fit the tables.
    """
    if of is None and kind not in WHOLE:
        raise BacklogError(
            f"A sink of type {kind} takes one table.",
            f"Name one, or choose {', '.join(WHOLE[:-1])} or {WHOLE[-1]} for several.",
        )
    if of is not None and of.database and not of.key and kind in (*_UPSERTS, *COPIES):
        raise BacklogError(
            f"A sink of type {kind} needs a key, and {of.table} has no primary key.",
            "Choose a type that appends, such as delta_append or iceberg_append.",
        )
    if of is not None and not of.database and kind in COPIES:
        append = kind.replace("tables", "append")
        raise BacklogError(f"A sink of type {kind} copies the tables of a database.", f"Choose {append}.")
    return ["sink:", f"  type: {kind}", *_values(kind, of or FirstTable("", "<>"), root)]


def _values(kind: str, of: FirstTable, root: str) -> list[str]:
    is_stream = not of.database and of.table != "<>"
    if kind == "delta_tables":
        return [f"  path: {scalar(root)}"]
    if kind == "iceberg_tables":
        return list(_catalog(root))
    if kind in ("delta_append", "files"):
        return [_path(of, root)]
    if kind == "delta_upsert":
        return [_path(of, root), *_keys(of)]
    if kind.startswith("iceberg"):
        place = f"  table: {word(of.database or 'lake')}.{word(of.table)}"
        return [place, *_catalog(root), *(_keys(of) if kind == "iceberg_upsert" else [])]
    if kind == "jdbc_upsert":
        return [
            "  url: postgresql://localhost:5432/warehouse   # or mysql://…, mariadb://…",
            f"  table: {scalar(of.table) if of.table.isidentifier() else word(of.table)}",
            *_keys(of), "  user: writer", f"  password: ${{{PASSWORD}}}",
        ]  # fmt: skip
    if kind == "kafka":
        topic = "<>" if of.table == "<>" else word(of.table)
        key = [f"  key: [{', '.join(map(scalar, of.key))}]"] if of.key else []
        brokers = ["  options:", "    kafka.bootstrap.servers: localhost:9092"]
        told = "                   # <>: the table's name" if topic == "<>" else ""
        return [f"  topic: {scalar(topic)}{told}", *key, *brokers, *(_ROWS if is_stream else [])]
    if kind == "foreach":
        return ["  function: builtins:print      # your module:function of batch_df and batch"]
    if kind == "python":
        return ["  function: backlog_spark:BlackHole   # module:class of your own sink (docs/own_sink.md)"]
    return []


def _path(of: FirstTable, root: str) -> str:
    return f"  path: {scalar(f'{root}/{quote(of.table, safe=str())}')}"


def _keys(of: FirstTable) -> list[str]:
    if of.key:
        return [f"  keys: [{', '.join(map(scalar, of.key))}]"]
    return ["  keys: [id]                    # the columns that identify a row", *_ROWS]


def _catalog(root: str) -> Sequence[str]:
    if "://" in root:
        return ["  catalog:", "    type: rest", "    uri: http://localhost:8181", f"    warehouse: {scalar(root)}"]
    return ["  catalog:                      # a file in this directory; for servers see docs/iceberg.md",
            f"    warehouse: {scalar(root)}"]  # fmt: skip


def word(name: str) -> str:
    made = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
    return made if made[:1].isalpha() or made[:1] == "_" else f"t_{made}"


def scalar(value: str) -> str:
    """A text in YAML, on one line: quoted only where it must be."""
    text = value.replace("${", "$${")
    if _PLAIN.fullmatch(text) and yaml.safe_load(f"[{text}]") == [text]:
        return text
    return printable(json.dumps(text, ensure_ascii=False))
