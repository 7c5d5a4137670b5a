"""Says in plain words what is wrong with a text that is no YAML (pure).

YAML's parser says what it expected, where it noticed. The mistake is often a line or more before. No text of the file
is quoted: a line may have a password.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["explained"]

_QUOTE: Final = "Put the value in quotes."
_KEY: Final = re.compile(r"\s*(?:- +)*[\w.\-]+\s*:(?:\s|$)")
_NO_BLANK: Final = re.compile(r"\s*(?:- +)*[\w.\-]*\w:(?=[^\s:/\\])")
# A value that begins with a quote and does not end with one in its line.
_OPEN: Final = re.compile(r"""(?:^\s*|[:,\[{-]\s+|[\[{])(?:"(?:[^"\\]|\\.)*|'(?:[^']|'')*)$""")
_BRACKETS: Final = {"]": "[", "}": "{"}


def explained(error: Any, text: str) -> tuple[int, int, str, str]:
    """Line, column, problem and hint of a ``yaml.MarkedYAMLError``. Both count from 1."""
    lines = text.splitlines()
    at, since = error.problem_mark or error.context_mark, error.context_mark or error.problem_mark
    if at is None:
        return 1, 1, *_UNKNOWN
    context, problem = error.context or "", error.problem or ""
    found = _by_line(lines, since.line, at.line, problem)
    if found is not None:
        return found
    first = next(number for number, line in enumerate(lines) if _content(line))
    if "<document start>" in problem and _indent(lines[first]) > at.column:
        return first + 1, 1, "The first key of the file is indented.", "Begin it at the left margin."
    for words, place, told, hint in _CAUSES:
        if match := re.search(words, f"{context}: {problem}"):
            mark = since if place == "begin" else at
            told, hint = (each.format(*match.groups(), open=_open(text, since)) for each in (told, hint))
            return mark.line + 1, mark.column + 1, told, hint
    return at.line + 1, at.column + 1, *_UNKNOWN


_UNKNOWN: Final = (
    "From here on, this is no valid YAML.",
    "Look at the line before, too: a colon, a quote or a bracket may be missing, or the indentation is wrong.",
)

# Words of the parser; whether the mistake is where it noticed or where the part began; what to say.
_CAUSES: Final = (
    (r"quoted scalar: found unknown escape character '(.)'", "at",
     "In double quotes, a backslash begins an escape, and \\{0} is none.",
     "Use single quotes, or write the backslash twice."),
    (r"escape sequence of|invalid Unicode|found unknown escape", "at",
     "In double quotes, a backslash begins an escape, and this one is incomplete.",
     "Use single quotes, or write the backslash twice."),
    ("quoted scalar", "begin", "The quote that begins here is not closed.", "Add the closing quote."),
    (r"found character '\\t'", "at", "There is a tab where YAML takes only blanks.", "Replace the tab by blanks."),
    (r"found character '(.)' that cannot start", "at", "A value cannot begin with {0}.", _QUOTE),
    ("while scanning an alias|undefined alias", "at",
     "A value that begins with * refers to another place of the file.",
     "Put it in quotes if the * belongs to the value."),
    ("while scanning an anchor|duplicate anchor", "at", "A value that begins with & is a name for a place of the file.",
     "Put it in quotes if the & belongs to the value."),
    ("tag", "at", "A value that begins with ! is a type of YAML.", "Put it in quotes if the ! belongs to the value."),
    ("block scalar", "at", "A value that begins with | or > has its text in the lines below.",
     "Put it in quotes if the character belongs to the value."),
    ("flow (?:mapping|sequence)", "begin", "The {open} that begins here is not closed, or a comma is missing in it.",
     "Close it, or separate its values by commas."),
    ("found another document", "at", "A second document begins here.",
     "Leave out the line ---: one file is one pipeline."),
    ("found '([]}}])'".replace("}}", "}"), "at", "There is a {0} without its opening bracket.",
     "Remove it, or put the value in quotes."),
    ("found ','", "at", "There is a comma after the value.", "Remove it, or put the value in quotes."),
    ("could not find expected ':'", "begin", "This line has no colon.", "Write a key as name: value."),
    ("mapping values are not allowed", "at", "There is a colon and a blank in a value.", _QUOTE),
    ("found '<scalar>'", "at", "There is text after a closing quote or bracket.",
     "Put the whole value in one pair of quotes."),
    ("<block sequence start>|found '-'|sequence entries are not allowed", "at",
     "A list's item does not stand where the items before it do, or where a list may begin.",
     "Indent all items of a list alike, each with - and a blank."),
    ("<block mapping start>|found '<block end>'|block (?:mapping|collection)|document start", "at",
     "The indentation of this line fits no line above.", "Indent all keys of one section alike."),
)  # fmt: skip


def _by_line(lines: list[str], since: int, at: int, problem: str) -> tuple[int, int, str, str] | None:
    """Mistakes that the lines themselves show, however the parser came to notice them."""
    at = min(at, len(lines) - 1)
    near = range(max(0, at - 1), at + 1)
    for number in near:  # in the indentation
        if "\t" in (blank := lines[number][: len(lines[number]) - len(lines[number].lstrip())]):
            return number + 1, blank.index("\t") + 1, "The line is indented with a tab.", "Indent with blanks."
    for number in range(min(since, at), at + 1):
        if number < at and (found := _OPEN.search(_without_comment(lines[number]))):
            quote = re.search("[\"']", lines[number][found.start() :])
            assert quote is not None
            return number + 1, found.start() + quote.start() + 1, "The quote that begins here is not closed.", (
                "Add the closing quote."
            )  # fmt: skip
    if "could not find expected ':'" not in problem and "mapping values are not allowed" not in problem:
        return None
    before = next((number for number in range(at - 1, -1, -1) if _content(lines[number])), None)
    for number in (at, *(() if before is None else (before,))):
        if found := _NO_BLANK.match(lines[number]):
            return number + 1, found.end() + 1, "There is no blank after the colon.", "Write a key as name: value."
    if "mapping values" in problem and before is not None and _KEY.match(lines[at]):
        if len(re.findall(r":(?:\s|$)", _without_comment(lines[at]))) > 1:
            return None  # a colon in the value
        column = _indent(lines[before]) + 1
        if not _KEY.match(lines[before]):
            return before + 1, column, "This line has no colon.", "Write a key as name: value."
        if _indent(lines[at]) > _indent(lines[before]):
            return at + 1, _indent(lines[at]) + 1, (
                "The line is indented more than the line before, which has its value already."
            ), "Indent all keys of one section alike."  # fmt: skip
    return None


def _open(text: str, mark: Any) -> str:
    found = text.splitlines()[mark.line][mark.column : mark.column + 1] if mark.line < len(text.splitlines()) else ""
    return found if found in ("[", "{") else "bracket"


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*", "", line)


def _content(line: str) -> bool:
    return bool(_without_comment(line).strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
