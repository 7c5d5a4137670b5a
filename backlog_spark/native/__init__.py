"""Queries over Spark's own readers: rules, and phases (files, then Kafka)."""
