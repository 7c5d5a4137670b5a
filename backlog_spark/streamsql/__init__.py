"""SQL over streams, translated into the keyed operators; `backlog_spark.sql` is the entry."""
