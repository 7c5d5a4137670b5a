"""The model of a declared query: nodes, changes, record attributes, watermarks (pure)."""
