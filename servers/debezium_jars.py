"""The jars of Debezium 3.6.1 for programs that run its engine with the connector for MySQL, with their checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from servers.jars import fetch, pinned

__all__ = ["DEBEZIUM_VERSION", "debezium_jars"]

DEBEZIUM_VERSION: Final = "3.6.1.Final"

# By organisation: name, revision, SHA-256.
_JARS: Final = {
    "com.datadoghq": """
        sketches-java 0.8.2 b24c3d175556eb381ef2b2f0a7dffe7cb1fb7a9f893f41260822b5ec6cb13cca
    """,
    "com.fasterxml.jackson.core": """
        jackson-annotations 2.21 53ca085f4a150f703f49e1aabd935bd03b43e1ea3d55d135438292af22cef56b
        jackson-core 2.21.2 12e8655b100267b44d0f14d01b1f5082a5105e616174dc4307be1a761e92407b
        jackson-databind 2.21.2 8c982f01f148d805f0aaac2339011244757e0df7c6ff8951f2fa3f433b8ed849
    """,
    "com.fasterxml.jackson.datatype": """
        jackson-datatype-jdk8 2.21.2 e581bbf3fc5622d16b57366dd41e10fc56921fb202879de2ef487f87dd9b30e7
        jackson-datatype-jsr310 2.21.2 a083d57cd1c4a28fefcc6bd071740779eb7fc1c22a3c1b40451b5477c443f02f
    """,
    "com.fasterxml.jackson.module": """
        jackson-module-blackbird 2.21.2 5ed62cdcd357a24b73de9280e167aa014d7b4c17d04823844d482274cf07097e
    """,
    "com.github.luben": """
        zstd-jni 1.5.0-2 b66a7029711976566c921ef255c57192fbbdc42a96c11ad3d879e6ad6001be12
    """,
    "com.mysql": """
        mysql-connector-j 9.1.0 8776e2ebc46072c9a47ea59d98298c4273bd9f16a7b26b5dfa4744535aa26c62
    """,
    "io.debezium": """
        debezium-api 3.6.1.Final 893c73a44dd05b3a102830efb53b2636c63cfdf890860411dcc4969282c9544b
        debezium-config 3.6.1.Final 0d4b6335aca11e8ba40aa00d39b23b863ef968e79d47ed7a133b9461f8218405
        debezium-connector-binlog 3.6.1.Final 1b23f155ce8c9c108513b8c50b16744831f52c29d367797343008782314b3dd5
        debezium-connector-common 3.6.1.Final 365a695d512b085cff2cd12e28e44a7a3e733b43bfb27f3608508d7800e2de45
        debezium-connector-mysql 3.6.1.Final db56640086983fa838aaedffd7a2fc9887932fc028dbbfef11f62fc49248d5a2
        debezium-ddl-parser 3.6.1.Final 03b1a891289999fa916b2dfbba0fa797dc1d005529bbb61a6f1efca77e055978
        debezium-embedded 3.6.1.Final a883a35d75aa1f393d2550a77c845226496d5886a07a77fe6f9bc118a2dddbfe
        debezium-openlineage-api 3.6.1.Final 7e7e0fb3c3a12b3e8bfe2d42df278ff2a9fab8c58fa12199590e35fdb88b2062
        debezium-storage-file 3.6.1.Final b29adac3a76cf4ba331894e226c68e339747fd00bdf9c6c513ad5ebcfcf2b4a5
        debezium-storage-kafka 3.6.1.Final 0ad7cda56d8d973174080dd89ccabe48c3b2bc790fb5c018468ffa85ba93a283
        debezium-util 3.6.1.Final 9501581790412207cda72b2b57874e0430e2f9e4c5e94a054f7b06e07c112e5f
        mysql-binlog-connector-java 0.41.0 a4bd7e9e24269fdfbbdfcd692f100878dc2539b5f331276c7700fdde44341364
    """,
    "org.antlr": """
        antlr4-runtime 4.10.1 da66be0c98acfb29bc708300d05f1a3269c40f9984a4cb9251cf2ba1898d1334
    """,
    "org.apache.kafka": """
        connect-api 4.3.0 7938f71e76e3b03cfba284a987a07d925533710166499264652e05eaba709429
        connect-json 4.3.0 4af42f973b7ed4def6d394055e9b46ea7da38f69c9d5a45fa4614b492a01ad2e
        connect-runtime 4.3.0 9c4a4a815302a23db37785729594f6362719fda62e6a74d812d1e2719995ec99
        kafka-clients 4.3.0 97a5b492d4ad658fd2dfba969fa0e403c2e38c971fb1e083da4e391471925fc1
    """,
    "org.apache.maven": """
        maven-artifact 3.9.15 f154c31f15ac97c37b9cdf9f8d63cde5053c470d2daf54df7dfd3bb3c9e501c6
    """,
    "org.slf4j": """
        slf4j-api 1.7.36 d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0
    """,
}


def debezium_jars() -> list[Path]:
    """The engine's class path. Only the first call needs the network."""
    return fetch(pinned(_JARS))
