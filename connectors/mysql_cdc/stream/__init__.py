"""The stream as Spark calls it: plans batches beside the driver, reads them, and reads tables as of an offset."""
