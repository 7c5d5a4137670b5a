"""Process functions: state, timers, side outputs."""
