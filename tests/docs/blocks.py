"""The Python examples of a page, run with a test's inputs in place of the reader's."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]


def python_blocks(page: Path) -> list[str]:
    """The blocks marked ``python``, in order."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


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
