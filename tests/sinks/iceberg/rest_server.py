"""The REST catalog of Iceberg's own tests, in Java, with its tables on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from servers.jars import Artifact, fetch, pinned
from tests.sinks.java_server import JavaServer

__all__ = ["RestCatalogServer"]

_JARS = pinned(
    {
        "org.apache.iceberg": """
            iceberg-api 1.10.1 9c806b96f20882d1e5e7a4b9a8d7bc1fa32917b509af4e6d139afaa09a288396
            iceberg-bundled-guava 1.10.1 05b79072e19071b1bcf7a4e382d624b3b2ccad6eaf79627676219bb48e4e834d
            iceberg-common 1.10.1 167791c08975f299ebae6c508ea872b899673c33dc2911e4c265f95b96a656f1
            iceberg-core 1.10.1 5dc1472e3a393d9d5a713aedee7007cebdf62cabbe82c72feb6d3da8e50d7216
        """,
        "org.apache.httpcomponents.core5": """
            httpcore5 5.3.4 f2b2fd7a0164e8c3120cd8437bc9fea439239e165c17262b3e907daa7e979f80
        """,
        "org.apache.httpcomponents.client5": """
            httpclient5 5.5 496b4b0e8d5f3a8139a5d2638486d304758bac3a9c39d76989f663cfd9354fc9
        """,
        "com.github.ben-manes.caffeine": """
            caffeine 3.2.0 ec411dfdf0c03f25218648ce89861630b71680e5858a9a7278ebac8e55cab3d7
        """,
    }
)
# Of the same module as iceberg-core, so Ivy does not fetch both at once.
_TESTS = Artifact(
    "org.apache.iceberg", "iceberg-core", "1.10.1",
    "8c18111a61ea40ba23114e10e33bacfceca6cf36d2c9a932d880e0100f14af1e", "tests",
)  # fmt: skip


class RestCatalogServer(JavaServer):
    """A server on 127.0.0.1; see `EmbeddedServer`."""

    name = "iceberg-rest"

    def program(self) -> tuple[Path, Sequence[Path], Sequence[str]]:
        # Spark brings Jetty, Jackson, Avro and Hadoop.
        return Path(__file__).with_name("RestServer.java"), [*fetch(_JARS), *fetch([_TESTS])], ["-Xmx256m"]

    @property
    def catalog(self) -> dict[str, str]:
        """The argument of a sink."""
        return {"type": "rest", "uri": f"http://{self.host}:{self.port}"}
