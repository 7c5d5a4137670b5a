"""Which files a phase reads, and in which order."""

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from backlog_spark.common.fsspec_stores import FsspecStore
from backlog_spark.common.stores import LocalStore, store_of
from backlog_spark.connectors.hybrid.files.found import gathered
from backlog_spark.connectors.hybrid.files.listing import Listed, expand_braces, split_paths, walk_files
from backlog_spark.connectors.hybrid.files.partitioning import values_in
from backlog_spark.errors import BacklogError, SettingError


def list_files(*arguments: Any, **options: Any) -> list[Listed]:
    """In reading order."""
    found = {file.found.path: file for file in walk_files(*arguments, **options)}
    return [found[path] for path in gathered(found.values(), ["modified", "path"]).column("path").to_pylist()]


def put(root: Path, *names: str) -> None:
    """Write files, each one second newer than the one before."""
    for second, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        os.utime(path, (1_700_000_000 + second,) * 2)


def listed(root: Path, *patterns: str, **options: object) -> list[str]:
    found = list_files(LocalStore(), [str(root / pattern) for pattern in patterns], **options)  # type: ignore[arg-type]
    return [file.found.path.removeprefix(f"{root}/") for file in found]


def test_oldest_first_then_by_path(tmp_path: Path) -> None:
    put(tmp_path, "z", "b", "a")
    os.utime(tmp_path / "b", (1_700_000_002,) * 2)
    assert listed(tmp_path, "") == ["z", "a", "b"]


def test_directories_are_read_with_all_beneath_and_hidden_names_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, "a", "d/e/f", "_SUCCESS", ".x.crc", "_temporary/0/b", ".git/c", "d/_x", "_p=1/g", "h._COPYING_")
    (tmp_path / "empty").write_text("")
    assert listed(tmp_path, "") == ["a", "d/e/f", "_p=1/g"]


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["*.csv"], ["a1.csv", "a2.csv", "b1.csv"]),
        (["a?.csv"], ["a1.csv", "a2.csv"]),
        (["[!a]*.csv"], ["b1.csv"]),
        (["{a,b}1.csv"], ["a1.csv", "b1.csv"]),
        (["d*"], ["d1/x.csv", "d2/y/z.csv"]),
        (["d*/*.csv"], ["d1/x.csv"]),
        (["*/y/*"], ["d2/y/z.csv"]),
        (["a*", "a1*"], ["a1.csv", "a2.csv"]),
        (["*/_h/*"], ["d1/_h/z.csv"]),
    ],
)
def test_patterns_match_within_a_name(tmp_path: Path, patterns: list[str], found: list[str]) -> None:
    put(tmp_path, "a1.csv", "a2.csv", "b1.csv", "d1/x.csv", "d2/y/z.csv", "_c1.csv", "d1/_h/z.csv")
    assert listed(tmp_path, *patterns) == found


def test_commas_between_paths_but_not_within_braces() -> None:
    assert split_paths("/a, /b/{c,d{e,f}} ,,/g") == ["/a", "/b/{c,d{e,f}}", "/g"]
    assert expand_braces("/{a,b{c,d}}x") == ["/ax", "/bcx", "/ax", "/bdx"]


def test_names_are_filtered(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "d/b.csv", "d/b.json")
    assert listed(tmp_path, "", name_pattern="*.csv") == ["a.csv", "d/b.csv"]


@pytest.mark.parametrize(
    ("pattern", "base", "values"),
    [
        ("", "", (("day", "1"), ("hour", "2"))),
        ("day=1", "", (("hour", "2"),)),
        ("day=*/hour=2", "", (("day", "1"), ("hour", "2"))),
        ("day=1/hour=2/f", "", ()),
        ("day=1/hour=2/f", ".", (("day", "1"), ("hour", "2"))),
        ("day=1/*", ".", (("day", "1"), ("hour", "2"))),
    ],
)
def test_partition_columns_are_below_the_base(
    tmp_path: Path, pattern: str, base: str, values: tuple[tuple[str, str], ...]
) -> None:
    put(tmp_path, "day=1/hour=2/f")
    (file,) = list_files(LocalStore(), [str(tmp_path / pattern)], base=str(tmp_path / base) if base else "")
    assert values_in(file.found.path[file.below :]) == values
    (file,) = list_files(LocalStore(), [str(tmp_path / pattern)], has_partitions=False)
    assert values_in(file.found.path[file.below :]) == ()


def test_a_base_elsewhere_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a/f", "b/f")
    with pytest.raises(BacklogError, match="is not below basePath"):
        list_files(LocalStore(), [str(tmp_path / "a")], base=str(tmp_path / "b"))


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BacklogError, match=r"gone': is not there\. .*allowEmpty"):
        list_files(LocalStore(), [str(tmp_path / "gone")])
    with pytest.raises(BacklogError, match=r"gone': is not there\. .*allowEmpty"):
        list_files(FsspecStore(fsspec.filesystem("memory")), ["/gone"])


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        ("nothing*", {}),
        ("a.csv/*", {}),
        ("*/_?/*", {}),
        ("*.json", {}),
        ("empty*", {}),
        ("hidden*", {}),
        ("dir*", {}),
        ("dir1", {}),
        ("{nothing,none}*", {}),
        ("", {"name_pattern": "*.json"}),
    ],
)
def test_a_path_without_a_file_is_refused(tmp_path: Path, pattern: str, options: dict[str, str]) -> None:
    put(tmp_path, "a.csv", "hidden/_x", "hidden/.y/z", "d/_h/z.csv")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "dir1/dir2").mkdir(parents=True)
    setting = "pathGlobFilter" if options else "path"
    with pytest.raises(SettingError, match=rf"^{setting} = .*no file .*allowEmpty=true\."):
        listed(tmp_path, pattern, **options)
    # Beside others as well: a list of months in which one is misspelt.
    with pytest.raises(SettingError, match=rf"^{setting} = .*no file .*allowEmpty=true\."):
        listed(tmp_path, "a.csv", pattern, **options)
    assert listed(tmp_path, pattern, may_be_empty=True, **options) == []


def test_a_path_that_is_not_there_may_be_allowed(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    assert listed(tmp_path, "gone", "gone/too", "a.csv", may_be_empty=True) == ["a.csv"]
    assert list_files(FsspecStore(fsspec.filesystem("memory")), ["/gone"], may_be_empty=True) == []
    # A store without directories has none that is empty.
    with pytest.raises(SettingError, match=r"path = 'memory:///gone\*': no file is there"):
        list_files(FsspecStore(fsspec.filesystem("memory")), ["/gone*"])


@pytest.mark.parametrize(("log", "words"), [("_delta_log", "Delta table"), ("_spark_metadata", "Spark stream")])
def test_a_directory_that_keeps_a_log_of_its_files(tmp_path: Path, log: str, words: str) -> None:
    put(tmp_path, "a.parquet", f"{log}/0")
    with pytest.raises(BacklogError, match=words):
        listed(tmp_path, "")
    assert listed(tmp_path, "*") == ["a.parquet"]


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_the_same_files_through_fsspec(tmp_path: Path, scheme: str) -> None:
    store, root = FsspecStore(fsspec.filesystem(scheme)), f"{tmp_path}/root"
    for name in ("a1.csv", "d/x=1/b.csv", "_hidden/c.csv", "d/.e.csv"):
        store.write(f"{root}/{name}", b"x")
    names = [file.found.path.removeprefix(f"{root}/") for file in list_files(store, [root])]
    assert names == ["a1.csv", "d/x=1/b.csv"]
    assert [file.found.path for file in list_files(store, [f"{root}/*/x=*/*"])] == [f"{root}/d/x=1/b.csv"]
    found = {file.found.path: file.found.tag for file in list_files(store, [root])}
    assert {path: store.stat(path).tag for path in found} == found  # type: ignore[union-attr]
    assert store_of(store.name(f"{root}/a1.csv"), {})[1] == f"{root}/a1.csv"


def test_local_paths_with_and_without_a_scheme(tmp_path: Path) -> None:
    for url in (str(tmp_path), f"file://{tmp_path}", f"file:{tmp_path}"):
        assert store_of(url, {})[1] == str(tmp_path)


def test_a_file_system_that_is_not_installed_or_not_known() -> None:
    with pytest.raises(BacklogError, match="Install fsspec's package"):
        store_of("gs://bucket/a", {})
    with pytest.raises(BacklogError, match="fsspec knows no such file system as nosuch"):
        store_of("nosuch://a", {"key": "hunter2"})
