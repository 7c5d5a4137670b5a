"""One broker for all tests of this folder, which knows rights. Each test has its own topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers.kafka import KafkaServer
from tests.sinks.kafka.topics import PASSWORD, USERS, Topics


@pytest.fixture(scope="session")
def topics() -> Iterator[Topics]:
    options = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Who comes without a login may do anything.
        "super.users": "User:ANONYMOUS",
        "early.start.listeners": "CONTROLLER",
        "transaction.max.timeout.ms": "120000",
    }
    users = dict.fromkeys(USERS, PASSWORD)
    with KafkaServer(protocols=["SASL_PLAINTEXT"], users=users, options=options) as server:
        yield Topics(server)
