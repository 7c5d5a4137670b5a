"""Bad input never hangs, crashes, gives a wrong value or takes memory beyond a bound (`make fuzz`)."""
