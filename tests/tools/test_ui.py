"""The live pages, over HTTP: the index, the stream of changes, and who may ask."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

import pytest

from backlog_spark.errors import SettingError
from backlog_spark.tools.ui import LiveServer

from .stories import checkpoint_of, story
from .test_report import Page

Served = Callable[..., LiveServer]


@pytest.fixture
def served() -> Iterator[Served]:
    servers: list[LiveServer] = []

    def serve(*roots: Path) -> LiveServer:
        server = LiveServer([str(root) for root in roots], 0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def asked(server: LiveServer, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def test_one_checkpoint_is_shown_at_once_and_several_have_an_index(tmp_path: Path, served: Served) -> None:
    first, second = checkpoint_of(tmp_path / "a", story()), checkpoint_of(tmp_path / "b", [])
    alone = served(first)
    assert (alone.url, asked(alone, "/").getheader("Location")) == (f"http://127.0.0.1:{alone.server_port}/", "/0/")
    both = served(first, second)
    read = Page(asked(both, "/").read().decode())
    assert {a["href"] for a in read.all("a")} == {"/0/", "/1/"}
    assert "orders" in read.texts
    assert "without an event log" in " ".join(read.texts)
    page = Page(asked(both, "/0/").read().decode())
    assert page.facts()["status"] == "stopped"
    assert [script["src"] for script in page.all("script")] == ["/live.js"]
    assert asked(both, "/live.js").read().startswith(b'"use strict"')
    assert [asked(both, path).status for path in ("/2/", "/x", "/0/events/1", "/../setup.cfg")] == [404] * 4


def test_the_stream_sends_what_is_new(tmp_path: Path, served: Served) -> None:
    events = story()
    root = checkpoint_of(tmp_path, events[:7])  # up to the end of the backlog
    answer = asked(served(root), "/0/events")
    assert answer.getheader("Content-Type") == "text/event-stream"

    def told() -> dict[str, str]:
        while not (line := answer.readline()).startswith(b"data: "):
            assert line
        found: dict[str, str] = json.loads(line[6:])
        return found

    first = told()
    assert Page(first["html"]).facts()["mode"] == "backlog"
    assert first["said"] == ""
    more = root / "backlog" / "events" / "00000002-a.jsonl"
    more.write_text("".join(f"{json.dumps(event)}\n" for event in events[7:]))
    second = told()
    assert Page(second["html"]).facts()["mode"] == "stream"
    assert second["said"] == "stream mode, because source orders has left its backlog"


def test_a_page_of_another_site_reads_nothing(tmp_path: Path, served: Served) -> None:
    server = served(checkpoint_of(tmp_path, story()))
    assert asked(server, "/0/", Host="attacker.example").status == 421
    assert asked(server, "/0/", Host=f"localhost:{server.server_port}").status == 200


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    root = str(checkpoint_of(tmp_path, story()))
    (tmp_path / "file").write_text("")
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    for name in ("file", "table"):
        with pytest.raises(SettingError, match="there is no checkpoint"):
            LiveServer([root, str(tmp_path / name)], 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingError, match=r"--port = \d+: cannot be used: .*in use"):
            LiveServer([root], taken.getsockname()[1])


def test_a_query_that_has_not_started_is_waited_for(tmp_path: Path, served: Served) -> None:
    root = tmp_path / "c"
    server = served(root)
    text = " ".join(Page(asked(server, "/0/").read().decode()).texts)
    assert "There is no checkpoint yet. This page waits for the query's start." in text
    answer = asked(server, "/0/events")

    def told() -> str:
        while not (line := answer.readline()).startswith(b"data: "):
            assert line
        return str(json.loads(line[6:])["html"])

    assert "A query that has not started" in told()
    (root / "backlog" / "drivers").mkdir(parents=True)
    (root / "metadata").write_text("{}")  # what a query makes before its log
    assert "There is no checkpoint yet" in asked(server, "/0/").read().decode()
    checkpoint_of(root, story())
    assert Page(told()).facts()["status"] == "stopped"


@pytest.mark.process
def test_a_script_gets_the_addresses_as_one_line_of_json(tmp_path: Path) -> None:
    roots = [str(checkpoint_of(tmp_path / name, story())) for name in ("a", "b")]
    command = [sys.executable, "-m", "backlog_spark.tools", "ui", "--json", *roots]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            assert (told["url"], told["pid"]) == (f"http://127.0.0.1:{told['port']}/", process.pid)
            assert [page["checkpoint"] for page in told["pages"]] == roots
            for page in told["pages"]:
                with urlopen(page["url"], timeout=60) as answer:
                    assert answer.status == HTTPStatus.OK
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stdout.read() == ""
