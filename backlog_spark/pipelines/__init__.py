"""Pipelines in a file: parsing, checking, building and running them."""
