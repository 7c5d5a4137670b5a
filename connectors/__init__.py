"""Streaming sources for Spark that report whether they are processing backlog.

The package is ``backlog_spark.connectors``: ``backlog_spark/connectors`` is a link to this folder.
"""

if __name__ != "backlog_spark.connectors":
    # A second copy under the folder's own name would register the sources twice.
    raise ImportError(f"import backlog_spark.connectors, not {__name__}")
