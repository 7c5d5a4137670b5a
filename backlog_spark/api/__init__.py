"""What a user chains: streams, keyed streams, windows, the writer."""
