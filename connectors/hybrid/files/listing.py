"""Lists the files of a phase: expands patterns, walks directories, and skips hidden names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase, translate

from backlog_spark.common.stores import FileFound, Store, is_hidden
from backlog_spark.errors import BacklogError, SettingError

__all__ = ["Listed", "expand_braces", "fixed_part", "split_paths", "walk_files"]

_WILD = re.compile(r"[*?\[{]")
# Directories whose log decides which files count. A listing is not enough.
_LOGS = {
    "_delta_log": "is a Delta table. Its directory also has files that are not in its log",
    "_spark_metadata": "was written by a Spark stream. It may have files of failed attempts",
}

Modified = tuple[datetime | None, datetime | None]

_EMPTY = "If there may be no history, set allowEmpty=true."


@dataclass(frozen=True, slots=True)
class Listed:
    """A file, and the index in its path from which directories may be partition columns."""

    found: FileFound
    below: int


def split_paths(text: str) -> list[str]:
    """Split paths at commas. A comma in braces belongs to the pattern."""
    paths, depth, start = [], 0, 0
    for at, character in enumerate(text + ","):
        if character == "," and (depth <= 0 or at == len(text)):
            paths.append(text[start:at].strip())
            start = at + 1
        depth += (character == "{") - (character == "}")
    return [path for path in paths if path]


def expand_braces(pattern: str) -> list[str]:
    """``a{b,c}`` as ``ab`` and ``ac``, as in Hadoop's patterns."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [path for part in found[1].split(",") for path in expand_braces(before + part + after)]


def walk_files(
    store: Store,
    paths: Sequence[str],
    *,
    base: str = "",
    name_pattern: str = "",
    has_partitions: bool = True,
    may_be_empty: bool = False,
    modified: Modified = (None, None),
    after: str = "",
) -> Iterator[Listed]:
    """All files in any order, one by one. A file that several paths have comes several times.

    Parameters
    ----------
    store : Store
    paths : sequence of str
        Paths in the store, with ``*``, ``?``, ``[...]`` and ``{a,b}``, which do not match a ``/``. Directories are read
        with everything below them. Names that begin with ``_`` or ``.`` and empty files are skipped.
    base : str
        Directory below which ``name=value`` directories are partition columns. "": the longest one without a wildcard.
    name_pattern : str
        Pattern for file names.
    has_partitions : bool
        Whether such directories are partition columns at all.
    may_be_empty : bool
        Whether a path may have no file, or not exist.
    after : str
        Files whose paths are not greater may be left out.
    modified : tuple of (datetime or None, datetime or None)
        Only files that were changed after the first and before the second time.

    Raises
    ------
    BacklogError
        If a path has no file or is not below ``base``, or if a directory has a log of its files.
    """
    wanted = re.compile(translate(name_pattern)) if name_pattern else None
    for path in paths:
        has_any = has_named = False
        for pattern in expand_braces(path):
            fixed = fixed_part(path)
            for found in _matches(store, pattern, may_be_empty, after):
                if base and not found.path.startswith(base.rstrip("/") + "/"):
                    raise BacklogError(
                        f"{store.name(found.path)} is not below basePath {store.name(base)}.",
                        "Set basePath to a directory that all paths are in.",
                    )
                name = found.path.rpartition("/")[2]
                has_any = has_any or found.size > 0
                if found.size and (wanted is None or wanted.match(name)):
                    has_named = True
                    below = len((base or fixed).rstrip("/")) if has_partitions else len(found.path) - len(name)
                    if _is_of_time(store, found, modified):
                        yield Listed(found, below)
        if has_any and not has_named and not may_be_empty:
            raise SettingError("pathGlobFilter", name_pattern, f"no file of {store.name(path)} has that name.", _EMPTY)
        if not has_named and not may_be_empty:
            raise SettingError(
                "path", store.name(path), "no file is there. Names that begin with _ or . and empty files do not "
                "count.", f"Correct it. {_EMPTY}",
            )  # fmt: skip


def _is_of_time(store: Store, found: FileFound, modified: Modified) -> bool:
    after, before = modified
    if after is None and before is None:
        return True
    if not found.modified:
        name = "modifiedBefore" if after is None else "modifiedAfter"
        raise SettingError(
            name, before if after is None else after,
            f"the file system does not report when {store.name(found.path)} was changed.", f"Leave out {name}.",
        )  # fmt: skip
    return (after is None or found.modified > after.timestamp()) and (
        before is None or found.modified < before.timestamp()
    )


def fixed_part(pattern: str) -> str:
    """The longest directory of a pattern without a wildcard. For a path without any, the path itself."""
    wild = _WILD.search(pattern)
    return pattern[: wild.start()].rpartition("/")[0] if wild else pattern


def _matches(store: Store, pattern: str, may_be_gone: bool, after: str) -> Iterator[FileFound]:
    """Files that match a pattern without braces, or are below a directory that matches it."""
    if not _WILD.search(pattern):
        found = store.stat(pattern)
        if found is None and any(True for _ in store.tree(pattern)):
            found = FileFound(pattern, True, 0, "", 0.0)  # a prefix in a store without directories
        if found is None and may_be_gone:
            return
        if found is None:
            raise SettingError("path", store.name(pattern), "is not there.", f"Correct it. {_EMPTY}")
        if found.is_directory:
            _check_has_no_log(store, pattern)
        yield from _beneath(store, found, after)
        return
    fixed = fixed_part(pattern)
    level = [FileFound(fixed, True, 0, "", 0.0)]
    for part in pattern[len(fixed) :].strip("/").split("/"):
        level = [
            child
            for directory in level
            if directory.is_directory
            for child in store.children(directory.path or "/")
            if _is_match(child.path.rstrip("/").rpartition("/")[2], part)
        ]
    for found in level:
        yield from _beneath(store, found, after)


def _is_match(name: str, part: str) -> bool:
    # A hidden name must be written out.
    return fnmatchcase(name, part) and (not is_hidden(name) or not _WILD.search(part))


def _beneath(store: Store, found: FileFound, after: str) -> Iterator[FileFound]:
    if found.is_directory:
        yield from store.tree(found.path, after)
    else:
        yield found


def _check_has_no_log(store: Store, path: str) -> None:
    for name, problem in _LOGS.items():
        if store.stat(f"{path.rstrip('/')}/{name}") is not None:
            raise BacklogError(
                f"path: {store.name(path)} {problem}.",
                "Read a Delta table with a Delta phase. Or name the files with a wildcard, such as "
                f"{store.name(path).rstrip('/')}/*, to read them all.",
            )
