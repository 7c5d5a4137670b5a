"""Change topics: Debezium, Canal and Maxwell."""
