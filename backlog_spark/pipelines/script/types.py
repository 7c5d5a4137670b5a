"""Types of columns in a Flink SQL script, as Spark's DDL (pure).

Source: Flink's "Data Types"; Spark's "Data Types".
"""

from __future__ import annotations

from typing import Final

from backlog_spark.pipelines.script.tokens import Cursor, Refused

__all__ = ["PLAIN", "spark_type"]

PLAIN: Final = {
    "BOOLEAN": "BOOLEAN", "TINYINT": "TINYINT", "SMALLINT": "SMALLINT", "INT": "INT", "INTEGER": "INT",
    "BIGINT": "BIGINT", "FLOAT": "FLOAT", "DOUBLE": "DOUBLE", "DATE": "DATE", "STRING": "STRING", "BYTES": "BINARY",
    "CHAR": "STRING", "VARCHAR": "STRING", "BINARY": "BINARY", "VARBINARY": "BINARY",
    "DECIMAL": "DECIMAL", "DEC": "DECIMAL", "NUMERIC": "DECIMAL",
    "TIMESTAMP": "TIMESTAMP_NTZ", "TIMESTAMP_LTZ": "TIMESTAMP",
}  # fmt: skip
"""Flink's names of types, and Spark's. Lengths of texts and precisions of times do not count here."""
_INSTEAD: Final = {
    "MULTISET": "Use MAP<T, INT>.",
    "TIME": "Keep times of the day as STRING.",
    "INTERVAL": "Keep lengths of time as BIGINT.",
    "RAW": "Use BYTES.",
}


def spark_type(at: Cursor) -> str:
    """Consume a type, with NOT NULL. Returns it as in Spark's DDL."""
    found = _type(at)
    while at.has("ARRAY"):
        _null(at)
        found = f"ARRAY<{found}>"
    if at.next.is_word("MULTISET"):
        raise at.refused("MULTISET: there is no such type.", _INSTEAD["MULTISET"])
    return found


def _type(at: Cursor) -> str:
    token = at.name("A type")
    name = token.text.upper()
    if name in ("ARRAY", "MAP"):
        at.need("<")
        inner = [spark_type(at)]
        if name == "MAP":
            at.need(",")
            inner.append(spark_type(at))
        at.need(">")
        made = f"{name}<{', '.join(inner)}>"
    elif name == "ROW":
        made = _row(at)
    elif name in PLAIN:
        made = PLAIN[name]
        given = _parameters(at)
        if made == "DECIMAL":
            made = f"DECIMAL({', '.join(given or ('10', '0'))})"
        if name == "DOUBLE":
            at.has("PRECISION")
        if name == "TIMESTAMP":
            if at.has("WITH", "LOCAL", "TIME", "ZONE"):
                made = "TIMESTAMP"
            elif not at.has("WITHOUT", "TIME", "ZONE") and at.next.is_word("WITH"):
                raise at.refused("TIMESTAMP WITH TIME ZONE: there is no such type.", "Use TIMESTAMP_LTZ.")
    else:
        hint = _INSTEAD.get(name, f"There are {', '.join([*PLAIN, 'ARRAY', 'MAP', 'ROW'])}.")
        raise Refused(token.start, f"{token.text}: there is no such type.", hint)
    _null(at)
    return made


def _null(at: Cursor) -> None:
    if not at.has("NOT", "NULL"):
        at.has("NULL")


def _parameters(at: Cursor) -> tuple[str, ...]:
    if not at.has("("):
        return ()
    found = [at.take().text]
    while at.has(","):
        found.append(at.take().text)
    at.need(")")
    return tuple(found)


def _row(at: Cursor) -> str:
    close = ">" if at.has("<") else ")"
    if close == ")":
        at.need("(")
    fields: list[str] = []
    while not fields or at.has(","):
        name = at.name("A field's name").value.replace("`", "``")
        fields.append(f"`{name}`: {spark_type(at)}")
        if at.next.kind == "string":
            at.take()  # its comment
    at.need(close)
    return f"STRUCT<{', '.join(fields)}>"
