"""Benchmarks against peers, interleaved in one run: ``make bench CASE=name``."""
