"""Decides what a query does next (pure)."""
