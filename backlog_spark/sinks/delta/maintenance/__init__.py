"""Keeps a Delta table quick that gets a small commit every second."""
