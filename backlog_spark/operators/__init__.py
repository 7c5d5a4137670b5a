"""Keyed operators, each a fold that runs as batch in backlog and as stream afterwards."""
