"""Examples: each runs, each is tested."""
