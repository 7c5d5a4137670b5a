"""All kinds of input."""

from __future__ import annotations

from tests.fuzz import (
    binlog_events,
    change_records,
    checkpoints,
    compressed,
    gtids,
    json_documents,
    login,
    offsets,
    options,
    records,
    row_images,
    texts,
    wire_rows,
)
from tests.fuzz.kinds import Kind

__all__ = ["FOUND", "KINDS"]

_MODULES = (
    binlog_events, row_images, json_documents, compressed, gtids, login, wire_rows, records, change_records, offsets,
    checkpoints, options, texts,
)  # fmt: skip
KINDS: list[Kind] = [*(kind for module in _MODULES for kind in module.KINDS), texts.SPARK]

FOUND = {
    "binary log": ("any damaged event raised IndexError, KeyError and the like, without the place in the log",),
    "binary JSON": (
        "a count of 2^24 items in 12 bytes ran for ever",
        "values that share their bytes grew exponentially",
        "a value that ends beyond its document was cut",
    ),
    "compressed transactions": (
        "a size of 1 GiB in 50 bytes took 1 GiB",
        "each damaged transaction leaked the memory of a read",
    ),
    "GTID sets": ("5-3 made a set that no server reads", "numbers beyond 2^63 failed when the set was sent"),
    "greeting and login": ("a cut greeting raised NameError", "a request for a local file raised RuntimeError"),
    "rows on the wire": ("a row that ends early took values of the next row", "the last row raised IndexError"),
    "Debezium records": ("a record with deep nesting raised RecursionError, also with mode=PERMISSIVE",),
    "offsets of mysql_cdc": (
        "a value of a wrong type failed while a batch was planned, or later",
        "a range of a table that is not there, and a missing key, raised IndexError and KeyError",
        "a file number that is no ASCII digit raised ValueError",
        "a compressed part could inflate without bound",
    ),
    "offsets of hybrid": (
        "a missing field raised KeyError, and a phase that is not there IndexError",
        "deep nesting raised RecursionError in every reader of offsets",
    ),
    "state": ("a damaged value raised OSError, EOFError or struct.error", "8 bytes could ask for 4 GiB"),
    "metadata of a checkpoint": ("a missing or wrong field raised KeyError or TypeError",),
    "event log": ("one damaged line, or a byte that is no UTF-8, ended inspect and report",),
    "options": ("a pattern that is nested too deeply raised RecursionError",),
    "stored schemas": ("a name that is no text raised AssertionError, deep nesting RecursionError",),
    "SQL texts": (
        "deep nesting raised RecursionError",
        "the parser logged the text of statements that it does not know, with their passwords",
    ),
}
"""What fuzzing has found since it exists, by kind. All of it is mended."""
