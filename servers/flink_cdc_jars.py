"""The jars of Flink CDC 3.5.0 and of Flink 1.20.3, for a cluster in one process, with their checksums.

The newest Flink CDC in the registry does not run on Flink 2: it calls constructors that were removed there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from servers.jars import fetch, pinned

__all__ = ["FLINK_CDC_VERSION", "flink_cdc_class_path"]

FLINK_CDC_VERSION: Final = "3.5.0 on Flink 1.20.3"

# By organisation: name, revision, SHA-256.
_JARS: Final = {
    "com.esotericsoftware.kryo": """
        kryo 2.24.0 7e56b32c635058f9aa2820f88919ab702d029cbcd15285da9992e36cc0ae52f2
    """,
    "com.esotericsoftware.minlog": """
        minlog 1.2 a678cb1aa8f5d03d901c992c75741841d98a9bc3d55dad02e84d65315c4e60f2
    """,
    "com.github.luben": """
        zstd-jni 1.5.2-1 93f7e4cbc907c2650f89f9f0bec94873735a58f1e4b66a54973294e4ec1878e8
    """,
    "com.google.code.findbugs": """
        jsr305 1.3.9 905721a0eea90a81534abb7ee6ef4ea2e5e645fa1def0a5cd88402df1b46c9ed
    """,
    "com.ibm.icu": """
        icu4j 67.1 c4eb904caf5fba968a2f1a3b8aef14df801e9329b21697209ca30bfcf153867d
    """,
    "com.mysql": """
        mysql-connector-j 8.4.0 d77962877d010777cff997015da90ee689f0f4bb76848340e1488f2b83332af5
    """,
    "com.twitter": """
        chill-java 0.7.6 f7c41a2257be11e6c9bca97095c8f4b0299626941a3508469f90622eb8f8368e
    """,
    "commons-cli": """
        commons-cli 1.5.0 bc8bb01fc0fad250385706e20f927ddcff6173f6339b387dc879237752567ac6
    """,
    "commons-collections": """
        commons-collections 3.2.2 eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8
    """,
    "commons-io": """
        commons-io 2.15.1 a58af12ee1b68cfd2ebb0c27caef164f084381a00ec81a48cc275fd7ea54e154
    """,
    "org.apache.commons": """
        commons-compress 1.26.0 051aceb8bbcc62d0f5b2b8ac72c53767f9c59bfbd050151e65bef6f51c8ed9c9
        commons-lang3 3.12.0 d919d904486c037f8d193412da0c92e22a9fa24230b9d67a57855c5c31c7e94e
        commons-math3 3.6.1 1e56d7b058d28b65abd256b8458e3885b674c1d588fa43cd7d1cbb9c7ef2b308
        commons-text 1.10.0 770cd903fa7b604d1f7ef7ba17f84108667294b2b478be8ed1af3bffb4ae0018
    """,
    "org.apache.flink": """
        flink-annotations 1.20.3 fa298363048d7687f47d69f8572e8daabcce9cf021ecff8bdc642a75ff1a83a8
        flink-cep 1.20.3 8308c3526bdb06604b77ad6d65e3622e7f20877af60c6970d96101fffd522b2a
        flink-clients 1.20.3 c9b74d6956994c0d5c7bafa586769a2e85afd5a2997661d344041681292b6d0d
        flink-connector-base 1.20.3 e95179da8f560204ae21b1f709497a0928348f8655a23b1e80d458670dc4d4ce
        flink-connector-datagen 1.20.3 2bf951e84be9c1b82eebddf18e37ca56f97c3a8ffa24bc38060a417e0c0a9c92
        flink-connector-files 1.20.3 ae4ca11ca3ca167af8f1f64f52a292ad65d72e444bdf5ee42d03f52c0c635b6a
        flink-connector-kafka 3.4.0-1.20 0deab094f7f54df9e8cb7c77c15b4392e1f9923f98f8972b4346f6ff384bf5e6
        flink-core 1.20.3 29459f3f6ee81230e2436eeb636daf3c88841546ac11b1c13af14839a7eb605c
        flink-core-api 1.20.3 2cfe1b3a51ec9d50a4d9b61f017ddb3b4fc4bf09eff2997a5c773fa8972e4055
        flink-datastream 1.20.3 4b583df5d29dab9955c5472598d21c13f8fe7d9f822b0a7dea10d4c5e6471d47
        flink-datastream-api 1.20.3 4af47ba059c3050aa6284c47f6aab075eca46aa8ce7bb212ba6ac36642c5a006
        flink-file-sink-common 1.20.3 e86849373b13c656bccb701d21c90da2c5f188d1a479592c8eb558719c993e27
        flink-hadoop-fs 1.20.3 0c0926936c54c8c738ad29c017be94774c0fcc435b48137eade7571a61fc93f4
        flink-java 1.20.3 e79e70c820c0a70c81a0758220eff526d9aa10ecc0f4d0998267bb74358c95e6
        flink-json 1.20.3 d64e2ccce6b8a18dedbbfc5cd0655eee5bc05486ff8a11146ee8a259a29dff75
        flink-metrics-core 1.20.3 f3ed52c6bb63319e9abed5ccbcda1f55452aca3462864e883089258b65404d1e
        flink-optimizer 1.20.3 8bb43335774deb1b9372ec01ef76368281158bc1482931fa42e4e67fdff2a82e
        flink-queryable-state-client-java 1.20.3 94bc03e0cf6ba76a623f28502d73148074ec69dc058e1af2f9442cc0a001b935
        flink-rpc-akka-loader 1.20.3 f74a006f964c6f54fc928b3d333fd5bdbb7374300e5a0e8017ad5bc17c90aded
        flink-rpc-core 1.20.3 b1a64af9d2cb8fe54ccc642485b5bb83bc835e73ae2b8439c916729bf36bc11e
        flink-runtime 1.20.3 7e1e6bc5f4fe05f56880f7aeb779ff1f2e60f08efce9c736692937209b85bb42
        flink-shaded-asm-9 9.5-17.0 a79273d4fbea1683b5fe81bce25d7fe552a542690481132f7ded034a8f00169e
        flink-shaded-guava 31.1-jre-17.0 03442ae97c4ca34388568cbce0e67e9911b0137b2b3849dff7a550008d5a4336
        flink-shaded-jackson 2.14.2-17.0 37e87311498ae8da80adb2aa09ab6e9739d8611e09868e7220822206c739231e
        flink-shaded-netty 4.1.91.Final-17.0 c4d370f1b2bda0b55686fdec840c8a047950b9448f26cd01f1594a3bf0fde75b
        flink-shaded-zookeeper-3 3.7.1-17.0 e91cb263c67631a27e7a6cee147b75a9a638f3c52fcd053106fc4584feb6e585
        flink-sql-connector-mysql-cdc 3.5.0 aa1946f26be3c831f03e22b3f6b4f2ad70b02878817b8648177c3fe1c8d1f440
        flink-streaming-java 1.20.3 53f12f3fa4504409cb2b74a6ba516b10b06ef7972c6f226e7168e4f58e0df1b5
        flink-table-api-bridge-base 1.20.3 daa21b9f917b7dde48db3c628db572d42174978178e324749b0b5e6d08d7be1e
        flink-table-api-java 1.20.3 86c7c92c48526dfcb4b98f2d20ecbd033b6f16e2aa1b362a13e5298c15f6e317
        flink-table-api-java-bridge 1.20.3 933c831fd9e5c94da81077d86072bbdcd6fc528976b3485c931ae4d148a3fe66
        flink-table-common 1.20.3 81163356458ac3a1fa1e601230ba3581431c8eb8bac976c6bd6a9ac26773b401
        flink-table-planner-loader 1.20.3 6cd82685972f583bd92defe0910c4f26b84dd40e886f14d9aeca07657e27e7fd
        flink-table-runtime 1.20.3 991313691a398c1fda249a9c74599b8c019ea94bbedb658cc84552e41e0af70c
    """,
    "org.apache.kafka": """
        kafka-clients 3.4.0 48f38dede69bf2ed3709e270afb6b72fac869651fc258997727dba350333ac64
    """,
    "org.javassist": """
        javassist 3.24.0-GA aba81efa678b621203fb89aeff81d6f126f7a9dd709401e5609c42976684ae23
    """,
    "org.lz4": """
        lz4-java 1.8.0 d74a3334fb35195009b338a951f918203d6bbca3d1d359033dc33edd1cadc9ef
    """,
    "org.objenesis": """
        objenesis 2.1 c74330cc6b806c804fd37e74487b4fe5d7c2750c5e15fbc6efa13bdee1bdef80
    """,
    "org.slf4j": """
        slf4j-api 1.7.36 d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0
    """,
    "org.snakeyaml": """
        snakeyaml-engine 2.6 2652199af40c9aa2f1782400d2dfbbf4e5226208c4e05ddd4059c3d6d9cd1505
    """,
    "org.xerial.snappy": """
        snappy-java 1.1.10.4 55b30c94e5c4cc2d4b6976916098d0678a8a6cc7427fa8c875621bd94e731ac8
    """,
    "tools.profiler": """
        async-profiler 2.9 6c4e993c28cf2882964cac82a0f96e81a325840043884526565017b2f62c5ba4
    """,
}


def flink_cdc_class_path() -> list[Path]:
    """All jars that such a program needs. Only the first call needs the network, for 150 MB."""
    return fetch(pinned(_JARS))
