"""Who may import whom: rooms in their order, connectors the contract alone, and no circle anywhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Lowest first: a room imports only from those before it.
ROOMS = (
    "errors", "common", "spi", "model", "decide", "state", "operators", "spark", "handover", "sinks", "runner",
    "native", "api", "verification", "streamsql", "pipelines", "tools",
)  # fmt: skip
FOR_CONNECTORS = ("connectors", "errors", "common", "spi")


def modules() -> dict[str, Path]:
    found = {}
    for top in ("backlog_spark", "connectors", "servers"):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            # backlog_spark/connectors is a link to the folder.
            found[f"backlog_spark.{name}" if top == "connectors" else name] = path
    return found


def imported(module: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """What a module imports: at its top, in functions and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                if name in known:
                    yield name
                elif base in known:
                    yield base


def arrows() -> dict[str, set[str]]:
    known = modules()
    return {module: set(imported(module, path, known)) - {module} for module, path in known.items()}


ARROWS = arrows()


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "backlog_spark" else parts[0]


def test_every_module_is_in_a_room() -> None:
    assert {room(module) for module in ARROWS} - {"backlog_spark", "connectors", "servers"} == set(ROOMS)


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_lower_rooms_alone(name: str) -> None:
    allowed = {*ROOMS[: ROOMS.index(name) + 1]}
    new = {(m, t) for m, targets in ARROWS.items() if room(m) == name for t in targets if room(t) not in allowed}
    assert not new


def test_connectors_import_the_contract_alone() -> None:
    new = {
        (module, target)
        for module, targets in ARROWS.items()
        if room(module) == "connectors"
        for target in targets
        if room(target) not in FOR_CONNECTORS
    }
    assert not new


def test_the_servers_stand_beside_the_package() -> None:
    """They run from a checkout: whoever installs the package does not get them."""
    into = {(m, t) for m, targets in ARROWS.items() if room(m) != "servers" for t in targets if room(t) == "servers"}
    assert not into
    needed = {room(t) for m, targets in ARROWS.items() if room(m) == "servers" for t in targets}
    assert needed == {"servers", "errors"}


def test_a_connector_imports_no_other() -> None:
    def connector(module: str) -> str:
        return ".".join(module.split(".")[1:3])

    new = {
        (module, target)
        for module, targets in ARROWS.items()
        if room(module) == "connectors"
        for target in targets
        if room(target) == "connectors" and connector(target) not in (connector(module), "connectors")
    }
    assert not new


def test_there_is_no_circle() -> None:
    left = {module: set(targets) for module, targets in ARROWS.items()}
    while free := [module for module, targets in left.items() if not targets]:
        for module in free:
            del left[module]
        for targets in left.values():
            targets.difference_update(free)
    # What only leads to a circle is not in it.
    while unused := [module for module in left if not any(module in targets for targets in left.values())]:
        for module in unused:
            del left[module]
    assert not left


def test_one_room_touches_the_jvm() -> None:
    """Each reaches past PySpark's public API: another version of Spark may have none of it."""
    private = re.compile(r"_jvm|_jdf|_jsparkSession|py4j|\._j(sc|sq|conf|reader|writer)\b|\._gateway\b")
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for module, path in modules().items()
        if room(module) != "spark"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if private.search(line)
    }
    assert not found
