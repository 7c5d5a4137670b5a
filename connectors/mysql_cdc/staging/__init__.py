"""Keeps a copy of the log that a long snapshot will need, beyond the time that the server keeps it."""
