"""Columns that change: ALTER TABLE in the binary log."""
