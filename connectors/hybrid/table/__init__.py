"""The phase of a Delta table that goes on with the table's later commits."""
