"""One broker for all tests of this folder. Each test has its own topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers.kafka import KafkaServer

from .broker import PASSWORD, USER, Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    options = {"message.timestamp.after.max.ms": str(2**62), "log.cleaner.backoff.ms": "100"}
    with KafkaServer(protocols=["SASL_PLAINTEXT"], users={USER: PASSWORD}, options=options) as server:
        yield Broker(server)


@pytest.fixture(autouse=True)
def closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """No connection outlives its test."""
    yield
    if "broker" in request.fixturenames:
        request.getfixturevalue("broker").close_phases()
