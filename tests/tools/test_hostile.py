"""The whole command with arguments that are wrong in every way: one clear line each, and nothing for the terminal."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import s3fs

from backlog_spark.errors import BacklogError
from backlog_spark.spi.examination import Examination, Finding, FoundTable, Severity
from backlog_spark.tools import output
from backlog_spark.tools.command import main
from tests.tools.stories import checkpoint_of, hostile, story

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")
BAD = "a\x1b]0;owned\x07\x9b2Jb"
SHOWN = r"a\x1b]0;owned\x07\x9b2Jb"
FILES = ["run", "check", "reset", "verify"]
CHECKPOINTS = ["inspect", "report", "ui"]


class Told(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    """The command in this process, as its script starts it."""

    def made(*arguments: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["backlog-spark", *arguments])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
        told = Told(status, *capsys.readouterr())
        assert not CONTROL.search(told.out + told.err)
        return told

    return made


def one_line(told: Told, expected: str) -> None:
    assert told.status == 1, told
    assert told.err.startswith("error: "), told
    assert told.err.count("\n") == 1, told
    assert re.search(expected, told.err), told


@pytest.mark.slow
@pytest.mark.parametrize("command", FILES)
def test_what_is_no_pipeline(call: Callable[..., Told], command: str, tmp_path: Path) -> None:
    file = tmp_path / BAD
    contents = {
        "cannot be read: it is not UTF-8": b"\xff\xfe\x00binary",
        "A pipeline is a mapping": b"",
        "U\\+0000 is not allowed": b"\x00" * 100,
        "nested too deeply": b"[" * 100_000,
        "more than 1,000,000 bytes": b"a: b\n" * 1_000_000,
    }
    cases = [(tmp_path / "missing", "No such file"), (tmp_path, "directory"), (file / "below", "Not a directory")]
    for where, expected in cases:
        file.write_text("x")
        answered(call(command, str(where)), command, expected)
    for expected, content in contents.items():
        file.write_bytes(content)
        answered(call(command, str(file)), command, expected)
    answered(call(command, "/dev/zero"), command, "more than")


def answered(told: Told, command: str, expected: str) -> None:
    if command == "check":  # it shows all findings
        assert told.status == 1
        assert re.search(expected, told.out), told
    else:
        one_line(told, expected)


@pytest.mark.parametrize("command", CHECKPOINTS)
def test_what_is_no_checkpoint(call: Callable[..., Told], command: str, tmp_path: Path) -> None:
    file = tmp_path / BAD
    file.write_text("x")
    missing = [] if command == "ui" else ["missing"]  # it waits
    for where in (*missing, BAD, f"{BAD}/below", ""):
        one_line(call(command, str(tmp_path / where)), "there is no checkpoint of a streaming query")
    one_line(call(command, "foo://x"), "CHECKPOINT = 'foo://x': cannot be opened: Protocol not known: foo")
    one_line(call(command, "github://x"), "cannot be opened: .*missing 2 required")
    one_line(call(command, "sftp://host/x"), "needs the Python package paramiko")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        one_line(call(command, f"http://127.0.0.1:{unused.getsockname()[1]}/x"), "Cannot connect")


def test_a_store_without_credentials(
    call: Callable[..., Told], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()  # an instance keeps the credentials of its first use
    one_line(call("inspect", "s3a://bucket/x"), "NoCredentialsError: Unable to locate credentials")
    file = tmp_path / "p.yaml"
    file.write_text(
        "source: {type: rate}\nsink: {type: delta_append, path: /t}\npipeline: {name: n, checkpoint: s3://bucket/x}\n"
    )
    one_line(call("reset", str(file)), "NoCredentialsError: Unable to locate credentials")
    file.write_text(file.read_text().replace("s3:", "foo:"))
    one_line(call("reset", str(file)), "checkpoint = 'foo://bucket/x': cannot be opened")


def test_a_page_that_cannot_be_written(call: Callable[..., Told], tmp_path: Path) -> None:
    root = checkpoint_of(tmp_path / "c", story())
    one_line(call("report", str(root), "-o", f"{tmp_path}/{BAD}/x"), "No such file or directory")
    one_line(call("report", str(root), "-o", str(tmp_path)), "Is a directory")


def test_damaged_checkpoints(call: Callable[..., Told], tmp_path: Path) -> None:
    root = checkpoint_of(tmp_path / "c", story())
    (root / "offsets" / "99").write_bytes(b"\xff\xfe")
    one_line(call("inspect", str(root)), "damaged|cannot be read")


@pytest.mark.parametrize("arguments", [["--" + BAD], ["x" + BAD], ["init", "--port", BAD], ["ui"]])
def test_a_wrong_command_line(call: Callable[..., Told], arguments: list[str]) -> None:
    told = call(*arguments)
    assert told.status == 2
    assert told.err.startswith("Usage: ")
    assert "\nerror: " in told.err


def test_a_fault_of_the_package_keeps_its_traceback(call: Callable[..., Told], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(location: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("backlog_spark.tools.stored_checkpoint.StoredCheckpoint", broken)
    with pytest.raises(ZeroDivisionError):
        call("inspect", "/x")


def test_names_of_a_checkpoint_reach_no_terminal(call: Callable[..., Told], tmp_path: Path) -> None:
    root = str(checkpoint_of(tmp_path / BAD, hostile(story(), BAD)))
    for arguments in (["inspect", root], ["report", root, "-o", "-"]):
        told = call(*arguments)
        assert told.status == 0, told
        assert SHOWN in told.out
    assert json.loads(call("inspect", root, "--json").out)["query"] == BAD


@pytest.mark.process
def test_names_of_a_server_reach_no_terminal_and_are_whole_in_a_pipe(
    call: Callable[..., Told], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server's answer is made here: no server accepts all of these names."""
    long = "t" * 64
    names = [f"{'d' * 64}.{long}", f"shop.{BAD}", f"shop.[red]{long}[/red]"]
    tables = tuple(FoundTable(name, (f"{long}1", f"{long}2", BAD), 1, 1, ((BAD, BAD),)) for name in names)
    found = Examination((Finding(Severity.WARNING, BAD, f"{BAD} {long * 3}.", BAD),), tables)
    file = tmp_path / "p.yaml"
    file.write_text(
        "source: {type: mysql_cdc, host: h, user: u, tables: shop.*}\nsink: {type: delta_tables, path: /t}\n"
        "pipeline: {name: n, checkpoint: /c}\n"
    )
    monkeypatch.setattr("backlog_spark.pipelines.preflight.examine", lambda *given: found)
    told = call("check", str(file))
    lines = told.out.splitlines()
    for name in (names[0], f"shop.{SHOWN}", names[2]):
        assert sum(name in line and f"{long}1, {long}2, {SHOWN}" in line for line in lines) == 1, told.out
    assert f"{SHOWN} {long * 3}. {SHOWN}" in told.out
    monkeypatch.setattr("backlog_spark.spi.registry.examine", lambda *given: found)
    told = call("init", "--host", "h", "--user", "u", "--tables", "shop.*", "-o", f"{tmp_path}/missing/x")
    one_line(told, "missing/x: No such file or directory")
    assert SHOWN in call("init", "--host", "h", "--user", "u", "--tables", "shop.*").out


def test_a_refusal_reaches_no_terminal(call: Callable[..., Told], tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text('source: {type: "x\\e[2J\\L"}\nsink: {type: delta_append, path: /t}\npipeline: {name: n}\n')
    told = call("run", str(file))
    assert r"x\x1b[2J\u2028: there is no such source." in told.err


def test_a_terminal_breaks_long_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    output.show(output.table(("name",), [("n" * 100,)]))
    shown = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert shown.count("n") == 101
    assert max(map(len, shown.splitlines())) == 40


def test_an_error_of_ours_may_have_several_lines(call: Callable[..., Told], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(location: str) -> None:
        raise BacklogError("One.\nTwo.")

    monkeypatch.setattr("backlog_spark.tools.stored_checkpoint.StoredCheckpoint", refused)
    assert call("inspect", "/x").err == "error: One.\nTwo.\n"
