"""Runs a query: starts, batches, time, restarts."""
