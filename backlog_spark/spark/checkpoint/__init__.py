"""Reads and writes a query's checkpoint: Spark's logs in it, and files of our own beside them."""
