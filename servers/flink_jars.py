"""The jars of Flink 2.3.0 for programs with its Table API and a cluster in the same process, with their checksums.

Flink's reader of Parquet needs Hadoop's classes. PySpark has them in two jars.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyspark

from servers.jars import fetch, pinned

__all__ = ["FLINK_VERSION", "flink_class_path"]

FLINK_VERSION: Final = "2.3.0"

# By organisation: name, revision, SHA-256.
_JARS: Final = {
    "at.yawk.lz4": """
        lz4-java 1.10.3 49753ae8a9b7dc3ce48cb2989cc6605e43eb8269748ad3466251836ec4cd02a8
    """,
    "com.esotericsoftware": """
        kryo 5.6.2 4e8b1d2f4977187af8a51a957329722dc1cdc56a7c94fbb5a791e82897629cff
        minlog 1.3.1 5d4d632cfbebfe0a7644501cc303570b691406181bee65e9916b921c767d7c72
        reflectasm 1.11.9 712b44da79a5b7f47a28cbfcb3d8ecfc872fae349c48aa4d3e38a5d69956afce
    """,
    "com.google.code.findbugs": """
        jsr305 1.3.9 905721a0eea90a81534abb7ee6ef4ea2e5e645fa1def0a5cd88402df1b46c9ed
    """,
    "com.ververica": """
        frocksdbjni 8.10.0-ververica-1.0 4e9bcd16a0232c7c8bc3779a2ff627be7c05c49826c1b2fa0bf7ba760f7cdcb7
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
        commons-lang3 3.18.0 4eeeae8d20c078abb64b015ec158add383ac581571cddc45c68f0c9ae0230720
        commons-math3 3.6.1 1e56d7b058d28b65abd256b8458e3885b674c1d588fa43cd7d1cbb9c7ef2b308
        commons-text 1.10.0 770cd903fa7b604d1f7ef7ba17f84108667294b2b478be8ed1af3bffb4ae0018
    """,
    "org.apache.flink": """
        flink-annotations 2.3.0 43eef36e172f5bc727a63c75347ba5cc4ceeb569f5daaf64421da248c224308a
        flink-cep 2.3.0 a790b8e74fd3acd11bba2b73a85820469b7581d78c26a06d8f2cdff8097d9088
        flink-clients 2.3.0 cbc643faca50912833941780ecec8bae23e23ac59b5e247035711302a12dcfbd
        flink-connector-datagen 2.3.0 bb49eb8ce91b74bb4b1bd1549647b9acc3515650a01c2635c02356401e651f0c
        flink-connector-files 2.3.0 b340e2d74b420ce539868b63513d28d93f5d3179475d1439353b6e129e66a027
        flink-core 2.3.0 26b63fadf4808727cfbdc5271ee600144dacf15db8aab5a77c1e59005ea140aa
        flink-core-api 2.3.0 f9f3c9bdb4e0c0d0f15b3e2e4def4ee6cd56edfc55c9514b9004a1db4a51e351
        flink-datastream 2.3.0 fea69ae88b05bbe00d1dd9e48bce720bbcd153c85c8f8fc80a9d22a4c2668621
        flink-datastream-api 2.3.0 b474b5a0e900a2757228ffd61e06ee4ecf252c3141421369911db9c91de51bce
        flink-file-sink-common 2.3.0 59ec31a9b9ea1d78f62b505ac0c4f95d49eb43c457cdf21be13e43df077273b4
        flink-hadoop-fs 2.3.0 87471693c2977cd956beec27e6b6c10af77009945f58e3954d730df0f8ea64c9
        flink-metrics-core 2.3.0 ea5f85e7490ab3363230f771edb78ea69856ac2eaf75e340db99c67f2c72b982
        flink-queryable-state-client-java 2.3.0 b5d7bd033cb97b9bd812f5399d971668639a3f7604dd002ebd3733c2027cfcc2
        flink-rpc-akka-loader 2.3.0 0d3c914a8f101250c3aad87c0781b25436bff679d2d1f46db769d4fe51fd326d
        flink-rpc-core 2.3.0 050a2b087b0cea6553c9ed4df96c60c0cc5732177691fcece0d3872dd1837b85
        flink-runtime 2.3.0 490e92d30cbd766e070f2bfc3c011b1830dc165894be2735a5585b8b9e76cb69
        flink-shaded-asm-9 9.9.1-21.0 abd67048e87fb1306e7b9fce372af7bf9ca0bbf026ae263c817edf647c7f4159
        flink-shaded-guava 33.5.0-jre-21.0 6644e530e098362a964467902b5ecf615aca63ca4424351b69e37108aa09b288
        flink-shaded-jackson 2.20.1-21.0 696df51ebc642b2832db3b02517e60fee8d96fb1fe23f519c9897d02ff845ab2
        flink-shaded-netty 4.2.6.Final-21.0 2b0272b90e844cfafa9fc378bb8cd9f0fb50199b819368211082ba46acf19184
        flink-shaded-zookeeper-3 3.7.2-21.0 43e3e923c2666c9346dccf22a86a3be85113dfd2b5427d1da5a3881b8a0095f7
        flink-sql-parquet 2.3.0 f30617f4a5a6d437750f155ff72178ab34439aec91df64d96621c260559ba5fd
        flink-statebackend-rocksdb 2.3.0 3357b5f33042d6b3a7ad784b7b54a72cb6de12e6c6a2df696bcd241e383d1b4e
        flink-streaming-java 2.3.0 f0ab7c27603c2066bcc2e6075d09448341fd7fa4713fbe00d6a726acf5ea9ad9
        flink-table-api-java-uber 2.3.0 121880bbe69d10200dace10d009b17f5bf69d4fdbd89830a43924219f2a602a9
        flink-table-planner-loader 2.3.0 26d81818c2207cef34474d3cd21b31f0e6562cf8946da4b555ad1ecc945bd49b
        flink-table-runtime 2.3.0 bd3861d3b567e43b1aa3ec3f79c0f105d317e2b03e3e8e111e335e13cc8eb95b
    """,
    "org.javassist": """
        javassist 3.24.0-GA aba81efa678b621203fb89aeff81d6f126f7a9dd709401e5609c42976684ae23
    """,
    "org.objenesis": """
        objenesis 3.4 95488102feaf2e2858adf6b299353677dac6c15294006f8ed1c5556f8e3cd251
    """,
    "org.roaringbitmap": """
        RoaringBitmap 1.3.0 73443a71a2e2401c7d518a487983539fcaf5f9652efbd178f929e7b6d36881d0
    """,
    "org.slf4j": """
        slf4j-api 1.7.36 d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0
    """,
    "org.snakeyaml": """
        snakeyaml-engine 2.6 2652199af40c9aa2f1782400d2dfbbf4e5226208c4e05ddd4059c3d6d9cd1505
    """,
    "org.xerial.snappy": """
        snappy-java 1.1.10.7 4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36
    """,
    "tools.profiler": """
        async-profiler 2.9 6c4e993c28cf2882964cac82a0f96e81a325840043884526565017b2f62c5ba4
    """,
}


def flink_class_path() -> list[Path]:
    """All jars that such a program needs. Only the first call needs the network, for 200 MB."""
    hadoop = Path(pyspark.__file__).parent / "jars"
    return [*fetch(pinned(_JARS)), *sorted(hadoop.glob("hadoop-client-*.jar"))]
