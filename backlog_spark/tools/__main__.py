"""``python -m backlog_spark.tools``: the command where the console script is not installed."""

from backlog_spark.tools import main

main()
