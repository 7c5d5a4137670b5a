"""Progress for people: what each line says, and where it is shown."""

from __future__ import annotations

import io
import random
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from backlog_spark.decide.steps import Mode
from backlog_spark.runner import progress_line, progress_outputs
from backlog_spark.runner.estimate import SourceRows
from backlog_spark.runner.progress_line import ProgressLine, Snapshot, ended_line, render
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
    monkeypatch.setattr(progress_line, "time", SimpleNamespace(monotonic=lambda: now[0]))
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


def test_before_the_first_task_has_ended_no_rate_is_shown() -> None:
    assert render(Snapshot("orders", True, 0, 0, 0.0, 0, None)) == (
        "orders: backlog  reading the first rows  0 commits, none until the end"
    )


def test_each_source_in_backlog_has_a_line() -> None:
    query = in_backlog()
    query.done = [SourceRows("orders", 95.0, 100), SourceRows("users", 7.0, 0)]
    shown = [render(each) for each in ProgressLine(query, io.StringIO())._snapshots()]
    assert shown == [
        "orders: backlog [######################  ]  95%  95 of about 100 rows  0 rows/s  time left unknown  "
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
    assert render(shown).endswith("50%  5 of about 10 rows  1 rows/s  5 s left  0 commits, none until the end")


def test_a_log_gets_what_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a minute, and at once when rows, the time left or another mode are known."""
    now = [1_000.0]
    for module in (progress_line, progress_outputs):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    query, log = in_backlog(), io.StringIO()
    line = ProgressLine(query, log)
    told = []

    def look(second: int) -> None:
        now[0] = 1_000.0 + second
        look_once(line)
        told.append((second, log.getvalue().splitlines()))
        log.seek(0)
        log.truncate()

    look(0)
    query.done = [SourceRows("orders", 0.0, 100_000)]
    look(4)
    query.done = [SourceRows("orders", 4_000.0, 100_000)]
    for second in (10, 20, 69, 70):
        look(second)
    query.backlogProgress = BacklogProgress(rows=4_000, backlog_rows=4_000, commits_in_backlog=1)
    look(71)
    query.isProcessingBacklog, query.history, query.backlogRowsCommitted = False, (START, SWITCH), 4_000
    look(72)
    assert told == [
        (0, []),
        (4, []),
        (10, [
            "orders: backlog [                        ]   4%  4,000 of about 100,000 rows  400 rows/s  4 min left  "
            "0 commits, interval 10 s"
        ]),
        (20, []),
        (69, []),
        (70, ["orders: backlog [                        ]   4%  4,000 of about 100,000 rows  57 rows/s  28 min left  "
              "0 commits, interval 10 s"]),
        (71, []),
        (72, ["copy: stream mode from batch 3 on, because source orders has left its backlog",
              "copy: stream  backlog of 4,000 rows done, 0 live rows  0 rows/s  0 commits, interval 1 s"]),
    ]  # fmt: skip


def look_once(line: ProgressLine) -> None:
    """One look of the loop, without its thread."""
    monkey = SimpleNamespace(waits=iter([False, True]))
    line._stop = SimpleNamespace(wait=lambda seconds: next(monkey.waits), set=lambda: None)  # type: ignore[assignment]
    line._loop()


def test_a_log_may_have_each_commit() -> None:
    query, log = in_backlog(), io.StringIO()
    query.done = [SourceRows("orders", 40.0, 0)]
    line = ProgressLine(query, log, every_commit=True)
    for commits in (1, 1, 2):
        query.backlogProgress = BacklogProgress(rows=40, backlog_rows=40, commits_in_backlog=commits)
        look_once(line)
    assert [each.split("  ")[-1] for each in log.getvalue().splitlines()] == [
        "1 commit, interval 10 s", "2 commits, interval 10 s",
    ]  # fmt: skip


def test_the_rows_before_the_first_look_have_a_rate() -> None:
    query = in_backlog()
    query.done = [SourceRows("orders", 53_125.0, 81_248)]
    query.backlogProgress = BacklogProgress(53_125, 53_125, rows_per_second=9_000.0, commits_in_backlog=1)
    [shown] = ProgressLine(query, io.StringIO())._snapshots()
    assert "53,125 of about 81,248 rows  9,000 rows/s  3 s left  1 commit" in render(shown)


def test_a_log_that_nobody_reads_any_more_ends_nothing() -> None:
    log = io.StringIO()
    lines = [ProgressLine(in_backlog(), log)]
    log.close()
    lines.append(ProgressLine(in_backlog(), log))
    for line in lines:
        line.say("A line.")
    assert not progress_outputs.is_terminal(None)


def test_the_lines_end_with_switches_and_the_end() -> None:
    query, log = in_backlog(), io.StringIO()
    with ProgressLine(query, log) as line:
        query.history = (START, SWITCH)
        line.finish("Query copy has ended.")
    assert log.getvalue().splitlines()[-2:] == [
        "copy: stream mode from batch 3 on, because source orders has left its backlog", "Query copy has ended.",
    ]  # fmt: skip


@pytest.mark.parametrize("width", range(30, 140, 7))
def test_a_narrow_terminal_gets_what_matters(width: int) -> None:
    rng = random.Random(width)
    for _ in range(200):
        total = rng.choice([0, 10 ** rng.randrange(1, 11)])
        shown = Snapshot(
            "o" * rng.randrange(1, 9), rng.random() < 0.8, rng.choice([0.0, rng.random() * (total or 1_000)]), total,
            rng.choice([0.0, rng.random() * 1e6]), rng.randrange(3), rng.choice([None, 500]), rng.randrange(10**8),
        )  # fmt: skip
        line, shortest = render(shown, width), render(shown, 0)
        assert line.startswith(f"{shown.name}: ")
        assert len(line) <= width or line == shortest
        # Whole parts are left out, none is cut.
        assert set(line.split("  ")) - {""} <= {
            part for each in progress_line._versions(shown) for part in each.split("  ")
        }


@pytest.mark.parametrize(
    ("status", "is_whole", "said"),
    [
        ("FINISHED", True, "Query a has come to the end of its input: 7 rows in 1 commit, 2 s, to /t, Own."),
        ("CANCELED", True, "Query a has ended after a whole batch: 7 rows in 1 commit, 2 s, to /t, Own."),
        ("CANCELED", False, "Query a was stopped: 7 rows in 1 commit, 2 s, to /t, Own. Its next start replays the "
         "batch that was running."),
        ("FAILED", False, "Query a has failed after 7 rows in 1 commit, 2 s, to /t, Own: It broke. Its next start "
         "replays the batch that failed."),
        ("FAILED", True, "Query a has failed after 7 rows in 1 commit, 2 s, to /t, Own: It broke."),
    ],
)  # fmt: skip
def test_the_end_says_what_was_done(status: str, is_whole: bool, said: str) -> None:
    done = BacklogProgress(rows=7, commits_after=1)
    assert ended_line("a", status, done, 2.0, ["/t", "Own"], failure="It broke.", is_whole=is_whole) == said


def test_a_terminal_is_drawn_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    output = output_for(out, is_default=False)
    output.show(["orders: backlog " + "x" * 100, "users: backlog"], 0)
    output.say("copy: [red]a name[/red]")
    output.show(["copy: stream"], 1)
    output.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "copy: [red]a name[/red]\n" in text
    assert "\x1b[1A" in out.getvalue()  # the cursor goes up to draw over the two lines
    assert all(len(line) <= 41 for line in re.split(r"[\r\n]", text) if line.startswith("orders"))


def test_a_warning_of_the_jvm_begins_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    output = output_for(out, is_default=False)
    output.show(["orders: backlog"], 0)
    out.write("26/11/28 WARN Executor: It is slow, and this line is longer than the one of the query.\n")
    output.show(["orders: stream"], 0)
    output.close()
    assert screen(out.getvalue())[:2] == [
        "26/11/28 WARN Executor: It is slow, and this line is longer than the one of the query.", "",
    ]  # fmt: skip


def screen(text: str) -> list[str]:
    """The lines of a terminal after this text."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|.", text, re.DOTALL):
        if part == "\x1b[1A":
            row = max(0, row - 1)
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif not part.startswith("\x1b"):
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + 1 :]
            column += 1
    return lines


def test_a_terminal_without_rich_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    out = Terminal()
    output = output_for(out, is_default=False)
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
    output = output_for(io.StringIO(), is_default=True)
    output.show(["orders: <b>backlog</b>"], 0)
    output.show(["orders: <b>backlog</b>"], 0)  # as before: nothing is sent
    output.say("switch")
    output.close()
    assert [kind for kind, _, _ in calls] == ["new", "update"]
    assert len({display_id for _, _, display_id in calls}) == 1
    assert "switch\norders: &lt;b&gt;backlog&lt;/b&gt;</pre>" in calls[1][1]
    # IPython in a terminal is no notebook.
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert type(output_for(io.StringIO(), is_default=True)) is progress_outputs._Lines


@pytest.mark.process
def test_ipython_and_rich_are_not_imported_for_a_log() -> None:
    code = (
        "import sys; from backlog_spark.runner.progress_outputs import output_for\n"
        "output_for(sys.stderr, is_default=True).say('started')\n"
        "assert not {'IPython', 'rich', 'prometheus_client', 'jinja2'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
