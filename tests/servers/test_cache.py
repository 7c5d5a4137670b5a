"""Downloads: checksums, no network if everything is cached, errors of one line."""

from __future__ import annotations

import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from backlog_spark.errors import BacklogError
from servers import __main__ as command
from servers import jars
from servers.cache import ChecksumError, cache_dir, check_sum, sha256_of

# SHA-256 of "abc": FIPS 180-2, appendix B.1.
_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BACKLOG_SPARK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _fake_ivy(monkeypatch: pytest.MonkeyPatch, content: bytes) -> list[str]:
    """Replace the download by one that brings `content`; returns the list that collects what was asked for."""
    asked: list[str] = []

    def run(artifacts: list[jars.Artifact], work: Path) -> None:
        (work / "out").mkdir()
        for artifact in artifacts:
            asked.append(artifact.file_name)
            (work / "out" / artifact.file_name).write_bytes(content)

    monkeypatch.setattr(jars, "_run_ivy", run)
    return asked


def test_cache_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BACKLOG_SPARK_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home/.cache/backlog_spark"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg/backlog_spark"
    monkeypatch.setenv("BACKLOG_SPARK_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"


def test_cache_directory_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BACKLOG_SPARK_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(BacklogError, match="BACKLOG_SPARK_CACHE"):
        cache_dir()


def test_wrong_sum_is_refused_by_name_and_both_sums(tmp_path: Path) -> None:
    path = tmp_path / "thing.jar"
    path.write_bytes(b"abc")
    assert sha256_of(path) == _ABC
    check_sum(path, _ABC)
    with pytest.raises(ChecksumError) as caught:
        check_sum(path, "0" * 64)
    for part in ("thing.jar", "0" * 64, _ABC):
        assert part in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_download_with_a_wrong_sum_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_ivy(monkeypatch, b"abd")
    with pytest.raises(ChecksumError, match=r"thing-1\.0\.jar"):
        jars.fetch([jars.Artifact("org", "thing", "1.0", _ABC)])
    assert [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_only_what_is_missing_or_damaged_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _fake_ivy(monkeypatch, b"abc")
    one, two = (jars.Artifact("org", name, "1.0", _ABC) for name in ("one", "two"))
    assert jars.fetch([one]) == [cache / "jars/one-1.0.jar"]
    assert [path.read_bytes() for path in jars.fetch([one, two])] == [b"abc", b"abc"]
    assert asked == ["one-1.0.jar", "two-1.0.jar"]
    (cache / "jars/two-1.0.jar").write_bytes(b"ab")
    assert jars.fetch([one, two])[1].read_bytes() == b"abc"
    assert asked == ["one-1.0.jar", "two-1.0.jar", "two-1.0.jar"]


@pytest.mark.process
def test_cached_jars_need_no_java_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = jars.delta_jars()

    def no_process(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", no_process)
    assert jars.delta_jars() == expected


def test_no_delta_jar_is_in_two_versions_on_the_class_path() -> None:
    pyspark = Path(jars._ivy_jar()).parent
    for jar in jars._DELTA:
        assert not list(pyspark.glob(f"{jar.name}-[0-9]*.jar")), f"pyspark has {jar.name} itself"


@pytest.mark.process
def test_unreachable_repository_is_one_clear_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy on a port that refuses connections: real Ivy, no network.
    proxy = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=9"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", proxy)
    with pytest.raises(BacklogError, match=r"cannot download mysql-connector-java-8\.0\.15\.jar") as caught:
        jars.jdbc_jar()
    assert "Connection refused" in str(caught.value)
    assert "repo1.maven.org" in str(caught.value)
    assert "\n" not in str(caught.value)


def _java_that_says(text: str, at: Path) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    at.chmod(at.stat().st_mode | stat.S_IXUSR)


@pytest.mark.process
@pytest.mark.parametrize("banner", ['openjdk version "11.0.20" 2023-07-18', 'java version "1.8.0_381"', "nonsense"])
def test_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, banner: str) -> None:
    _java_that_says(banner, tmp_path / "bin/java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BacklogError, match="Java 17 or newer"):
        jars.java_executable()


@pytest.mark.process
@pytest.mark.parametrize("banner", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19'])
def test_new_java_is_taken_from_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, banner: str) -> None:
    _java_that_says(banner, tmp_path / "bin/java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jars.java_executable() == str(tmp_path / "bin/java")


@pytest.mark.process
def test_prepare_without_java_says_so_in_one_line(cache: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "servers", "prepare"],
        env={"PATH": str(tmp_path), "BACKLOG_SPARK_CACHE": str(cache), "HOME": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith("error: Java 17 or newer is needed, and there is no java on PATH.")


def test_prepare_refuses_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["prepair"]) == 2
    assert "usage:" in capsys.readouterr().err
