"""The code blocks of a page. Its Python examples run with a test's inputs in place of the reader's."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each code block, in order. An indented block has no language."""
    found = MarkdownIt("commonmark").parse(page.read_text())
    return [(token.info, token.content) for token in found if token.type in ("fence", "code_block")]


def spans(page: Path) -> list[str]:
    """The code within the text, such as names and commands, in order. Tables too, whose cells are text here."""
    found = MarkdownIt("commonmark").parse(page.read_text())
    return [part.content for token in found for part in token.children or () if part.type == "code_inline"]


def python_blocks(page: Path) -> list[str]:
    """The blocks marked ``python``, in order."""
    return [code for language, code in blocks(page) if language == "python"]


def run(code: str, names: dict[str, Any], inputs: Mapping[str, Any]) -> None:
    """Execute ``code``, but ``inputs`` take the place of the sources of the same names that it declares."""
    tree = ast.parse(code)
    declared = {}
    for each in tree.body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
            called, target = ast.unparse(each.value.func), ast.unparse(each.targets[0])
            if called == "bs.source" and target in inputs:
                declared[target] = each
    assert declared.keys() == inputs.keys(), f"the page declares {sorted(declared)}"
    for name, each in declared.items():
        each.value = ast.Name(f"_input_{name}", ast.Load())
    given = {f"_input_{name}": value for name, value in inputs.items()}
    names |= given
    exec(compile(ast.fix_missing_locations(tree), "<page>", "exec"), names)
    for name in given:
        del names[name]
