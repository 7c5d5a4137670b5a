"""Progress in a real kernel of Jupyter: one display that is updated in place."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.outside, pytest.mark.process]

CELL = """
import sys, threading
from backlog_spark.runner.progress_outputs import output_for

def show():  # as the query's own thread does
    output = output_for(sys.stderr, is_default=True)
    for rows in (10, 20, 30):
        output.show([f"orders: backlog {rows} rows"], 0)
    output.say("orders: stream mode from batch 3 on, because it is <done>")
    output.show(["orders: stream"], 1)
    output.close()

thread = threading.Thread(target=show)
thread.start()
thread.join()
"""


def test_one_display_is_updated() -> None:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(startup_timeout=120)
    try:
        messages: list[dict[str, Any]] = []
        client.execute_interactive(CELL, timeout=120, output_hook=messages.append)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert not [m["content"] for m in messages if m["msg_type"] in ("error", "stream")]
    shown = [m for m in messages if m["msg_type"] in ("display_data", "update_display_data")]
    assert [m["msg_type"] for m in shown] == ["display_data", *["update_display_data"] * 4]
    assert len({m["content"]["transient"]["display_id"] for m in shown}) == 1
    texts = [m["content"]["data"]["text/html"] for m in shown]
    assert "orders: backlog 10 rows" in texts[0]
    assert "because it is &lt;done&gt;\norders: stream</pre>" in texts[-1]
    assert all("application/vnd.jupyter.widget-view+json" not in m["content"]["data"] for m in shown)
