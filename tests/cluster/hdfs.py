"""A real HDFS with one data node, from the jars of Hadoop's mini cluster."""

from __future__ import annotations

import os
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from servers.jars import fetch, java_executable
from servers.server import EmbeddedServer, free_port

from .yarn import JARS

__all__ = ["HdfsServer"]

_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
_SETTINGS = {"dfs.permissions.enabled": "false", "dfs.replication": "1"}


class HdfsServer(EmbeddedServer):
    """HDFS on free ports of 127.0.0.1. Anybody may write."""

    name = "hdfs"

    def __init__(self, port: int | None = None) -> None:
        super().__init__(port=port)
        self._http_port = free_port()

    @property
    def url(self) -> str:
        """Its root."""
        return f"hdfs://{self.host}:{self.port}"

    @property
    def web_url(self) -> str:
        """Its root over HTTP."""
        return f"webhdfs://{self.host}:{self._http_port}"

    def initialise(self) -> None:
        pass

    def command(self) -> list[str]:
        found = find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        jars = Path(found.origin).parent / "jars"
        path = os.pathsep.join([*map(str, fetch(JARS)), f"{jars}/*"])
        java = [java_executable(), "-Xmx400m", f"-Dtest.build.data={self.datadir}", "-cp", path, _MAIN]
        settings = [word for name, value in _SETTINGS.items() for word in ("-D", f"{name}={value}")]
        ports = ["-nnport", str(self.port), "-httpport", str(self._http_port)]
        return [*java, "-format", "-datanodes", "1", *ports, *settings]

    def working_directory(self) -> Path:
        return self.datadir

    def is_ready(self) -> bool:
        beans = f"http://{self.host}:{self._http_port}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with urllib.request.urlopen(beans, timeout=2) as answer:
                return b'"NumLiveDataNodes" : 1' in answer.read()
        except OSError:
            return False
