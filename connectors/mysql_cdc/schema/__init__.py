"""Tables, columns, types and keys."""
