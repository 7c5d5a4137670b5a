"""A real YARN in one JVM: a ResourceManager and two NodeManagers of Hadoop's mini cluster. Containers are processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from servers.jars import Artifact, fetch

# Hadoop's version is that of Spark 4.2.0. The others are what the mini cluster imports.
JARS = [
    Artifact(*each.split(":"))
    for each in (
        "org.apache.hadoop:hadoop-client-minicluster:3.5.0:06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
        "org.junit.jupiter:junit-jupiter-api:5.13.4:d1bb81abfd9e03418306b4e6a3390c8db52c58372e749c2980ac29f0c08278f1",
        "org.junit.platform:junit-platform-commons:1.13.4:1c25ca641ebaae44ff3ad21ca1b2ef68d0dd84bfeb07c4805ba7840899b77408",
        "org.opentest4j:opentest4j:1.3.0:48e2df636cab6563ced64dcdff8abb2355627cb236ef0bf37598682ddf742f1b",
        "org.bouncycastle:bcpkix-jdk18on:1.81:b38c604871f3690109a3c00982d9145634125de3365a817ba16eb90d88e242c9",
        "org.bouncycastle:bcprov-jdk18on:1.81:249f396412b0c0ce67f25c8197da757b241b8be3ec4199386c00704a2457459b",
        "org.bouncycastle:bcutil-jdk18on:1.81:31a5fe3a7ba42e3457b83930f0ff8d679fb5b76eaadf2b51f5740c92a394bf52",
    )
]
CONF = {
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
}


@contextmanager
def yarn(root: Path) -> Iterator[Path]:
    """The directory with its configuration, for ``HADOOP_CONF_DIR``."""
    jars = Path(pyspark.__file__).parent / "jars"
    (root / "conf").mkdir(parents=True)
    before = Path.cwd()
    with (root / "log").open("w") as log:
        os.chdir(root)  # the mini cluster writes below the working directory
        try:
            port = launch_gateway(
                classpath=os.pathsep.join([*map(str, fetch(JARS)), f"{jars}/*"]),
                jarpath=str(next(jars.glob("py4j*.jar"))),
                javaopts=["-Xmx700m"],
                die_on_exit=True,
                redirect_stdout=log,
                redirect_stderr=log,
            )
        finally:
            os.chdir(before)
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        try:
            conf = gateway.jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
            for name, text in CONF.items():
                conf.set(name, text)
            cluster = gateway.jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("yarn", 2, 1, 1)
            cluster.init(conf)
            cluster.start()
            file = gateway.jvm.java.io.FileOutputStream(str(root / "conf" / "yarn-site.xml"))
            cluster.getConfig().writeXml(file)
            file.close()
            yield root / "conf"
            cluster.stop()
        finally:
            gateway.shutdown()


def wait(condition: object, process: subprocess.Popen[bytes], log: IO[str], seconds: float = 300) -> None:
    """Wait until the condition holds, while spark-submit runs."""
    assert callable(condition)
    limit = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, Path(log.name).read_text()[-3000:]
        assert time.monotonic() < limit, Path(log.name).read_text()[-3000:]
        time.sleep(0.2)
