"""A stream's rows."""
