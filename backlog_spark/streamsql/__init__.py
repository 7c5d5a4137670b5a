"""Translates SQL over streams into keyed operators; the entry is `backlog_spark.sql`."""
