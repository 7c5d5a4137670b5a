"""Two queries under load, faults and kills for an hour: their targets, memory and files (`make soak`)."""
