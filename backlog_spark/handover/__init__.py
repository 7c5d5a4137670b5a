"""Hands the keyed state of a stay in backlog over to stream mode: versions, seeds, and how each stay ended."""
