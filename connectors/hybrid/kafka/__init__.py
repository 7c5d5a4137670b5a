"""Kafka as a phase of ``hybrid``: topics from an offset or a time on, with or without an end."""
