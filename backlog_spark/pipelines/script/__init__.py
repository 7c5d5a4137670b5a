"""Reads Flink SQL scripts as pipelines."""
