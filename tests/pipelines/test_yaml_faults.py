"""Files that are no YAML: each is answered in plain words, at the place of the mistake."""

from __future__ import annotations

import random
import re

import pytest

from backlog_spark.pipelines.document import Document, PipelineError

GOOD = """\
# Orders to Delta
source:
  type: mysql_cdc
  host: "db.example.com"
  user: 'reader'
  tables: [shop.orders, shop.lines]
  options: {a: 1, b: 2}
transform:
  - name: large
    sql: |
      SELECT * FROM orders
      WHERE amount > 10
  - name: small
    function: "jobs:small"
sink:
  type: delta_upsert
  path: /lake/orders
  keys: [id]
pipeline:
  name: orders
  settings:
    spark.app.name: 'orders'
"""


def fault(text: str) -> tuple[int, int, str]:
    try:
        faults = Document.read(text, "p.yaml", {}).faults
    except PipelineError as error:
        faults = [*error.faults]
    found = faults[0]
    return found.place.line, found.place.column, str(found)


@pytest.mark.parametrize(
    ("text", "line", "column", "told"),
    [
        ("source:\n\ttype: a\n", 2, 1, "The line is indented with a tab. Indent with blanks."),
        ("source:\n  type: a\n\thost: b\n", 3, 1, "The line is indented with a tab."),
        ("source:\n  type:\ta\n", 2, 8, "There is a tab where YAML takes only blanks."),
        ("source\n  type: a\n", 1, 1, "This line has no colon. Write a key as name: value."),
        ("source:\n  type a\n  host: b\n", 2, 3, "This line has no colon."),
        ("source:\n  type: a\nsink\npipeline:\n  name: x\n", 3, 1, "This line has no colon."),
        ("source:\n  type:a\n  host: b\n", 2, 8, "There is no blank after the colon."),
        ("source:\n  host: b\n  type:a\n", 3, 8, "There is no blank after the colon."),
        ('source:\n  type: "a\n  host: b\n', 2, 9, "The quote that begins here is not closed."),
        ("source:\n  type: 'a\n  host: b\n", 2, 9, "The quote that begins here is not closed."),
        ('source:\n  type: "a\n  host: "b"\n', 2, 9, "The quote that begins here is not closed."),
        ("source:\n  type: 'a\n  host: 'b'\n  user: c\n", 2, 9, "The quote that begins here is not closed."),
        ("source:\n  tables: ['a, b]\n  host: c\n", 2, 12, "The quote that begins here is not closed."),
        ("source:\n  type: a\n host: b\n", 3, 2, "The indentation of this line fits no line above."),
        ("source:\n  type: a\n    host: b\n", 3, 5, "The line is indented more than the line before"),
        ("source:\n  type: a\n sink:\n  x: 1\n", 3, 2, "The indentation of this line fits no line above."),
        ("transform:\n  - name: a\n - name: b\n", 3, 2, "A list's item does not stand where the items before it do"),
        ("source:\n  tables: [a, b\n  host: c\n", 2, 11, "The [ that begins here is not closed"),
        ("source: {type: a, host: b\nsink: {}\n", 1, 9, "The { that begins here is not closed"),
        ("source:\n  tables: [a, b]]\n  host: c\n", 2, 17, "There is a ] without its opening bracket."),
        ("source:\n  tables: ]\n", 2, 11, "There is a ] without its opening bracket."),
        ("source:\n  sql: SELECT a: b\n", 2, 16, "There is a colon and a blank in a value. Put the value in quotes."),
        ('source:\n  host: "a" b\n', 2, 13, "There is text after a closing quote or bracket."),
        ("source:\n  password: @secret\n", 2, 13, "A value cannot begin with @. Put the value in quotes."),
        ("source:\n  password: `secret`\n", 2, 13, "A value cannot begin with `."),
        ("source:\n  password: %secret\n", 2, 13, "A value cannot begin with %."),
        ("source:\n  tables: *.orders\n", 2, 12, "A value that begins with * refers to another place"),
        ("source:\n  tables: *orders\n", 2, 11, "A value that begins with * refers to another place"),
        ("source:\n  password: & x\n", 2, 14, "A value that begins with & is a name"),
        ('source:\n  tablePattern: "shop\\..*"\n', 2, 23, "In double quotes, a backslash begins an escape,"),
        ("source:\n  type: a\n  host: b\n  type: c\n", 4, 3, "type is written twice. Write it once."),
        ("source:\n  type: a\n---\nsink:\n  type: b\n", 3, 1, "A second document begins here."),
        ("source:\n  password: >x\n", 2, 14, "A value that begins with | or > has its text in the lines below."),
        (" source:\n   type: a\nsink:\n  type: b\n", 1, 1, "The first key of the file is indented."),
        ("source: a\x00b\n", 1, 10, "The character U+0000 is not allowed."),
    ],
)  # fmt: skip
def test_a_broken_file(text: str, line: int, column: int, told: str) -> None:
    found = fault(text)
    assert found[2].startswith(told)
    assert found[:2] == (line, column)


# Words of the parser.
ITS_OWN = re.compile(r"<|expected|token|scalar|mapping values|simple key|flow|node|while |collection|stream")


def broken(rng: random.Random) -> tuple[str, int]:
    """The good file with one mistake, and the line that has it."""
    lines = GOOD.splitlines()
    number = rng.randrange(1, len(lines))
    line = lines[number]
    indent = len(line) - len(line.lstrip())
    kinds = {
        "tab": f"\t{line.lstrip()}" if indent else line,
        "no colon": line.replace(":", "", 1),
        "no blank": line.replace(": ", ":", 1),
        "less": line[1:] if indent else line,
        "more": f" {line}",
        "no quote": line.rstrip().removesuffix(rng.choice("\"'")),
        "no bracket": line.rstrip().removesuffix(rng.choice("]}")),
        "too much": f"{line}{rng.choice(']},')}",
        "begins": re.sub(r": ", f": {rng.choice('@`%*&!|>')}", line, count=1),
        "colon": f"{line} x: y",
    }
    lines[number] = kinds[rng.choice(list(kinds))]
    return "\n".join(lines) + "\n", number + 1


@pytest.mark.parametrize("seed", range(400))
def test_a_mistake_anywhere_is_told_in_plain_words_where_it_is(seed: int) -> None:
    text, line = broken(random.Random(seed))
    try:
        document = Document.read(text, "p.yaml", {})
    except PipelineError as error:
        [found] = error.faults
        assert not ITS_OWN.search(str(found)), str(found)
        assert found.hint
        assert found.place.line in (line, line + 1), f"line {line} is wrong, not {found}\n{text}"
    else:
        assert document.data is not None  # it is another file, but YAML
