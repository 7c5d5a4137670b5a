"""Figures and offsets of Spark's own sources: Kafka and files."""
