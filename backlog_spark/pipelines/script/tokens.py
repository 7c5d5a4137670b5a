"""Tokens of a Flink SQL script with their positions (pure).

sqlglot parses the queries. It does not cut the script: its errors quote the text around, which may have a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Cursor", "Refused", "Token", "statements"]

_TOKEN: Final = re.compile(
    r"(?P<space>\s+|--[^\n]*|/\*.*?\*/)|(?P<string>'(?:[^']|'')*')|(?P<quoted>`(?:[^`]|``)*`)"
    r"|(?P<text>\"(?:[^\"\\]|\\.)*\")|(?P<number>\d+(?:\.\d+)?)|(?P<word>[^\W\d]\w*)|(?P<sign>/\*|.)",
    re.DOTALL,
)
_OPEN: Final = {"'": "quote", "`": "quote", '"': "quote", "/*": "comment"}


class Refused(Exception):
    """A mistake in a script.

    Parameters
    ----------
    start : int
        Where in the script, from 0.
    problem, hint : str
    """

    def __init__(self, start: int, problem: str, hint: str = "") -> None:
        self.start = start
        self.problem = problem
        self.hint = hint
        super().__init__(problem)


@dataclass(frozen=True)
class Token:
    """A word, a sign or a text in quotes. ``end`` is exclusive."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def value(self) -> str:
        """The text without its quotes."""
        if self.kind in ("string", "quoted"):
            return self.text[1:-1].replace(2 * self.text[0], self.text[0])
        return self.text

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.upper() == word


def statements(script: str) -> Iterator[list[Token]]:
    """The tokens of each statement, without comments.

    Raises
    ------
    Refused
        For a quote or a comment without an end.
    """
    found: list[Token] = []
    for each in _TOKEN.finditer(script):
        kind = each.lastgroup or ""
        if kind == "sign" and each[0] in _OPEN:
            raise Refused(each.start(), f"The {_OPEN[each[0]]} that begins here is not closed.", "Close it.")
        if kind == "sign" and each[0] == ";":
            if found:
                yield found
            found = []
        elif kind != "space":
            found.append(Token(kind, each[0], *each.span()))
    if found:
        yield found


class Cursor:
    """Goes through the tokens of a statement.

    Parameters
    ----------
    tokens : list of Token
        At least one.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._end = Token("end", "the end of the statement", tokens[-1].end, tokens[-1].end)

    @property
    def position(self) -> int:
        """How many tokens are consumed."""
        return self._at

    @property
    def next(self) -> Token:
        """The next token. It is not consumed."""
        return self.after(0)

    def after(self, count: int) -> Token:
        """A later token."""
        at = self._at + count
        return self._tokens[at] if at < len(self._tokens) else self._end

    def take(self) -> Token:
        """Consume the next token."""
        found = self.next
        self._at += 1
        return found

    def has(self, *words: str) -> bool:
        """Consume these words or signs if they follow, all of them."""
        tokens = [self.after(number) for number in range(len(words))]
        if not all(token.is_word(word) or token.text == word for token, word in zip(tokens, words, strict=True)):
            return False
        self._at += len(words)
        return True

    def need(self, *words: str) -> None:
        """Consume these words or signs, which must follow."""
        for word in words:
            if not self.has(word):
                raise self.refused(f"{word} is missing here.", f"Found {self._shown()}.")

    def name(self, what: str = "A name") -> Token:
        """Consume a name."""
        if self.next.kind not in ("word", "quoted"):
            raise self.refused(f"{what} is missing here.", f"Found {self._shown()}.")
        return self.take()

    def names(self) -> list[Token]:
        """Consume names in parentheses."""
        self.need("(")
        found = [self.name()]
        while self.has(","):
            found.append(self.name())
        self.need(")")
        return found

    def table_name(self) -> Token:
        """Consume the name of a table, of one part."""
        found = self.name("The name of a table")
        if self.next.text == ".":
            raise self.refused("A table's name has one part.", "There are no catalogs and databases: leave them out.")
        return found

    def string(self) -> Token:
        """Consume a text in quotes."""
        if self.next.kind != "string":
            raise self.refused("A text in single quotes is missing here.", f"Found {self._shown()}.")
        return self.take()

    def expression(self) -> tuple[int, int]:
        """Consume an expression: up to a comma, a closing parenthesis or COMMENT. Returns start and end."""
        first, depth = self.next, 0
        last = first
        while self.next.kind != "end" and (depth or self.next.text not in (",", ")")):
            if not depth and self.next.is_word("COMMENT") and self.after(1).kind == "string":
                break
            last = self.take()
            depth += (last.text == "(") - (last.text == ")")
        if last is first and first.text in (",", ")"):
            raise self.refused("An expression is missing here.")
        return first.start, last.end

    def until(self, sign: str) -> list[Token]:
        """Consume what is before a sign, or all that is left."""
        found = []
        while self.next.kind != "end" and self.next.text != sign:
            found.append(self.take())
        return found

    def rest(self) -> tuple[int, int]:
        """Consume what is left. Returns start and end."""
        first = self.next
        self._at = len(self._tokens)
        return first.start, self._tokens[-1].end

    def skip_item(self, begin: int) -> None:
        """Go to the end of the item that began at a position: the comma or parenthesis after it."""
        self._at, depth = begin, 0
        while self.next.kind != "end" and (depth or self.next.text not in (",", ")")):
            text = self.take().text
            depth += (text in "(<") - (text in ")>")

    def finish(self) -> None:
        """Refuse tokens that are left."""
        if self.next.kind != "end":
            raise self.unexpected("A semicolon may be missing before it.")

    def unexpected(self, hint: str) -> Refused:
        """The error for a next token that has no place there."""
        return self.refused(f"{self._shown()} is not expected here.", hint)

    def refused(self, problem: str, hint: str = "") -> Refused:
        """The error for the next token."""
        return Refused(self.next.start, problem, hint)

    def _shown(self) -> str:
        # A text may be a password.
        return "a text in quotes" if self.next.kind in ("string", "text") else self.next.text
