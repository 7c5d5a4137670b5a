"""Keyed state: key groups, Arrow tables of accumulators, versions in backlog, and the hand-off to stream mode."""
