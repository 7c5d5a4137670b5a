"""Compares a target with its source, and repairs it: ``bs.verify`` and ``bs.verify_tables``."""
