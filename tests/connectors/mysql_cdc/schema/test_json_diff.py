"""Partial JSON updates, applied to a document's text."""

import pytest

from backlog_spark.connectors.mysql_cdc.schema.json_diff import patched
from backlog_spark.errors import BacklogError

REPLACE, INSERT, REMOVE = 0, 1, 2


def diff(operation: int, path: str, value: bytes = b"") -> bytes:
    """As MySQL writes it; lengths below 251."""
    found = bytes([operation, len(path.encode())]) + path.encode()
    return found if operation == REMOVE else found + bytes([len(value)]) + value


def text(value: str) -> bytes:
    """A JSON string in binary."""
    return bytes([12, len(value.encode())]) + value.encode()


SEVEN = b"\x05\x07\x00"  # a small integer
TRUE = b"\x04\x01"


@pytest.mark.parametrize(
    ("document", "diffs", "expected"),
    [
        ('{"a": 1}', diff(REPLACE, "$.a", SEVEN), '{"a": 7}'),
        ('{"a": 1.50, "bb": 2}', diff(REPLACE, "$.bb", text('q"')), '{"a": 1.50, "bb": "q\\""}'),
        ('{"bb": 1}', diff(INSERT, "$.ccc", TRUE) + diff(INSERT, "$.a", SEVEN), '{"a": 7, "bb": 1, "ccc": true}'),
        ("[1, 2, 3]", diff(INSERT, "$[1]", SEVEN), "[1, 7, 2, 3]"),
        ("[1, 2, 3]", diff(INSERT, "$[9]", SEVEN), "[1, 2, 3, 7]"),
        ("[1, [2, null], 3]", diff(REMOVE, "$[1][0]"), "[1, [null], 3]"),
        ('{"a": {"b c": [0]}}', diff(REPLACE, '$.a."b c"[0]', SEVEN), '{"a": {"b c": [7]}}'),
        ('{"q\\"": 1, "ü": 2}', diff(REMOVE, '$."q\\""'), '{"ü": 2}'),
        ('{"a": 100000000000000000000, "b": 1}', diff(REMOVE, "$.b"), '{"a": 100000000000000000000}'),
        ('{"a": 1}', b"", '{"a": 1}'),
    ],
)
def test_changes_are_applied_in_order(document: str, diffs: bytes, expected: str) -> None:
    assert patched(document, diffs) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        diff(REPLACE, "$.b", SEVEN),
        diff(REMOVE, "$.b"),
        diff(REMOVE, "$[0]"),
        diff(REPLACE, "$.a.b", SEVEN),
        diff(INSERT, "$.a", SEVEN),
        diff(INSERT, "$.b.c", SEVEN),
        diff(REMOVE, "$.**"),
    ],
)
def test_a_change_that_does_not_fit_the_document_is_refused(wrong: bytes) -> None:
    with pytest.raises(BacklogError, match="partial JSON update"):
        patched('{"a": 1}', wrong)
