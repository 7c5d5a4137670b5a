"""Real servers and a ready Spark session for the demo, the tests and the benchmarks.

Import from the modules (`backlog_spark.embedded.mysql`, `.session`, `.jars`): each needs another optional package, so
none is imported here. The wheel leaves this package out: it runs from a checkout.
"""
