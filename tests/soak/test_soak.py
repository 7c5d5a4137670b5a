"""The rule, the plan, the sums and the plots of the soak, and a short one; `make soak` is the long one."""

from __future__ import annotations

import math
import random
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.soak import plan
from tests.soak.flat import LEAST_POINTS, Point, judge, judged
from tests.soak.page import LEAST_JUDGED_S, plots, rising, rules, text_of, write
from tests.soak.plan import CHANGES, QUERIES, RECORDS, Faults
from tests.soak.records import keys_of, sums, write_files
from tests.soak.soak import CatchUp, Comparison, Result, Soak
from tests.soak.stage import Load
from tests.soak.svg import Panel, plot, thinned, ticks

LOAD = Load(seed=7, changes=100, records=1_000, keys=1_000, sums=50, before=1_000, away_s=60.0)


def line(an_hour: float, minutes: float, begin: float = 400.0, noise: float = 0.0, seed: int = 1) -> list[Point]:
    chance = random.Random(seed)
    return [(at, begin + an_hour * at / 3600 + chance.gauss(0, noise)) for at in range(0, round(minutes * 60), 5)]


@pytest.mark.parametrize(
    ("points", "is_flat"),
    [
        (line(0, 20), True),
        (line(0, 20, noise=20), True),
        (line(36, 30), True),  # 9 % an hour
        (line(44, 30), False),  # 11 % an hour
        (line(-500, 20), True),
        (line(200, 20, noise=20), False),
        (line(100, 4), True),  # 25 % an hour, and 7 MiB within the judged time
        (line(0, 20, begin=0.0), True),
        (line(300, 20, begin=0.0), False),
        (line(900, 20)[: LEAST_POINTS - 1], None),
        ([], None),
    ],
)
def test_a_line_that_rises_is_not_flat(points: list[Point], is_flat: bool | None) -> None:
    assert judge(points, 8.0).is_flat is is_flat


def test_the_line_is_that_of_the_points() -> None:
    found = judge(line(120, 30), 8.0)
    assert math.isclose(found.rise_an_hour, 120, rel_tol=1e-6)
    assert math.isclose(found.first, 400, rel_tol=1e-6)
    assert math.isclose(found.percent_an_hour, 30, rel_tol=1e-6)
    assert math.isclose(found.last - found.first, 120 * (30 * 60 - 5) / 3600, rel_tol=1e-6)


def test_workers_that_are_killed_hide_no_leak_and_make_none() -> None:
    def with_kills(an_hour: float) -> list[Point]:
        return [(at, value * (0.3 if at % 300 < 20 else 1)) for at, value in line(an_hour, 30)]

    assert judge(with_kills(0), 8.0).is_flat
    assert judge(with_kills(400), 8.0).is_flat is False


def test_the_warm_up_of_a_life_is_not_judged() -> None:
    points = line(0, 60)
    assert [at for at, _ in judged(points, 1_000, 2_000)] == list(range(1_400, 2_001, 5))
    assert [at for at, _ in judged(points, 1_000, 2_000, 900.0)] == list(range(1_900, 2_001, 5))


def test_every_kind_of_fault_strikes_and_one_driver_lives_on() -> None:
    faults = Faults(3, 600.0)
    stages = [list(faults.of(number)) for number in range(plan.STAGES)]
    struck = Counter(fault.kind for stage in stages for fault in stage)
    assert set(struck) == set(plan.FAULTS)
    assert all(4 <= len(stage) <= 9 for stage in stages)
    for number, stage in enumerate(stages):
        killed = {fault.query for fault in stage if fault.kind == plan.KILL}
        assert not killed & {query for query in QUERIES if plan.lives_on(query, number) or plan.is_away(query, number)}
        assert all(0 < fault.after_s < 600 for fault in stage)
        assert [fault.after_s for fault in stage] == sorted(fault.after_s for fault in stage)
    for query in QUERIES:
        assert sum(plan.is_away(query, number) for number in range(plan.STAGES)) == 1
        assert sum(plan.lives_on(query, number) for number in range(plan.STAGES)) == plan.STAGES // 2
    again = Faults(3, 600.0)
    assert [list(again.of(number)) for number in range(plan.STAGES)] == stages


@pytest.mark.parametrize("count", [0, 1, 65_535, 65_536, 65_537, 200_001])
def test_sums_are_those_of_the_numbers(count: int) -> None:
    totals, records = [0] * 40, [0] * 40
    of = keys_of(9, 40)
    for i in range(count):
        totals[of[i % len(of)]] += i - 5
        records[of[i % len(of)]] += 1
    found = sums(9, 40, count, -5)
    assert [list(map(int, part)) for part in found] == [totals, records]


def test_files_have_the_rows_before_the_topic(tmp_path: Path) -> None:
    write_files(tmp_path / "files", 9, 40, 70_000)
    rows = pq.read_table(tmp_path / "files")
    assert sorted(rows["n"].to_pylist()) == list(range(-70_000, 0))
    totals: dict[int, int] = defaultdict(int)
    for key, number in zip(rows["k"].to_pylist(), rows["n"].to_pylist(), strict=True):
        totals[key] += number
    assert dict(enumerate(map(int, sums(9, 40, 70_000, -70_000)[0]))) == {key: totals[key] for key in range(40)}


def test_ticks_are_round_and_cover_the_values() -> None:
    assert ticks(4) == [0, 1, 2, 3, 4]
    assert ticks(1_130) == [0, 500, 1_000, 1_500]
    assert ticks(0.07) == pytest.approx([0, 0.02, 0.04, 0.06, 0.08])
    assert ticks(0) == [0, 1]


def test_a_plot_has_axes_units_a_legend_and_all_peaks() -> None:
    points = [(float(at), 1.0 + (at == 4_001)) for at in range(20_000)]
    text = plot("A & B", [Panel("one", "MiB", {"x < y": points}, [60.0], [(0.0, 9.0)])], 20_000.0)
    root = ElementTree.fromstring(text)
    words = [element.text for element in root.iter() if element.text]
    assert {"A & B", "one", "MiB", "minutes", "x < y"} <= set(words)
    assert len(text) < 20_000
    assert max(value for _, value in thinned(points)) == 2.0
    assert len(thinned(points)) <= 240


def result(rise: float) -> Result:
    """As of a run of an hour; the heap of one driver rises by so many MiB an hour."""
    found = Result(seconds=3_700.0, written_s=3_600.0)
    for query in QUERIES:
        found.lives[query], found.ended[query] = [(0.0, 60.0), (100.0, 3_700.0)], []
        found.commits[query] = found.restarts[query] = 3
        for at in range(0, 3_700, 5):
            growth = rise * at / 3600 if query == RECORDS else 0.0
            sample = {**dict.fromkeys(rules(60.0), 200.0), "heap, MiB": 200 + growth, "lag": 1.0, "written": at * 100}
            found.series.add(query, at, sample)
        found.catch_ups[query] = CatchUp(600.0, 60_000, 15.0, 30.0, 3_000, True)
    found.series.away[CHANGES] = 10.0, 610.0
    found.series.faults.append((30.0, plan.CUT))
    found.struck[plan.CUT] += 1
    found.comparisons.append(Comparison(600.0, {CHANGES: 1.0, RECORDS: 2.0}, {CHANGES: 9, RECORDS: 50}, 360, 999, []))
    return found


def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    page = write(tmp_path, result(0.0), LOAD, 60, "make soak").read_text()
    assert rising(result(0.0), 60.0) == []
    assert page.count("| flat |") == 2 * len(rules(60.0))
    assert f"| {plan.CUT} | 1 |" in page
    assert "| 10.0 min, 60,000 rows | 15 s | 30 s | 2,100 | yes |" in page
    for image in tmp_path.glob("*.svg"):
        assert f"({image.name})" in page
        assert image.stat().st_size < 60_000
    assert len(list(tmp_path.glob("*.svg"))) == page.count("![")


def test_the_page_says_what_rises() -> None:
    found = result(100.0)
    assert len(rising(found, 60.0)) == 1
    assert "files and Kafka to sums: JVM's heap after a collection" in rising(found, 60.0)[0]
    assert text_of(found, LOAD, 60, "make soak").count("**rises**") == 1


def test_a_short_life_is_not_judged() -> None:
    found = result(5_000.0)
    found.lives = {query: [(0.0, LEAST_JUDGED_S)] for query in QUERIES}
    assert rising(found, 60.0) == []
    assert text_of(found, LOAD, 60, "make soak").count("| too short |") == 2 * len(rules(60.0))
    assert plots(found)


@pytest.mark.process
@pytest.mark.grid
def test_a_short_soak(tmp_path: Path) -> None:
    found = Soak(tmp_path, LOAD, 10.0, print, lambda _: None).run()
    assert found.faults == []
    assert len(found.comparisons) == plan.STAGES
    last = found.comparisons[-1]
    assert last.changes > 0
    assert last.records > 0
    assert found.struck.total() > 0
    for query in QUERIES:
        assert found.commits[query] > 0
        assert len(found.lives[query]) > 1
        assert found.series.of[query]["heap, MiB"] or found.series.of[query]["jvm, MiB"]
    assert np.isfinite(found.seconds)
