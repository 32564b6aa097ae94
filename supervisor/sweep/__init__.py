"""One pass of the circle: observe, diagnose, decide, act. Safe at any time, any number of times."""
