"""Small commits to a Delta table by delta-rs, from the driver and without a Spark job."""
