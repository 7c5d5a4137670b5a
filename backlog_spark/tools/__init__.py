"""The ``backlog-spark`` command: tools that read a query's checkpoint without Spark, also from another machine."""
