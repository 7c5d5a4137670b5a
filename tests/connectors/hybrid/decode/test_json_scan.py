"""The JSON scanner reads everything that Python's parser reads, and what only Spark's parser accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode.json_scan import Array, Malformed, NonFinite, Number, Object, scan

from .records import COLUMNS, json_records


def value_of(node: Any) -> Any:
    """The tree in the form of Python's json module, with numbers as written."""
    if isinstance(node, Object):
        return [(name, value_of(value)) for name, value in node.items]
    if isinstance(node, Array):
        return {"array": [value_of(value) for value in node.items]}
    return ("number", str(node)) if isinstance(node, Number | NonFinite) else node


class Pairs(list[Any]):
    """Tells objects from arrays."""


def python_reads(text: str) -> Any:
    def keep(number: str) -> tuple[str, str]:
        return ("number", number)

    def convert(value: Any) -> Any:
        if isinstance(value, Pairs):
            return [(_without_lone(name), convert(inner)) for name, inner in value]
        if isinstance(value, list):
            return {"array": [convert(inner) for inner in value]}
        return _without_lone(value) if isinstance(value, str) else value

    decoder = json.JSONDecoder(object_pairs_hook=Pairs, parse_int=keep, parse_float=keep, parse_constant=keep)
    return convert(decoder.raw_decode(text.lstrip(" \t\r\n"))[0])


def _without_lone(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@given(json_records(COLUMNS, damaged=True))
def test_as_python(record: bytes) -> None:
    text = record.decode(errors="replace")
    try:
        expected = python_reads(text)
    except ValueError:
        return  # what only this scanner takes is tested below
    if text.lstrip(" \t\r\n")[:1] != "{":
        with pytest.raises(Malformed, match="not a JSON object"):
            scan(text)
        return
    assert value_of(scan(text)) == expected


@given(st.recursive(st.none() | st.booleans() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(
    st.text(max_size=3), inner)), st.sampled_from([None, 2]), st.booleans())  # fmt: skip
def test_what_python_writes(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps({"a": value}, indent=indent, ensure_ascii=ascii_only)
    assert value_of(scan(text)) == python_reads(text)
    node = scan(text)
    assert node is not None
    assert node.text == text
    inner = node.items[0][1]
    if isinstance(inner, Object | Array):
        assert json.loads(inner.text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a':'x'}", [("a", "x")]),
        ("""{'a':'say "x"', "b":'\\u0041'}""", [("a", 'say "x"'), ("b", "A")]),
        ('{"a":NaN,"b":-Infinity,"c":+INF,"d":-INF,"e":+Infinity}', [
            ("a", ("number", "NaN")), ("b", ("number", "-Infinity")), ("c", ("number", "+INF")),
            ("d", ("number", "-INF")), ("e", ("number", "+Infinity"))]),
        ('{"a":1} and more', [("a", ("number", "1"))]),
        ('{"a":1}}', [("a", ("number", "1"))]),
        ('{"a":1}{"a":2}', [("a", ("number", "1"))]),
        ('{"a":"\\ud800x","b":"\\ude00\\ud83d","c":"\\ud83d\\ude00"}', [("a", "?x"), ("b", "??"), ("c", "😀")]),
        ("{}", []),
        (' \t\r\n{ "a" : [ ] , "b" : { } } ', [("a", {"array": []}), ("b", [])]),
        ('{"a":1,"a":2}', [("a", ("number", "1")), ("a", ("number", "2"))]),
    ],
)  # fmt: skip
def test_what_is_taken(text: str, value: Any) -> None:
    assert value_of(scan(text)) == value


@pytest.mark.parametrize(
    "text",
    [
        "null", "5", '"x"', "[]", '[{"a":1}]', "x", "{", "}", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', "{,}",
        '{"a"}', '{"a":[1,]}', '{"a":[1 2]}', '{"a":[1}', '{"a":{]}', '{"a":1]', '{"a":01}', '{"a":+1}', '{"a":1.}',
        '{"a":.5}', '{"a":-}', '{"a":1x}', '{"a":--1}', '{"a":tru}', '{"a":nullx}', '{"a":TRUE}', '{"a":INF}',
        '{"a":Inf}', '{"a":nan}', "{a:1}", '{"a":"x', '{"a":"\\x"}', '{"a":"\\u12"}', '{"a":"\x01"}', '{"a":"a\nb"}',
        "{'a':'it\\'s'}", '{"a":1 "b":2}', '{"a" 1}', '{"a":1 /*x*/}', '{"a":1;"b":2}', '\ufeff{"a":1}',
        '\x00{"a":1}', '{"a":1\x00}', '{"a\x01":1}', '\x0b{"a":1}',
    ],
)  # fmt: skip
def test_what_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        scan(text)


def test_non_finite_values_can_be_refused() -> None:
    with pytest.raises(Malformed):
        scan('{"a":NaN}', non_finite=False)


@pytest.mark.parametrize("text", ["", " ", "\n\t \r"])
def test_nothing(text: str) -> None:
    assert scan(text) is None


def test_depth() -> None:
    """Spark takes a thousand levels, the record's own among them."""
    assert scan('{"z":' + "[" * 999 + "]" * 999 + ',"a":1}') is not None
    for depth in (1000, 100_000):
        with pytest.raises(Malformed, match="deeper than 1000"):
            scan('{"z":' + "[" * depth + "]" * depth + ',"a":1}')
