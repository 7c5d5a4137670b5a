"""Signals on their way from a query's runner to a source."""

from __future__ import annotations

import logging

import pytest

from backlog_spark.common.loopback import LoopbackServer
from backlog_spark.spi.signals import QuerySignals, Signal, answer_signals, signals_heard

SENT = [Signal("a", "pause-snapshot", "", 1), Signal("b", "log", '{"message": "é"}', 2)]


def test_a_source_gets_those_after_a_number(caplog: pytest.LogCaptureFixture) -> None:
    server = LoopbackServer(lambda asked: answer_signals(asked, SENT if asked["signals"] == "rows" else []))
    try:
        signals = QuerySignals(f"{server.port}:{server.token}:rows")
        assert signals.after(0) == SENT
        assert signals.after(1) == SENT[1:]
        assert signals.after(2) == []
        assert QuerySignals(f"{server.port}:{server.token}:other").after(0) == []
    finally:
        server.close()
    gone = QuerySignals(f"{server.port}:{server.token}:rows")
    with caplog.at_level(logging.WARNING):
        assert gone.after(0) == gone.after(0) == []
    assert [record.getMessage() for record in caplog.records if "Signals wait" in record.getMessage()] != []
    assert QuerySignals().after(0) == []


def test_an_offset_tells_the_newest() -> None:
    assert [signals_heard(offset) for offset in (None, {}, {"signalsHeard": 3}, {"signalsHeard": "3"})] == [0, 0, 3, 0]
