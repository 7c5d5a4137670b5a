"""All that reaches into Spark's JVM and is no plan and no checkpoint: sessions, batches, events, Delta's log."""
