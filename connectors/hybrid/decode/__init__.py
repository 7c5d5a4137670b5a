"""Records' bytes into columns: JSON, Avro, CSV, or as they are."""
