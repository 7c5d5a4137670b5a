"""Starts Spark's Python processes faster. This directory is on their path (see `sitecustomize`)."""
