"""Kafka as a phase of ``hybrid``: topics from a place or a time on, with or without an end."""
