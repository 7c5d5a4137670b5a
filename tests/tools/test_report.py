"""The report page: each value is there, nothing is fetched, and no text of others becomes markup."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from backlog_spark.common.durations import in_words
from backlog_spark.spark.checkpoint.driver_claim import _machine
from backlog_spark.tools.charts import TimeAxis, buckets, mode_bars, size, thousands
from backlog_spark.tools.command import command
from backlog_spark.tools.history import read_history
from backlog_spark.tools.report import page
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint

from .stories import BEGAN, QUERY, batch, checkpoint_of, hostile, line, story

# Elements without an end tag.
_VOID = {"meta", "link", "br", "rect", "path"}
NAME = """</script><img src=x onerror=alert(1)>"' {{ 7*7 }} & <!-- orders"""


class Page(HTMLParser):
    """A parsed page. Parsing fails if an element is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(" ".join(data.split()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.found if found == tag]

    def facts(self) -> dict[str, str]:
        """The summary: each name with its value."""
        at = self.texts.index("status")
        end = self.texts.index("Modes")
        return dict(zip(self.texts[at:end:2], self.texts[at + 1 : end : 2], strict=True))


def report(root: Path, events: list[dict[str, Any]]) -> str:
    return page(StoredCheckpoint(str(checkpoint_of(root, events))))


def test_the_summary(tmp_path: Path) -> None:
    # 4 batches of 9.8 s in the 40 s of backlog, then 20 of 100 rows in 0.4 s. The oldest rows waited 0.35 s and from
    # 0.05 s to 1 s more.
    assert Page(report(tmp_path, story())).facts() == {
        "status": "stopped",
        "mode": "stream",
        "rows": "1 million",
        "backlog": "1 million rows",
        "time in backlog": "40 s, 4 commits",
        "live commits": "20",
        "rate": "250 rows/s",
        "freshness (median)": "0.85 s",
        "freshness (95 %)": "1.3 s",
        "restarts": "1",
    }


def test_sums_say_which_batches_the_log_has_dropped(tmp_path: Path) -> None:
    events = [event for event in story() if event["kind"] != "batch" or event["batch"] >= 2]
    facts = Page(report(tmp_path, events)).facts()
    assert (facts["rows"], facts["backlog"]) == ("602,000 since batch 2", "600,000 rows since batch 2")
    assert (facts["time in backlog"], facts["live commits"]) == ("40 s, 2 commits since batch 2", "20 since batch 2")


def test_in_backlog_it_says_what_is_left(tmp_path: Path) -> None:
    facts = Page(report(tmp_path, story()[:6])).facts()  # up to the third batch
    # 750,000 rows in three batches of 9.8 s: 25,510 rows/s for the last 250,000.
    assert (facts["status"], facts["mode"], facts["rows behind"]) == ("running or killed", "backlog", "250,000")
    assert facts["backlog done"] == "75% of about 1 million rows"
    assert (facts["rate"], facts["time left"]) == ("25,510 rows/s", "about 9.8 s")


def test_before_the_first_task_has_ended_it_promises_nothing(tmp_path: Path) -> None:
    sources = [{"name": "orders", "rows": 0, "total": 1_000_000}]
    facts = Page(report(tmp_path, [*story()[:3], line("estimate", 2, after_batch=-1, sources=sources)])).facts()
    assert facts["backlog done"] == "reading the first of about 1 million rows"
    assert "time left" not in facts


@pytest.mark.parametrize(("pid", "status"), [(0, "running"), (2**22 + 1, "killed")])
def test_on_the_same_machine_a_killed_query_is_known(tmp_path: Path, pid: int, status: str) -> None:
    root = checkpoint_of(tmp_path, story()[:6])
    (root / "backlog" / "drivers").mkdir()
    for number, other in ((1, 1), (2, pid or os.getpid())):  # the newest counts
        who = {"pid": other, "host": "here", "machine": _machine(), "at": "2026-11-26T16:00:00"}
        (root / "backlog" / "drivers" / f"{number}-{'0' * 32}.json").write_text(json.dumps(who))
    assert Page(page(StoredCheckpoint(str(root)))).facts()["status"] == status
    (root / "backlog" / "drivers" / f"3-{'0' * 32}.json").write_text(json.dumps({**who, "machine": "another"}))
    assert Page(page(StoredCheckpoint(str(root)))).facts()["status"] == "running or killed"


def test_it_says_how_old_its_figures_are(tmp_path: Path) -> None:
    text = report(tmp_path, story())
    [age] = [each for each in Page(text).all("span") if each.get("id") == "age"]
    assert int(str(age["data-seconds"])) > 0
    assert "The newest figure is" in text


def stopped(*gaps: tuple[int, int], ended: int) -> list[dict[str, Any]]:
    """A query that ran until ``ended``, except for these seconds."""
    events = [line("start", 0, interval_ms=0), line("switch", 0, batch=-1, mode="stream", interval_ms=0, why="x")]
    for began, until in gaps:
        events += [
            line("end", began, status="stopped"), line("start", until, interval_ms=0),
            line("switch", until, batch=-1, mode="stream", interval_ms=0, why="x"),
        ]  # fmt: skip
    return [*events, line("end", ended, status="stopped")]


def test_a_stop_is_drawn_short(tmp_path: Path) -> None:
    events = stopped((100, 760), ended=860)  # 11 minutes between 100 s and 100 s
    bars = mode_bars(read_history(events))
    # 5 % of the 200 s that it ran: 10 s of 210
    assert [(round(left, 1), round(width, 1)) for left, width, _ in bars] == [(0, 47.6), (47.6, 4.8), (52.4, 47.6)]
    text = report(tmp_path, events)
    assert "It did not run for 11 min. That is drawn shorter" in text
    assert "drawn shorter" not in report(tmp_path / "short", stopped((100, 101), ended=200))


@pytest.mark.parametrize("seed", range(20))
def test_stops_never_take_the_width_of_a_chart(seed: int) -> None:
    rng = random.Random(seed)
    times = sorted(rng.sample(range(1, 10_000), 2 * rng.randrange(1, 30)))
    gaps = list(zip(times[::2], times[1::2], strict=True))
    ended = times[-1] + rng.randrange(1, 1_000)
    axis, ms = TimeAxis(read_history(stopped(*gaps, ended=ended))), round(BEGAN * 1000)
    places = [axis.x(ms + second * 1000) for second in (0, *times, ended)]
    assert places == sorted(places)
    assert (places[0], round(places[-1], 6)) == (0, 1000)
    widths = [later - before for before, later in itertools.pairwise(places)]
    assert sum(widths[1::2]) <= 1000 / 6 + 1e-6  # a fifth of the time that it ran
    seconds = [later - before for before, later in itertools.pairwise((0, *times, ended))]
    scales = {round(width / second, 6) for width, second in zip(widths[::2], seconds[::2], strict=True)}
    assert len(scales) == 1  # the times in which it ran keep their proportions
    assert all(width / second <= max(scales) + 1e-6 for width, second in zip(widths, seconds, strict=True))


def test_on_a_phone_the_switches_are_cards_and_a_scale_has_its_own_room(tmp_path: Path) -> None:
    text = report(tmp_path, story())
    read = Page(text)
    cells = [cell["data-name"] for cell in read.all("td") if "data-name" in cell]
    assert cells[:5] == ["time (UTC)", "first batch", "mode", "interval", "because"]
    assert re.search(r"@media \(max-width: 40rem\) \{.*\.cards td \{ display: grid;", text, re.DOTALL)
    marks = [str(each["style"]) for each in read.all("div") if each.get("class") == "chart"]
    # The longest mark of each chart: 50,000; 1 million; 10 s or 0.1 s; 10 s; 2.0 MB or 5 MB
    assert marks[:2] == ["--marks:6ch", "--marks:9ch"]


def test_the_rate_leaves_out_the_time_that_a_live_source_waited_for_rows(tmp_path: Path) -> None:
    """As the query's own `rows_per_second` does. In backlog no source waits."""
    events = story()[:3]
    parts = {"latestOffset": 900, "addBatch": 90}
    facts = Page(report(tmp_path / "live", [*events, batch(0, 0, 1, 50, False, parts_ms=parts)])).facts()
    assert facts["rate"] == "500 rows/s"  # 50 rows in 100 ms
    facts = Page(report(tmp_path / "backlog", [*events, batch(0, 0, 1, 50, True, parts_ms=parts)])).facts()
    assert facts["rate"] == "50 rows/s"


def test_each_chart_has_its_values_as_a_table(tmp_path: Path) -> None:
    read = Page(report(tmp_path, story()))
    titles = [
        "Rows per second", "Rows behind", "Duration of batches and the interval in force", "Freshness after the switch",
        "State",
    ]  # fmt: skip
    charts = [svg for svg in read.all("svg") if svg.get("role") == "img"]
    assert [str(svg["aria-label"]).split(". ")[0] for svg in charts] == titles
    regions = {element["aria-label"]: element for element in read.all("div") if element.get("role") == "region"}
    assert {f"{title} as a table" for title in titles} <= regions.keys()
    assert all(region["tabindex"] == "0" for region in regions.values())  # a keyboard can scroll them
    text = " ".join(read.texts)
    for value in (
        "2026-11-26 16:00:40 4 stream 1 s source orders has left its backlog",
        "2026-11-26 16:00:00 start backlog 10 s the mode at the start",
        "2026-11-26 16:00:19 1 350,000 35,714",  # rows per second
        "2026-11-26 16:00:19 1 350,000 600,000",  # rows behind
        "2026-11-26 16:00:19 1 350,000 9.8 s 10 s",  # duration and interval
        "2026-11-26 16:01:00 23 100 1.4 s 0.35 s",  # freshness of the oldest and newest row
        "2026-11-26 16:01:00 23 100 2.3 MB",
        "oldest row 0.85 s 1.1 s 1.3 s 1.4 s 1.4 s",
        "newest row 0.35 s 0.35 s 0.35 s 0.35 s 0.35 s",
        "restart attempt 1: the disk was full",
        "1 restart after failures.",
        "end stopped",
    ):
        assert value in text, value
    timeline = next(element for element in read.all("div") if element.get("class") == "modes")
    assert timeline["aria-label"] == "Timeline: backlog for 40 s, then stream for 22 s. The table has each switch."


def test_it_refers_to_nothing_and_has_no_script(tmp_path: Path) -> None:
    text = report(tmp_path, story())
    read = Page(text)
    assert not read.all("script")
    assert not read.all("img")
    references = [value for _, attributes in read.found for key in ("href", "src") if (value := attributes.get(key))]
    assert set(references) == {"data:,", "#report"}
    assert not re.search(r"https?:|url\(|@import", text)
    [policy] = [each for each in read.all("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert read.all("html") == [{"lang": "en"}]


def test_texts_of_others_are_no_markup(tmp_path: Path) -> None:
    read = Page(report(tmp_path, hostile(story(), NAME)))
    plain = Page(report(tmp_path / "plain", story()))
    assert [tag for tag, _ in read.found] == [tag for tag, _ in plain.found]
    assert not any(key.startswith("on") for _, attributes in read.found for key in attributes)
    assert NAME in read.texts  # as it is


def test_two_processes_of_which_the_first_was_killed(tmp_path: Path) -> None:
    events = [
        line("start", 0, interval_ms=0), line("switch", 0, batch=-1, mode="stream", interval_ms=0, why="the start"),
        batch(0, 0, 10, 5, False),
        line("start", 110, interval_ms=0), line("switch", 110, batch=-1, mode="stream", interval_ms=0, why="the start"),
        batch(1, 110, 10, 5, False), line("end", 121, status="failed", error="no space left"),
    ]  # fmt: skip
    history = read_history(events)
    ms = round(BEGAN * 1000)
    assert [(s.mode, s.began - ms, s.ended - ms) for s in history.spans] == [
        ("stream", 0, 10_200),
        ("not running", 10_200, 110_000),
        ("stream", 110_000, 121_000),
    ]
    assert (history.status, history.error, history.intervals_ms) == ("failed", "no space left", (0, None))
    assert "no space left" in report(tmp_path, events)


def test_a_killed_query_does_not_run_until_a_refused_start(tmp_path: Path) -> None:
    killed = [
        line("start", 0, interval_ms=0), line("switch", 0, batch=-1, mode="backlog", interval_ms=0, why="the start"),
        batch(0, 0, 10, 5, True), line("refused", 7_210, error="no such table"),
    ]  # fmt: skip
    ms = round(BEGAN * 1000)
    dead = [("backlog", 0, 10_200), ("not running", 10_200, 7_210_000)]
    assert [(s.mode, s.began - ms, s.ended - ms) for s in read_history(killed).spans] == dead
    facts = Page(report(tmp_path, killed)).facts()
    assert (facts["status"], facts["mode"]) == ("start refused", "backlog")
    assert facts["time in backlog"] == "10 s, 1 commit"
    killed += [
        line("start", 7_300, interval_ms=0), line("switch", 7_300, batch=-1, mode="stream", why="the start"),
        batch(1, 7_300, 10, 5, False),
    ]  # fmt: skip
    found = [(s.mode, s.began - ms, s.ended - ms) for s in read_history(killed).spans]
    assert found == [dead[0], ("not running", 10_200, 7_300_000), ("stream", 7_300_000, 7_310_200)]


def test_a_batch_that_two_drivers_reported_counts_once() -> None:
    events = [batch(0, 0, 1, 5, False), batch(0, 0, 1, 5, False, writer="direct"), batch(1, 1, 1, 7, False)]
    assert [b.rows for b in read_history(events).batches] == [5, 7]


def test_no_commit_until_the_backlog_ends(tmp_path: Path) -> None:
    events = [
        line("start", 0, interval_ms=1_000, interval_during_backlog_ms=0, sources=[]),
        line("switch", 0, batch=-1, mode="backlog", why="the mode at the start"),
    ]
    text = " ".join(Page(report(tmp_path / "no batch yet", events)).texts)
    assert "no commit until the backlog ends" in text
    events.append(batch(0, 0, 60, 1_000, True))
    assert "During backlog: no commit until the backlog ends." in " ".join(Page(report(tmp_path, events)).texts)


def test_a_long_batch_is_followed_by_estimates(tmp_path: Path) -> None:
    events = [
        line("start", 0, interval_ms=1_000, interval_during_backlog_ms=0, sources=[{"name": "orders"}]),
        line("switch", 0, batch=-1, mode="backlog", why="the mode at the start"),
    ]
    for second in range(15, 91, 15):  # 1,000 rows/s of 100,000
        sources = [{"name": "orders", "rows": 1_000 * second, "total": 100_000}]
        events.append(line("estimate", second, after_batch=-1, sources=sources))
    read = Page(report(tmp_path, events))
    assert (read.facts()["rows behind"], read.facts()["time left"]) == ("10,000", "about 10 s")
    assert read.facts()["rate"] == "1,000 rows/s"
    assert "2026-11-26 16:01:00 0 0 40,000" in " ".join(read.texts)
    events += [batch(0, 0, 99, 100_000, True), line("switch", 99, batch=1, mode="stream", interval_ms=0, why="done")]
    assert "rows behind" not in Page(report(tmp_path, events)).facts()


def test_a_checkpoint_without_events(tmp_path: Path) -> None:
    text = report(tmp_path, [])
    assert "spark.backlog.eventLog" in text
    assert read_history([]).seconds_left == 0.0


def test_a_checkpoint_with_refused_starts_only(tmp_path: Path) -> None:
    """It has no offsets yet."""
    root = checkpoint_of(tmp_path, [line("refused", n, error="no such table") for n in range(3)])
    for name in ("offsets", "commits"):
        (root / name).rmdir()
    read = Page(page(StoredCheckpoint(str(root))))
    assert not [element for element in read.all("section") if element["aria-labelledby"] == "modes"]
    text = " ".join(read.texts)
    assert "status start refused mode unknown" in text
    assert text.count("refused no such table") == 3
    found = CliRunner().invoke(command, ["inspect", "--json", str(root)]).output
    assert '"query": "orders"' in found
    assert '"status": "start refused at 2026-11-26T16:00:02: no such table"' in found


def test_many_switches_are_few_bars(tmp_path: Path) -> None:
    events = story()[:2]
    for number in range(20_000):
        mode = ("backlog", "stream")[number % 2]
        events.append(line("switch", number, batch=number, mode=mode, interval_ms=0, why="it swings"))
    events.append(line("end", 40_000, status="stopped"))
    bars = mode_bars(read_history(events))
    assert len(bars) <= 800
    assert (bars[0][0], bars[-1][1]) == (0, 50.002)  # the long one at the end is there
    text = report(tmp_path, events)
    assert len(text) < 1 << 20
    assert "Timeline, the last 20 of 20,000: backlog for 1 s, then " in text


def test_many_batches_are_few_points() -> None:
    events = [batch(n, n, 0.5, 1 + n % 7, n < 1_000) for n in range(30_000)]
    history = read_history(events)
    points = buckets(history.batches)
    assert len(points) <= 203
    assert [b for point in points for b in point.batches] == list(history.batches)
    assert all(len({b.backlog for b in point.batches}) == 1 for point in points)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (in_words(0), "0 s"), (in_words(0.042), "0.042 s"), (in_words(1.04), "1 s"), (in_words(9.94), "9.9 s"),
        (in_words(59.4), "59 s"), (in_words(59.6), "1 min"), (in_words(3_599), "59 min 59 s"),
        (in_words(7_500), "2 h 5 min"), (thousands(0.4), "0.4"), (thousands(9), "9"), (thousands(35_714.3), "35,714"),
        (thousands(1_250_000), "1.2 million"), (size(999), "999 bytes"), (size(1_500), "1.5 kB"),
        (size(2_300_000), "2.3 MB"), (size(5e12), "5.0 TB"),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(shown: str, text: str) -> None:
    assert shown == text


def test_the_command(tmp_path: Path) -> None:
    root, target = str(checkpoint_of(tmp_path / "c", story())), tmp_path / "page.html"
    done = CliRunner().invoke(command, ["report", root, "-o", str(target)])
    assert (done.exit_code, done.output) == (0, f"Wrote {target}\n")
    assert Page(target.read_text()).facts()["status"] == "stopped"
    assert CliRunner().invoke(command, ["report", root, "-o", "-"]).output.startswith("<!doctype html>")
    as_json = CliRunner().invoke(command, ["report", root, "--json"]).output
    assert f'"query": "{QUERY}"' in as_json


def test_a_line_that_is_being_written_is_read_later(tmp_path: Path) -> None:
    root = checkpoint_of(tmp_path, story())
    new = root / "backlog" / "events" / "00000002-a.jsonl"
    new.write_text('{"v": 1, "at": "2026-11-26T16:02:00.000+00:00", "kind": "start", "query": "or')
    texts: dict[str, str] = {}
    assert len(StoredCheckpoint(str(root), texts).events) == len(story())
    assert list(texts) == ["00000001-a.jsonl"]
    new.write_text(new.read_text() + 'ders"}\n')
    assert len(StoredCheckpoint(str(root), texts).events) == len(story()) + 1


@pytest.mark.process
def test_it_needs_no_spark(tmp_path: Path) -> None:
    root = checkpoint_of(tmp_path, story())
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None; from backlog_spark.tools import main; main()"
    )
    line = [sys.executable, "-c", code, "report", "-o", "-", str(root)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<!doctype html>")
