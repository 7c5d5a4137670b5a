"""Real servers and a ready Spark session for the demo, the tests and the benchmarks.

Import from the modules (`servers.mysql`, `.session`, `.jars`). Each needs another optional package, so
none is imported here. The wheel does not contain this package: use it from a checkout.
"""
