"""Decodes change topics: envelopes of Debezium, Canal and Maxwell."""
