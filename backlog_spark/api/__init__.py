"""The chained API: streams, keyed streams, windows, the writer."""
