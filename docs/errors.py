"""Makes the pages of all errors: the texts are read from the code."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["pages"]

_ROOT = Path(__file__).parents[1]
# Page below docs/errors/ -> heading, and the folders whose errors it has.
_PAGES = {
    "mysql_cdc": ("MySQL and MariaDB", ("connectors/mysql_cdc",)),
    "hybrid": ("Files, Delta and Kafka (`hybrid`)", ("connectors/hybrid",)),
    "native": ("Rules and phases of Spark's own readers", ("backlog_spark/native",)),
    "operators": (
        "Streams, operators and SQL",
        ("backlog_spark/api", "backlog_spark/operators", "backlog_spark/streamsql"),
    ),
    "queries": (
        "Queries and checkpoints",
        tuple(f"backlog_spark/{room}" for room in ("model", "decide", "state", "handover", "runner", "spi")),
    ),
    "targets": ("Sinks and verify", ("backlog_spark/sinks", "backlog_spark/verification")),
    "spark": ("Spark, session and packages", ("backlog_spark/common", "backlog_spark/spark")),
    "command": ("Command line and pipelines", ("backlog_spark/tools", "backlog_spark/pipelines")),
}
_TOP = """# All errors

These pages list the texts of the errors that backlog_spark raises, with what to do. They are made from the code. `…`
stands for a value. An error about a setting begins with the setting and the value that was found, for example
`chunkSize = '0': must be at least 1.` Errors of other packages and general problems are in
[Troubleshooting](troubleshooting.md).

| page | errors |
|---|---|
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


def pages() -> dict[str, str]:
    """File name -> text: the list of the pages, and a page for each part."""
    made, top = {}, _TOP
    for name, (heading, folders) in _PAGES.items():
        files = (file for folder in folders for file in (_ROOT / folder).rglob("*.py"))
        found = {error for file in files for error in _errors(ast.parse(file.read_text()))}
        rows = [f"| {_cell(problem)} | {_cell(hint)} |" for problem, hint in sorted(found, key=_alphabetical)]
        made[f"errors/{name}.md"] = "\n".join(
            [f"# Errors: {heading}\n", "`…` stands for a value.\n", "| error | what to do |", "|---|---|", *rows, ""]
        )
        top += f"| [{heading}](errors/{name}.md) | {len(found)} |\n"
    return {"errors.md": top, **made}
