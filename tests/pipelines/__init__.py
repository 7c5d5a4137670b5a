"""Tests of pipelines in a file."""
