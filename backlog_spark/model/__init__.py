"""What a declared query is: nodes, changes, record attributes, watermarks (pure)."""
