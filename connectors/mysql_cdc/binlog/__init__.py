"""Reading the binary log."""
