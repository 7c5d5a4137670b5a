"""Queries over Spark's own readers: rules, and phases of files then Kafka."""
