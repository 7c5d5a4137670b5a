"""On the path of Spark's Python processes, whose start it shortens; see `sitecustomize` beside it."""
