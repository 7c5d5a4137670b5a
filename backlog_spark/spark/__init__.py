"""All contact with Spark's JVM and internals."""
