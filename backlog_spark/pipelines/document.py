"""Reads YAML with the place of each value, and replaces variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.variables import VARIABLE, Missing, Variable
from backlog_spark.pipelines.yaml_faults import explained

if TYPE_CHECKING:
    from backlog_spark.streamsql.refusals import SqlError

__all__ = ["Document", "Fault", "Path", "PipelineError", "Place"]

Path = tuple[str | int, ...]
"""Keys and list indexes from the top of the file to a value."""

# Shorter values are in too many words to be a secret, such as "1" or "db".
_SHORTEST_HIDDEN: Final = 4


@dataclass(frozen=True, order=True)
class Place:
    """A place in the file. Both count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Fault:
    """A mistake in a file.

    Parameters
    ----------
    place : Place
    problem : str
        What is wrong. Never a value that may be secret.
    hint : str
        What to write instead.
    """

    place: Place
    problem: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.problem} {self.hint}".strip()


class PipelineError(BacklogError):
    """A file that is no valid pipeline.

    Parameters
    ----------
    file : str
        Its name.
    faults : sequence of Fault
        Everything that is wrong.
    """

    def __init__(self, file: str, faults: list[Fault]) -> None:
        self.file = file
        self.faults = tuple(sorted(faults, key=lambda fault: fault.place))
        super().__init__("\n".join(f"{file}:{f.place.line}:{f.place.column}: {f}" for f in self.faults))


@dataclass
class Document:
    """A YAML file's values, and where they are.

    Parameters
    ----------
    data : object
        Mappings, lists and scalars. A scalar with a variable is a text.
    texts : dict
        Each scalar as it is written, with its variables replaced: ``010`` and ``yes`` stay what they are.
    places : dict
        Where a key's name or a list's item begins.
    values : dict
        Where a value begins.
    names : dict
        How the file names a key, if not by the path's last part: an option of Flink's.
    lines : dict
        Where each line of a text begins, if the text stands in the file as it is, such as SQL in a script.
    hidden : dict
        Values of variables, and how the file names them.
    faults : list
        Mistakes that were found while reading.
    """

    data: Any = None
    texts: dict[Path, str] = field(default_factory=dict, repr=False)
    places: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)
    names: dict[Path, str] = field(default_factory=dict)
    lines: dict[Path, tuple[Place, ...]] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict, repr=False)
    faults: list[Fault] = field(default_factory=list)

    @classmethod
    def read(cls, text: str, file: str, environment: Mapping[str, str]) -> Document:
        """Read a file's text.

        Raises
        ------
        PipelineError
            It is no YAML, or not a single document.
        """
        made = cls()
        try:
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
            if node is not None:
                reader = _Reader(made, loader, environment)
                reader.check_keys(node)
                made.data = reader.value(node, (), frozenset())
        except yaml.MarkedYAMLError as error:
            line, column, problem, hint = explained(error, text)
            fault = Fault(Place(line, column), problem, hint)
        except yaml.reader.ReaderError as error:
            before = text[: error.position]
            place = Place(before.count("\n") + 1, len(before) - before.rfind("\n"))
            character = f"U+{ord(text[error.position]):04X}"
            fault = Fault(
                place, f"The character {character} is not allowed.", "Write it as an escape in double quotes."
            )
        except RecursionError:
            fault = Fault(Place(1, 1), "The file is nested too deeply.", "A pipeline has a few levels.")
        else:
            return made
        raise PipelineError(file, [fault])

    def place(self, path: Path) -> Place:
        """Where a key or item is; that of the nearest one around it if the file lacks it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(1, 1))

    def data_at(self, path: Path) -> Any:
        """The value at a key or item."""
        found = self.data
        for step in path:
            found = found[step]
        return found

    def fault(self, path: Path, problem: str, hint: str = "") -> None:
        """Note a mistake at a key or item."""
        if path in self.names:
            ours, theirs = path[-1], self.names[path]
            problem = re.sub(rf"^{re.escape(str(ours))}(?=: )", lambda _: theirs, problem)
            hint = hint.replace(f"leave out {ours}.", f"leave out {theirs}.")
        self.faults.append(Fault(self.place(path), self.redacted(problem), self.redacted(hint)))

    def sql_fault(self, path: Path, error: SqlError) -> Fault:
        """A mistake in SQL. Its place is that of the SQL if the text does not stand in the file as it is."""
        if path not in self.lines:
            return Fault(self.place(path), self.redacted(error.problem), self.redacted(error.hint))
        begin = self.lines[path][error.line - 1]
        place = Place(begin.line, begin.column + error.column - 1)
        return Fault(place, self.redacted(error.without_place), self.redacted(error.hint))

    def redacted(self, text: str) -> str:
        """A text without values of variables: these are shown as the file names them."""
        for value in sorted(self.hidden, key=len, reverse=True):
            text = text.replace(value, self.hidden[value])
        return text

    def with_variables(self, text: str, path: Path, environment: Mapping[str, str]) -> str:
        """A text with the values of its variables. A variable that is missing is a fault."""
        return VARIABLE.sub(lambda found: self._variable(found, path, environment), text)

    def _variable(self, found: re.Match[str], path: Path, environment: Mapping[str, str]) -> str:
        try:
            variable = Variable.of(found, environment)
        except Missing as missing:
            self.fault(path, missing.problem, missing.hint)
            return ""
        if variable.is_given and len(variable.value) >= _SHORTEST_HIDDEN:
            self.hidden[variable.value] = re.sub(":-[^}]*", "", found[0])
        return variable.value


class _Reader:
    def __init__(self, document: Document, loader: yaml.SafeLoader, environment: Mapping[str, str]) -> None:
        self._document = document
        self._loader = loader
        self._environment = environment
        self._checked: set[int] = set()

    def check_keys(self, node: yaml.Node) -> None:
        """Note keys that are written twice. Before a `value`: it adds the keys of << to the mappings' own."""
        if isinstance(node, yaml.ScalarNode) or id(node) in self._checked:
            return
        self._checked.add(id(node))
        seen: set[str] = set()
        for each in node.value:
            key, value = each if isinstance(node, yaml.MappingNode) else (None, each)
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    self._document.faults.append(Fault(_place(key), f"{key.value} is written twice.", "Write it once."))
                seen.add(key.value)
            self.check_keys(value)

    def value(self, node: yaml.Node, path: Path, around: frozenset[int]) -> Any:
        document, place = self._document, _place(node)
        document.values[path] = place
        document.places.setdefault(path, place)
        if id(node) in around:
            document.fault(path, "This alias contains itself.")
            return None
        around |= {id(node)}
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, around)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index), around) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path, around: frozenset[int]) -> dict[str, Any]:
        document = self._document
        self._loader.flatten_mapping(node)  # type: ignore[no-untyped-call,unused-ignore]
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                document.faults.append(Fault(_place(key), "A key must be a name."))
                continue
            name = str(key.value)
            document.places[*path, name] = _place(key)
            found[name] = self.value(value, (*path, name), around)
        return found

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        document = self._document
        try:  # JSON writes a character outside of the first plane as two escapes, which YAML takes for two characters
            text = str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            document.fault(path, "Half of a surrogate pair is no character.", "Write the character itself.")
            text = ""
        node.value = text
        made = document.with_variables(text, path, self._environment)
        document.texts[path] = made
        if made != text:
            return made
        try:
            return self._loader.construct_object(node)  # type: ignore[no-untyped-call,unused-ignore]
        except (yaml.YAMLError, ValueError, LookupError, AttributeError):  # such as !!int x, !!timestamp x
            return text


def _place(node: yaml.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)
