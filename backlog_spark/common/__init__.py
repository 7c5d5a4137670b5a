"""Durations, settings, intervals and other helpers (pure)."""
