"""``hybrid``: phases of old data, then Kafka, as one stream (FLIP-309's HybridSource)."""
