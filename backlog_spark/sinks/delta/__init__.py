"""Sinks of Delta tables: one transaction per batch, which carries the id of the query and of the batch."""
