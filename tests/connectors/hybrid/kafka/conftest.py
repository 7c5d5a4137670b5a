"""One broker for all tests of this folder. Each test has its own topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backlog_spark.connectors.hybrid.kafka import client
from servers.kafka import KafkaServer

from .broker import PASSWORD, USER, Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    options = {"message.timestamp.after.max.ms": str(2**62), "log.cleaner.backoff.ms": "100"}
    with KafkaServer(protocols=["SASL_PLAINTEXT"], users={USER: PASSWORD}, options=options) as server:
        yield Broker(server)


@pytest.fixture
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that seems to be gone is gone, without the wait of 3 s."""
    monkeypatch.setattr(client, "_LOOKS_S", ())


@pytest.fixture(autouse=True)
def closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """No connection outlives its test."""
    yield
    if "broker" in request.fixturenames:
        request.getfixturevalue("broker").close_phases()
