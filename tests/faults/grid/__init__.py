"""The grid of faults: what fails, in which phase, with which source and which operator."""
