"""The session of a query that tests kill, in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"


def job_session(**conf: str) -> SparkSession:
    """A local session for a short life, in which checkpoints are written as Spark does by default."""
    from servers.session import local_session

    own = {
        "spark.driver.memory": "1g",
        # Compiling costs more than it gains: classes by Java, and plans by Spark.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.streaming.checkpointFileManagerClass": _FILES,
    }
    return local_session("job", conf={**own, **conf})
