"""Functions over the rows around each row."""
