"""The report page in headless Chromium: `make test-browser` brings it, and keeps its screenshots."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.tools.report import page
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint
from backlog_spark.tools.ui import LiveServer
from servers.kafka import KafkaServer
from tests.integration.topics import Topic
from tests.operators.conftest import Collect

from .stories import batch, checkpoint_of, hostile, line, story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.outside, pytest.mark.process]

LIMIT_S = 300
LIGHT, DARK = "light", "dark"
DESK, PHONE = (1000, 1400), (390, 844)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    # Chromium's sandbox needs another user than root. The pages are our own.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    driver.set_script_timeout(LIMIT_S)
    yield driver
    driver.quit()


def show(browser: Any, url: str, size: tuple[int, int] = DESK, scheme: str = LIGHT) -> None:
    width, height = size
    emulated = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size is PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", emulated)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(url)


def keep(browser: Any, name: str) -> None:
    """Keep a screenshot for people."""
    folder = os.environ.get("SHOTS")
    if folder:
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def findings(browser: Any) -> list[str]:
    """What axe-core finds that is serious or critical."""
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": Path(os.environ["AXE"]).read_text()})
    found = browser.execute_async_script("axe.run().then(arguments[0], error => arguments[0]({error: String(error)}))")
    assert "error" not in found, found
    assert found["passes"]
    return [
        f"{v['id']}: {v['nodes'][0]['html']}" for v in found["violations"] if v["impact"] in ("serious", "critical")
    ]


def wait(condition: Callable[[], Any]) -> Any:
    limit = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < limit
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("scheme", [LIGHT, DARK])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_page_is_readable_everywhere(browser: Any, tmp_path: Path, size: tuple[int, int], scheme: str) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(StoredCheckpoint(str(checkpoint_of(tmp_path / "c", story())))))
    show(browser, file.as_uri(), size, scheme)
    keep(browser, f"report-{'phone' if size is PHONE else 'desk'}-{scheme}")
    assert findings(browser) == []
    # Nothing is wider than the screen, and no text is smaller than 12 pixels.
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('main *')].filter(e => e.innerText)"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 12
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_keyboard_reaches_every_table(browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    file = tmp_path / "report.html"
    file.write_text(page(StoredCheckpoint(str(checkpoint_of(tmp_path / "c", story())))))
    show(browser, file.as_uri())
    reached = []
    for _ in range(40):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        focused = browser.switch_to.active_element
        if focused.tag_name == "summary":
            ActionChains(browser).send_keys(Keys.ENTER).perform()
        if focused.get_attribute("role") == "region":
            reached.append(focused.get_attribute("aria-label"))
    regions = browser.execute_script(
        "return [...document.querySelectorAll('[role=region]')].map(e => e.getAttribute('aria-label'))"
    )
    assert len(regions) == 8
    assert set(reached) == set(regions)


# A name with markup, an override of the direction, and Hebrew text.
MARKUP = "<script>window.taken = true</script><img src=x onerror='window.taken = true'><b>"
HOSTILE = f"{MARKUP}\u202e\u05e9\u05dc\u05d5\u05dd orders"


def long_story(batches: int, switches: int) -> list[dict[str, Any]]:
    """A batch a second, and as many switches and back."""
    events = story()[:3]
    for number in range(batches):
        events.append(batch(number, number, 0.5, 100 + number % 7, number < 1_000, interval_ms=1_000))
    for number in range(switches):
        for mode, second in (("stream", 0.4), ("backlog", 0.6)):
            at = (number + second) * batches / switches
            events.append(line("switch", at, batch=round(at), mode=mode, interval_ms=1_000, why="it swings"))
    return sorted(events, key=lambda event: str(event["at"]))


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(lambda: long_story(100_000, 3_000), id="100,000 batches"),
        pytest.param(lambda: [line("refused", n, error="no such table") for n in range(3)], id="only refusals"),
        pytest.param(lambda: [], id="no events"),
        pytest.param(lambda: hostile(story(), HOSTILE), id="hostile names"),
    ],
)
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_a_page_that_is_out_of_the_ordinary(
    browser: Any, tmp_path: Path, events: Callable[[], list[dict[str, Any]]], size: tuple[int, int]
) -> None:
    """The report's file, the live page after its first changes, and the index of two queries."""
    found = events()
    root = str(checkpoint_of(tmp_path / "c", found))
    file = tmp_path / "report.html"
    file.write_text(page(StoredCheckpoint(root)))
    assert file.stat().st_size < 3 << 20
    with LiveServer([root, str(checkpoint_of(tmp_path / "other", story()))], 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for url in (file.as_uri(), f"{server.url}0/", server.url):
            show(browser, url, size)
            if url == f"{server.url}0/":
                browser.execute_script(
                    "const told = new EventSource('events');"
                    "told.addEventListener('report', e => { window.told = JSON.parse(e.data).html.length; });"
                )
                assert wait(lambda: browser.execute_script("return window.told || 0")) > 100
            assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0], url
            assert findings(browser) == [], url
            assert browser.execute_script("return window.taken || false") is False
            assert (
                browser.execute_script("return document.querySelectorAll('main script, main b, main img').length") == 0
            )
        # The last page is the index. A name does not turn round the text beside it.
        link, state = browser.execute_script(
            "const item = document.querySelector('main li'), range = document.createRange();"
            "range.selectNode(item.childNodes[1]);"
            "return [item.querySelector('a'), range].map(e => [...e.getClientRects()].pop().right)"
        )
        assert state > link or size is PHONE  # on a phone the name has two lines
        server.shutdown()
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_switch_is_seen_live(spark: SparkSession, kafka: KafkaServer, browser: Any, tmp_path: Path) -> None:
    """The page is open while a query reads its backlog, and the query switches when the test lets its sink go on."""
    topic = Topic(kafka, "seen_live", 1)
    (tmp_path / "old").mkdir()
    (tmp_path / "old/a.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(1_000)))
    goes_on = threading.Event()

    class Waiting(Collect):
        def write(self, batch_df: Any, batch: bs.BatchInfo) -> None:
            if batch.batch_id == 1:
                assert goes_on.wait(LIMIT_S)
            super().write(batch_df, batch)

    options = {
        "path": str(tmp_path / "old"), "fileFormat": "json", "subscribe": topic.name, "valueFormat": "json",
        "kafka.bootstrap.servers": kafka.address(), "startingOffsets": "earliest", "schema": "n BIGINT",
    }  # fmt: skip
    query = (
        bs.source("hybrid", name="numbers", options={**options, "maxRowsPerBatch": "500"}).write("seen")
        .trigger(processing_time="300 ms", interval_during_backlog="2 seconds")
        .option("checkpointLocation", str(tmp_path / "c")).to(Waiting()).start(spark)
    )  # fmt: skip
    server = None
    try:
        wait(lambda: query.backlogProgress.commits_in_backlog)
        server = LiveServer([str(tmp_path / "c")], 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        show(browser, f"{server.url}0/")

        def mode() -> str:
            script = (
                "return [...document.querySelectorAll('dt')].find(e => e.textContent == 'mode').nextSibling.textContent"
            )
            return str(browser.execute_script(script))

        assert mode() == "backlog"
        assert findings(browser) == []
        keep(browser, "live-backlog")
        wait(lambda: browser.execute_script("return !!document.querySelector('#rates-table')"))
        browser.execute_script("document.querySelector('#rates-table').open = true")
        browser.execute_script("document.querySelector('#rates-table > summary').focus()")
        goes_on.set()
        topic.send([{"n": n} for n in range(50)])
        wait(lambda: mode() == "stream")
        keep(browser, "live-stream")
        # The page was not loaded again: what was open is open, the focus stays, and the switch is announced.
        assert browser.execute_script("return document.querySelector('#rates-table').open") is True
        assert browser.execute_script("return document.activeElement.parentElement.id") == "rates-table"
        said = wait(lambda: browser.execute_script("return document.querySelector('#said').textContent"))
        assert said == "stream mode, because source numbers has left its backlog"
        assert findings(browser) == []
        wait(lambda: "live rows" not in browser.title and query.backlogProgress.commits_after)
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    finally:
        goes_on.set()
        query.stop()
        if server is not None:
            server.shutdown()
            server.server_close()
