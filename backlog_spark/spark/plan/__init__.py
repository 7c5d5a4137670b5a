"""Makes the DataFrames that a query runs: plans of the two vehicles, and what a batch is."""
