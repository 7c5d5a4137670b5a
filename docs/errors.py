"""Makes the page of all errors: the texts are read from the code."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["page"]

_ROOT = Path(__file__).parents[1]
# Heading -> folders and modules whose errors it has. The first match counts.
_PARTS = {
    "MySQL and MariaDB": ("connectors/mysql_cdc",),
    "Files, Delta and Kafka (`hybrid`)": ("connectors/hybrid",),
    "Delta sinks": ("backlog_spark/sinks",),
    "SQL": ("backlog_spark/streamsql",),
    "Rules and phases of Spark's own readers": ("backlog_spark/native",),
    "Queries, operators and checkpoints": (
        *(f"backlog_spark/{room}" for room in ("api", "model", "decide", "state", "operators", "runner", "spi")),
    ),
    "Spark, session and packages": ("backlog_spark/common", "backlog_spark/spark", "backlog_spark/startup"),
    "Command line and pipelines": ("backlog_spark/tools", "backlog_spark/pipelines"),
}
_TOP = """# All errors

This page lists the texts of the errors that backlog_spark raises, with what to do. It is made from the code. `…` stands
for a value. An error about a setting begins with the setting and the value that was found, for example
`chunkSize = '0': must be at least 1.` Errors of other packages and general problems are in
[Troubleshooting](troubleshooting.md).

"""


def _text(node: ast.expr | None) -> str:
    """A text of the code, with `…` where the program puts a value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "" if node is None else "…"


def _errors(tree: ast.Module) -> set[tuple[str, str]]:
    """(problem, next step) of each error that a module makes."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        first = {"BacklogError": 0, "SettingError": 2}.get(node.func.id)
        if first is None:
            continue
        given = dict(enumerate(node.args)) | {word.arg: word.value for word in node.keywords}
        problem = _text(given.get(first, given.get("problem")))
        hint = _text(given.get(first + 1, given.get("hint")))
        if first:
            setting = _text(given.get(0, given.get("setting")))
            problem = f"{setting} = …: {problem}"
        if problem.strip("… =:."):
            found.add((problem, hint))
    return found


def _cell(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("`", "\\`")
    return " ".join(escaped.replace("<", "&lt;").replace("[", "\\[").split())


def _alphabetical(error: tuple[str, str]) -> tuple[str, str, str]:
    return error[0].lower(), *error


def page() -> str:
    """The page, without the generator's own imports of Spark."""
    lines = [_TOP]
    for heading, folders in _PARTS.items():
        found: set[tuple[str, str]] = set()
        for folder in folders:
            for file in (_ROOT / folder).rglob("*.py"):
                found |= _errors(ast.parse(file.read_text()))
        lines += [f"## {heading}\n", "| error | what to do |", "|---|---|"]
        lines += [f"| {_cell(problem)} | {_cell(hint)} |" for problem, hint in sorted(found, key=_alphabetical)]
        lines.append("")
    return "\n".join(lines)
