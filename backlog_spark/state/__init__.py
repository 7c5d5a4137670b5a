"""Keyed state: key groups, Arrow tables of accumulators, versions in backlog, and the hand-over to stream mode."""
