"""Writes a query's rows to Kafka's topics."""
