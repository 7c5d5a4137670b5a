"""Progress for people: what each line says, and where it is shown."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from backlog_spark.decide.steps import Mode
from backlog_spark.runner import progress_line, progress_outputs
from backlog_spark.runner.estimate import SourceRows
from backlog_spark.runner.progress_line import ProgressLine, Snapshot, render
from backlog_spark.runner.progress_outputs import output_for
from backlog_spark.runner.query_progress import BacklogProgress, Switch

START = Switch(-1, Mode.BACKLOG, 10_000, 0.0, "the mode at the start")
SWITCH = Switch(3, Mode.STREAM, 1_000, 0.0, "source orders has left its backlog")


def in_backlog() -> Any:
    """The query's properties that the line reads."""
    query = SimpleNamespace(
        name="copy", isActive=True, isProcessingBacklog=True, backlogProgress=BacklogProgress(), history=(START,),
        done=[SourceRows("orders", 0.0, 100)], backlogRowsCommitted=0,
    )  # fmt: skip
    query.backlogSources = lambda: query.done
    return query


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_rate_is_that_of_the_newest_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the report: a running batch's tasks end in groups."""
    query, now = in_backlog(), [1_000.0]
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
    line = ProgressLine(query, io.StringIO())
    shown = []
    for second, rows in ((0, 0.0), (10, 2_000.0), (20, 2_000.0), (65, 9_500.0)):
        now[0] = 1_000.0 + second
        query.done = [SourceRows("orders", rows, 24_500)]
        shown.append(line._snapshots()[0])
    # 2,000 rows in 10 s, the same in 20 s, then 7,500 rows in the 55 s after the second look.
    assert [each.rate for each in shown] == [0.0, 200.0, 100.0, pytest.approx(7_500 / 55)]
    assert "136 rows/s  1 min 50 s left" in render(shown[-1])  # 15,000 rows


@pytest.mark.parametrize(
    ("rows", "rate", "left"),
    [
        (40, 1.0, "1 min left"), (100, 0.0, "0 s left"), (120, 5.0, "0 s left"), (10, 0.0, "time left unknown"),
        (28, 0.02, "1 h left"), (99, 2.5, "0 s left"), (1, 0.0125, "2 h 12 min left"),
    ],
)  # fmt: skip
def test_the_time_left_is_written_as_in_the_report(rows: float, rate: float, left: str) -> None:
    assert f"  {left}  " in render(Snapshot("orders", True, rows, 100, rate, 0, 10_000))


def test_each_source_in_backlog_has_a_line() -> None:
    query = in_backlog()
    query.done = [SourceRows("orders", 95.0, 100), SourceRows("users", 7.0, 0)]
    shown = [render(each) for each in ProgressLine(query, io.StringIO())._snapshots()]
    assert shown == [
        "orders: backlog [######################  ]  95%  95 of 100 rows  0 rows/s  time left unknown  "
        "0 commits, interval 10 s",
        "users: backlog  7 rows  0 rows/s  0 commits, interval 10 s",
    ]


def test_after_the_switch_the_rows_of_the_backlog_are_still_shown() -> None:
    query = in_backlog()
    line = ProgressLine(query, io.StringIO())
    query.done = [SourceRows("orders", 95.0, 100)]
    assert line._snapshots()[0].rows == 95.0
    query.isProcessingBacklog = False
    query.history = (START, SWITCH)
    query.backlogRowsCommitted = 100
    query.backlogProgress = BacklogProgress(rows=107, backlog_rows=100, rows_per_second=5.0, commits_after=1)
    [shown] = line._snapshots()
    assert render(shown) == ("copy: stream  backlog of 100 rows done, 7 live rows  5 rows/s  1 commit, interval 1 s")
    query.isProcessingBacklog = True
    query.done = [SourceRows("orders", 3.0, 50)]
    assert line._snapshots()[0].rows == 3.0, "of another backlog"


def test_no_commit_until_the_end() -> None:
    shown = Snapshot("orders", True, 5, 10, 1.0, 0, None)
    assert render(shown).endswith("50%  5 of 10 rows  1 rows/s  5 s left  0 commits, none until the end")


def test_a_log_stays_quiet_and_a_forced_one_has_switches_and_commits() -> None:
    quiet = io.StringIO()
    with ProgressLine(in_backlog(), quiet):
        pass
    assert quiet.getvalue() == ""
    query, log = in_backlog(), io.StringIO()
    with ProgressLine(query, log, force=True) as line:
        output = line._output
        assert output is not None
        for commits in (1, 1, 2):
            output.show(["a line"], commits)
        query.history = (START, SWITCH)
    assert log.getvalue().splitlines() == [
        "a line",
        "a line",
        "copy: stream mode from batch 3 on, because source orders has left its backlog",
    ]


def test_a_log_shows_a_long_batch_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_outputs, "_EVERY_S", 0.0)
    log = io.StringIO()
    output = output_for(log, is_default=False, force=True)
    assert output is not None
    for line in ("10 %", "10 %", "20 %"):
        output.show([line], 0)
    assert log.getvalue().splitlines() == ["10 %", "20 %"]


def test_a_terminal_is_drawn_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    output = output_for(out, is_default=False, force=False)
    assert output is not None
    output.show(["orders: backlog " + "x" * 100, "users: backlog"], 0)
    output.say("copy: [red]a name[/red]")
    output.show(["copy: stream"], 1)
    output.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "copy: [red]a name[/red]\n" in text
    assert "\x1b[1A" in out.getvalue()  # the cursor goes up to draw over the two lines
    assert all(len(line) <= 41 for line in re.split(r"[\r\n]", text) if line.startswith("orders"))


def test_a_terminal_without_rich_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    out = Terminal()
    output = output_for(out, is_default=False, force=False)
    assert output is not None
    output.show(["orders: backlog"], 1)
    output.close()
    assert out.getvalue() == "orders: backlog\n"


def test_a_notebook_updates_one_display(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str, str]] = []

    def noted(kind: str) -> Any:
        return lambda made, display_id: calls.append((kind, made.data, display_id))

    display = SimpleNamespace(
        HTML=lambda text: SimpleNamespace(data=text), display=noted("new"), update_display=noted("update")
    )
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    output = output_for(io.StringIO(), is_default=True, force=False)
    assert output is not None
    output.show(["orders: <b>backlog</b>"], 0)
    output.show(["orders: <b>backlog</b>"], 0)  # as before: nothing is sent
    output.say("switch")
    output.close()
    assert [kind for kind, _, _ in calls] == ["new", "update"]
    assert len({display_id for _, _, display_id in calls}) == 1
    assert "switch\norders: &lt;b&gt;backlog&lt;/b&gt;</pre>" in calls[1][1]
    # IPython in a terminal is no notebook.
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert output_for(io.StringIO(), is_default=True, force=False) is None


@pytest.mark.process
def test_ipython_and_rich_are_not_imported_for_a_log() -> None:
    code = (
        "import sys; from backlog_spark.runner.progress_outputs import output_for\n"
        "assert output_for(sys.stderr, is_default=True, force=False) is None\n"
        "assert not {'IPython', 'rich', 'prometheus_client', 'jinja2'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
