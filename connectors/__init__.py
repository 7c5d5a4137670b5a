"""Streaming sources for Spark that report whether they are processing backlog."""
