"""Sinks of Apache Iceberg tables, through pyiceberg."""
